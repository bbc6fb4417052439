/* SPDX-License-Identifier: Apache-2.0 */
/* Plain sockets: Unix sockets within a machine, TCP between machines. Needs no library, and detects a peer's death at once.
 *
 * A message of up to SOCKET_EAGER_MAX bytes is written at once, and the receiver buffers it until its receive is posted. For a larger
 * message the sender first requests permission; it is written when the receive is posted, directly into the receive's buffer, so that
 * receivers buffer little. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "common/alloc.h"
#include "runtime/comm/transport_socket_internal.h"

#define EVENTS 64

static void socket_progress(struct hspmd_transport *base)
{
	struct socket_transport *t = (struct socket_transport *)base;
	struct epoll_event events[EVENTS];
	int n = epoll_wait(t->epoll, events, EVENTS, 0);
	for (int i = 0; i < n; i++) {
		enum socket_source *source = events[i].data.ptr;
		if (*source == SOCKET_LISTENER) {
			socket_accept_all(t, t->listener.unix_fd);
			socket_accept_all(t, t->listener.tcp_fd);
		} else if (*source == SOCKET_WAKER) {
			hspmd_transport_clear_wake(base);
		} else if (*source == SOCKET_OUTGOING) {
			hspmd_socket_connection_step(&((struct socket_peer *)events[i].data.ptr)->out);
		} else {
			socket_read_incoming(t, events[i].data.ptr);
		}
	}
	socket_limit_strangers(t);
	bool connecting = false;
	for (int r = 0; t->connecting && r < base->options.size; r++) {
		if (t->peers[r].out.state == HSPMD_CONNECTION_CONNECTING)
			hspmd_socket_connection_step(&t->peers[r].out);
		connecting |= t->peers[r].out.state == HSPMD_CONNECTION_CONNECTING;
	}
	t->connecting = connecting;
}

static void socket_block(struct hspmd_transport *base, double seconds)
{
	struct socket_transport *t = (struct socket_transport *)base;
	struct epoll_event event;
	int ms = (int)ceil(seconds * 1000);
	epoll_wait(t->epoll, &event, 1, t->connecting && ms > 1 ? 1 : ms);
}

static struct socket_message *start(struct socket_transport *t, int to, bool sending, uint64_t tag, void *data, size_t bytes,
                                    struct hspmd_error *err)
{
	if (hspmd_transport_check(&t->base, to, tag, err))
		return NULL;
	if (!t->peers[to].known) {
		hspmd_transport_fail_unknown(&t->base, to, err);
		return NULL;
	}
	struct socket_message *m = hspmd_calloc(1, sizeof *m);
	if (!m) {
		hspmd_fail_memory(err, "starting a message");
		return NULL;
	}
	m->request = (struct hspmd_request){ .peer = to, .sending = sending, .bytes = bytes, .tag = tag };
	m->data = data;
	m->id = ++t->last_id;
	socket_need_connection(t, &t->peers[to]);
	return m;
}

static int socket_send(struct hspmd_transport *base, int to, uint64_t tag, const void *data, size_t bytes, struct hspmd_request **r,
                       struct hspmd_error *err)
{
	struct socket_transport *t = (struct socket_transport *)base;
	struct socket_message *m = start(t, to, true, tag, (void *)(uintptr_t)data, bytes, err);
	if (!m)
		return -1;
	struct socket_peer *p = &t->peers[to];
	bool small = bytes <= SOCKET_EAGER_MAX;
	m->item.frame =
	        (struct hspmd_frame){ HSPMD_FRAME_MAGIC, small ? HSPMD_FRAME_EAGER : HSPMD_FRAME_REQUEST_TO_SEND, tag, bytes, m->id };
	m->item.body = small ? data : NULL;
	m->item.body_bytes = small ? bytes : 0;
	TAILQ_INSERT_TAIL(&p->sends, m, entry);
	hspmd_socket_connection_queue(&p->out, &m->item);
	*r = &m->request;
	return 0;
}

static int socket_receive(struct hspmd_transport *base, int from, uint64_t tag, void *data, size_t bytes, struct hspmd_request **r,
                          struct hspmd_error *err)
{
	struct socket_transport *t = (struct socket_transport *)base;
	struct socket_message *m = start(t, from, false, tag, data, bytes, err);
	if (!m)
		return -1;
	struct socket_peer *p = &t->peers[from];
	struct socket_arrival *a;
	TAILQ_INSERT_TAIL(&p->receives, m, entry);
	*r = &m->request;
	TAILQ_FOREACH(a, &p->arrivals, entry)
	if (a->tag == tag && !a->claimed_by)
		break;
	if (!a)
		return 0;
	m->received = a->bytes;
	if (!a->complete) {
		m->stage = SOCKET_FILLING;
		a->claimed_by = m;
		return 0;
	}
	if (a->asks) {
		socket_grant(t, p, m, a->id, a->bytes);
	} else {
		if (bytes == a->bytes && bytes)
			memcpy(data, a->body, bytes);
		m->stage = SOCKET_FINISHED;
	}
	TAILQ_REMOVE(&p->arrivals, a, entry);
	free(a);
	return 0;
}

static int test_send(struct socket_peer *p, const struct socket_message *m, struct hspmd_error *err)
{
	const struct hspmd_socket_item *i = &m->item;
	if (i->frame.kind != HSPMD_FRAME_REQUEST_TO_SEND && i->written == sizeof i->frame + i->body_bytes)
		return 1;
	return p->out.state == HSPMD_CONNECTION_DEAD ? hspmd_fail(err, "%s", p->out.why) : 0;
}

static int test_receive(struct socket_transport *t, struct socket_peer *p, const struct socket_message *m, struct hspmd_error *err)
{
	if (m->stage == SOCKET_FINISHED)
		return m->received == m->request.bytes ? 1 : hspmd_fail(err, "received %zu bytes", m->received);
	if (p->in_closed)
		return hspmd_fail(err, "it has closed its connections");
	/* The peer's connection to this member may be accepted, but not read yet. */
	if (!p->in && !t->strangers && p->out.state == HSPMD_CONNECTION_DEAD)
		return hspmd_fail(err, "%s", p->out.why);
	return 0;
}

static int socket_test(struct hspmd_transport *base, struct hspmd_request *r, struct hspmd_error *err)
{
	struct socket_transport *t = (struct socket_transport *)base;
	struct socket_message *m = (struct socket_message *)r;
	struct socket_peer *p = &t->peers[r->peer];
	int rv = r->sending ? test_send(p, m, err) : test_receive(t, p, m, err);
	if (!rv)
		return 0;
	hspmd_socket_connection_cancel(&p->out, &m->item);
	if (r->sending)
		TAILQ_REMOVE(&p->sends, m, entry);
	else
		TAILQ_REMOVE(&p->receives, m, entry);
	free(m);
	return rv;
}

static void close_peer(struct socket_peer *p)
{
	struct socket_message *m;
	struct socket_arrival *a;
	hspmd_socket_connection_close(&p->out);
	while ((m = TAILQ_FIRST(&p->sends))) {
		TAILQ_REMOVE(&p->sends, m, entry);
		free(m);
	}
	while ((m = TAILQ_FIRST(&p->receives))) {
		TAILQ_REMOVE(&p->receives, m, entry);
		free(m);
	}
	while ((a = TAILQ_FIRST(&p->arrivals))) {
		TAILQ_REMOVE(&p->arrivals, a, entry);
		free(a);
	}
}

static void socket_close(struct hspmd_transport *base)
{
	struct socket_transport *t = (struct socket_transport *)base;
	if (!t)
		return;
	while (!TAILQ_EMPTY(&t->incoming))
		socket_close_incoming(t, TAILQ_FIRST(&t->incoming));
	for (int r = 0; t->peers && r < base->options.size; r++)
		close_peer(&t->peers[r]);
	hspmd_socket_unlisten(&t->listener);
	if (t->epoll >= 0)
		close(t->epoll);
	free(t->peers);
	hspmd_transport_fini(base);
	free(t);
}

/* Two descriptors per peer, and two transports per generation. */
static void allow_descriptors(int peers)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	rlim_t claimed_by = (rlim_t)peers * 4 + 256;
	if (limit.rlim_cur >= claimed_by)
		return;
	limit.rlim_cur = claimed_by < limit.rlim_max ? claimed_by : limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

static int open_sockets(struct socket_transport *t, struct hspmd_error *err)
{
	t->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (t->epoll < 0)
		return hspmd_fail_errno(err, "making an epoll descriptor");
	if (hspmd_socket_listen(&t->listener, err))
		return -1;
	struct epoll_event e = { .events = EPOLLIN, .data.ptr = &t->listener_source };
	if (epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->listener.unix_fd, &e) ||
	    (t->listener.tcp_fd >= 0 && epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->listener.tcp_fd, &e)))
		return hspmd_fail_errno(err, "watching a listening socket");
	t->waker_source = SOCKET_WAKER;
	e.data.ptr = &t->waker_source;
	if (epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->base.wake_fd, &e))
		return hspmd_fail_errno(err, "watching an event descriptor");
	return 0;
}

static int socket_open(const struct hspmd_transport_options *o, struct hspmd_transport **out, struct hspmd_error *err)
{
	struct socket_transport *t = hspmd_calloc(1, sizeof *t);
	if (!t)
		return hspmd_fail_memory(err, "opening a transport");
	TAILQ_INIT(&t->incoming);
	t->epoll = t->listener.unix_fd = t->listener.tcp_fd = -1;
	if (hspmd_transport_init(&t->base, &hspmd_transport_socket, o, err)) {
		free(t);
		return -1;
	}
	allow_descriptors(o->size);
	t->peers = hspmd_calloc((size_t)o->size, sizeof *t->peers);
	if (!t->peers)
		hspmd_fail_memory(err, "opening a transport");
	if (!t->peers || open_sockets(t, err)) {
		free(t->peers);
		t->peers = NULL;
		socket_close(&t->base);
		return -1;
	}
	for (int r = 0; r < o->size; r++) {
		struct socket_peer *p = &t->peers[r];
		p->source = SOCKET_OUTGOING;
		hspmd_socket_connection_init(&p->out, t->epoll, p, o->timeout_s);
		TAILQ_INIT(&p->sends);
		TAILQ_INIT(&p->receives);
		TAILQ_INIT(&p->arrivals);
	}
	*out = &t->base;
	return 0;
}

static int socket_address(struct hspmd_transport *base, struct hspmd_address *own, struct hspmd_error *err)
{
	return hspmd_socket_address(&((struct socket_transport *)base)->listener, own, err);
}

static int socket_connect(struct hspmd_transport *base, const struct hspmd_address *addresses, struct hspmd_error *err)
{
	struct socket_transport *t = (struct socket_transport *)base;
	for (int r = 0; r < base->options.size; r++) {
		char peer[80];
		if (!addresses[r].size || t->peers[r].known)
			continue;
		if (hspmd_socket_target(&addresses[r], &t->peers[r].out.target, err))
			return hspmd_error_prefix(err, "%s", hspmd_transport_peer(base, r, peer, sizeof peer));
		t->peers[r].known = true;
	}
	return 0;
}

const struct hspmd_transport_ops hspmd_transport_socket = {
	.name = "socket",
	.open = socket_open,
	.address = socket_address,
	.connect = socket_connect,
	.send = socket_send,
	.receive = socket_receive,
	.progress = socket_progress,
	.block = socket_block,
	.wake = hspmd_transport_signal,
	.test = socket_test,
	.close = socket_close,
};
