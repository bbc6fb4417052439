/* SPDX-License-Identifier: Apache-2.0 */
/* Plain sockets: Unix sockets within a machine, TCP between machines. Needs no library, and detects a peer's death at once.
 *
 * A message of up to EAGER_MAX bytes is written at once, and the receiver buffers it until its receive is posted. For a larger message
 * the sender first requests permission; it is written when the receive is posted, directly into the receive's buffer, so that receivers
 * buffer little. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/log.h"
#include "runtime/comm/socket_connection.h"
#include "runtime/comm/transport.h"

#define EAGER_MAX (64u << 10)
#define EVENTS 64

enum source { LISTENER, OUTGOING, INCOMING, WAKER }; /* first member of the data of every epoll event */

enum stage {
	POSTED,  /* receive: nothing has arrived; send: not all is written, or permission is missing */
	GRANTED, /* receive: the sender has permission */
	FILLING, /* receive: the body is arriving */
	FINISHED
};

struct message {
	struct hspmd_request request;
	TAILQ_ENTRY(message) entry; /* in its peer's list of sends or receives */
	void *data;
	uint64_t id;
	enum stage stage;
	size_t received;               /* receives: size of the message that arrived */
	struct hspmd_socket_item item; /* the frames that it writes: EAGER or REQUEST_TO_SEND, then DATA; CLEAR_TO_SEND */
};

/* A message without a posted receive: an eager one with its bytes, or a request to send. */
struct arrival {
	TAILQ_ENTRY(arrival) entry;
	uint64_t tag, id;
	size_t bytes;
	bool asks;
	bool complete;              /* eager: all of it has arrived */
	struct message *claimed_by; /* eager: a receive that was posted while it arrived */
	char body[];
};

struct incoming {
	enum source source;
	int fd, peer; /* peer -1: no HELLO frame yet */
	TAILQ_ENTRY(incoming) entry;
	struct hspmd_frame frame;
	size_t got; /* bytes of the frame received */
	size_t left;
	char *into; /* destination of the rest of the body; NULL: it is discarded */
	struct message *message;
	struct arrival *arrival;
	uint8_t token[HSPMD_SOCKET_TOKEN];
};

struct peer {
	enum source source;
	struct hspmd_socket_connection out;
	struct incoming *in;
	bool in_closed;
	TAILQ_HEAD(, message) sends, receives; /* in the order in which they were started */
	TAILQ_HEAD(, arrival) arrivals;
};

struct socket_transport {
	struct hspmd_transport base;
	int epoll;
	enum source listener_source, waker_source;
	struct hspmd_socket_listener listener;
	struct peer *peers;
	TAILQ_HEAD(, incoming) incoming;
	int strangers;   /* connections without a HELLO frame */
	bool connecting; /* some connections must be checked even without an event */
	uint64_t last_id;
	char waste[64 << 10];
};

/* ---- incoming connections */

static void close_incoming(struct socket_transport *t, struct incoming *in)
{
	close(in->fd);
	TAILQ_REMOVE(&t->incoming, in, entry);
	if (in->peer < 0) {
		t->strangers--;
	} else {
		struct peer *p = &t->peers[in->peer];
		p->in = NULL;
		p->in_closed = true;
		struct arrival *a = in->arrival;
		/* The rest of this message will not arrive: its receive must fail and not finish. */
		if (in->message)
			in->message->stage = POSTED;
		if (a && a->claimed_by)
			a->claimed_by->stage = POSTED;
		if (a) {
			TAILQ_REMOVE(&p->arrivals, a, entry);
			free(a);
		}
	}
	free(in);
}

static void accept_all(struct socket_transport *t, int listener)
{
	if (listener < 0)
		return;
	for (;;) {
		int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd < 0)
			return;
		struct incoming *in = hspmd_calloc(1, sizeof *in);
		struct epoll_event e = { .events = EPOLLIN, .data.ptr = in };
		if (!in || epoll_ctl(t->epoll, EPOLL_CTL_ADD, fd, &e)) {
			hspmd_warn("socket transport: a connection had to be refused: %s", strerror(errno));
			free(in);
			close(fd);
			continue;
		}
		in->source = INCOMING;
		in->fd = fd;
		in->peer = -1;
		t->strangers++;
		TAILQ_INSERT_TAIL(&t->incoming, in, entry);
	}
}

static void need_link(struct socket_transport *t, struct peer *p)
{
	if (p->out.state != HSPMD_CONNECTION_UNUSED)
		return;
	hspmd_socket_connection_connect(&p->out, t->base.options.rank);
	t->connecting = true;
}

static void grant(struct socket_transport *t, struct peer *p, struct message *m, uint64_t send_id, uint64_t bytes)
{
	m->received = bytes;
	if (bytes != m->request.bytes) {
		m->stage = FINISHED;
		return;
	}
	m->stage = GRANTED;
	m->item.frame = (struct hspmd_frame){ .magic = HSPMD_FRAME_MAGIC, .kind = HSPMD_FRAME_CLEAR_TO_SEND, .tag = m->id, .id = send_id };
	need_link(t, p);
	hspmd_socket_connection_queue(&p->out, &m->item);
}

static struct message *posted(struct peer *p, uint64_t tag)
{
	struct message *m;
	TAILQ_FOREACH(m, &p->receives, entry)
	if (m->stage == POSTED && m->request.tag == tag)
		return m;
	return NULL;
}

static struct arrival *add_arrival(struct peer *p, const struct hspmd_frame *f, bool asks)
{
	struct arrival *a = malloc(sizeof *a + (asks ? 0 : f->bytes));
	if (!a)
		return NULL;
	*a = (struct arrival){ .tag = f->tag, .id = f->id, .bytes = f->bytes, .asks = asks, .complete = asks };
	TAILQ_INSERT_TAIL(&p->arrivals, a, entry);
	return a;
}

static int begin_eager(struct peer *p, struct incoming *in)
{
	if (in->frame.bytes > EAGER_MAX)
		return -1;
	struct message *m = posted(p, in->frame.tag);
	if (m) {
		m->received = in->frame.bytes;
		m->stage = FILLING;
		in->message = m;
		in->into = m->received == m->request.bytes ? m->data : NULL;
	} else {
		in->arrival = add_arrival(p, &in->frame, false);
		if (!in->arrival)
			return -1;
		in->into = in->arrival->body;
	}
	in->left = in->frame.bytes;
	return 0;
}

static int begin_data(struct peer *p, struct incoming *in)
{
	struct message *m;
	TAILQ_FOREACH(m, &p->receives, entry)
	if (m->stage == GRANTED && m->id == in->frame.id)
		break;
	if (!m || in->frame.bytes != m->request.bytes)
		return -1;
	m->stage = FILLING;
	in->message = m;
	in->into = m->data;
	in->left = in->frame.bytes;
	return 0;
}

static int granted(struct peer *p, const struct hspmd_frame *f)
{
	struct message *m;
	TAILQ_FOREACH(m, &p->sends, entry)
	if (m->id == f->id)
		break;
	if (!m || m->item.frame.kind != HSPMD_FRAME_REQUEST_TO_SEND || m->item.waiting)
		return -1;
	m->item.frame =
	        (struct hspmd_frame){ .magic = HSPMD_FRAME_MAGIC, .kind = HSPMD_FRAME_DATA, .bytes = m->request.bytes, .id = f->tag };
	m->item.body = m->data;
	m->item.body_bytes = m->request.bytes;
	hspmd_socket_connection_queue(&p->out, &m->item);
	return 0;
}

/* A frame has arrived, without its body. -1: it is not one of ours. */
static int begin_frame(struct socket_transport *t, struct incoming *in)
{
	const struct hspmd_frame *f = &in->frame;
	if (f->magic != HSPMD_FRAME_MAGIC || (in->peer < 0) != (f->kind == HSPMD_FRAME_HELLO))
		return -1;
	struct peer *p = in->peer < 0 ? NULL : &t->peers[in->peer];
	struct message *m;
	switch (f->kind) {
	case HSPMD_FRAME_HELLO:
		in->into = (char *)in->token;
		in->left = sizeof in->token;
		return f->bytes == sizeof in->token ? 0 : -1;
	case HSPMD_FRAME_EAGER:
		return begin_eager(p, in);
	case HSPMD_FRAME_REQUEST_TO_SEND:
		m = posted(p, f->tag);
		if (m)
			grant(t, p, m, f->id, f->bytes);
		else if (!add_arrival(p, f, true))
			return -1;
		return 0;
	case HSPMD_FRAME_CLEAR_TO_SEND:
		return granted(p, f);
	case HSPMD_FRAME_DATA:
		return begin_data(p, in);
	}
	return -1;
}

static int read_hello(struct socket_transport *t, struct incoming *in)
{
	uint64_t rank = in->frame.tag;
	if (memcmp(in->token, t->listener.token, sizeof in->token) || !t->peers || rank >= (uint64_t)t->base.options.size ||
	    t->peers[rank].in || t->peers[rank].in_closed)
		return -1;
	t->strangers--;
	in->peer = (int)rank;
	t->peers[rank].in = in;
	return 0;
}

/* A frame and its body have arrived. */
static int end_frame(struct socket_transport *t, struct incoming *in)
{
	in->got = 0;
	if (in->frame.kind == HSPMD_FRAME_HELLO)
		return read_hello(t, in);
	if (in->message)
		in->message->stage = FINISHED;
	if (in->arrival) {
		struct arrival *a = in->arrival;
		a->complete = true;
		if (a->claimed_by) {
			struct message *m = a->claimed_by;
			if (a->bytes == m->request.bytes && a->bytes)
				memcpy(m->data, a->body, a->bytes);
			m->stage = FINISHED;
			TAILQ_REMOVE(&t->peers[in->peer].arrivals, a, entry);
			free(a);
		}
	}
	in->message = NULL;
	in->arrival = NULL;
	return 0;
}

/* Read what has arrived, up to a limit so that one peer does not delay the others. */
static void read_incoming(struct socket_transport *t, struct incoming *in)
{
	for (int turn = 0; turn < 32; turn++) {
		bool head = in->got < sizeof in->frame;
		void *to = head ? (char *)&in->frame + in->got : in->into ? in->into : t->waste;
		size_t want = head ? sizeof in->frame - in->got : in->left;
		if (!head && !in->into && want > sizeof t->waste)
			want = sizeof t->waste;
		ssize_t n = want ? recv(in->fd, to, want, MSG_DONTWAIT) : 0;
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		if (n < 0 || (want && !n)) {
			close_incoming(t, in);
			return;
		}
		bool begun = false;
		if (head) {
			in->got += (size_t)n;
			if (in->got < sizeof in->frame)
				continue;
			begun = true;
		} else {
			in->left -= (size_t)n;
			if (in->into)
				in->into += n;
		}
		if ((begun && begin_frame(t, in)) || (!in->left && end_frame(t, in))) {
			hspmd_warn("socket transport: a connection that does not speak our protocol was closed");
			close_incoming(t, in);
			return;
		}
	}
}

/* ---- operations */

static void socket_progress(struct hspmd_transport *base)
{
	struct socket_transport *t = (struct socket_transport *)base;
	struct epoll_event events[EVENTS];
	int n = epoll_wait(t->epoll, events, EVENTS, 0);
	for (int i = 0; i < n; i++) {
		enum source *source = events[i].data.ptr;
		if (*source == LISTENER) {
			accept_all(t, t->listener.unix_fd);
			accept_all(t, t->listener.tcp_fd);
		} else if (*source == WAKER) {
			hspmd_transport_clear_wake(base);
		} else if (*source == OUTGOING) {
			hspmd_socket_connection_step(&((struct peer *)events[i].data.ptr)->out);
		} else {
			read_incoming(t, events[i].data.ptr);
		}
	}
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

static struct message *start(struct socket_transport *t, int to, bool sending, uint64_t tag, void *data, size_t bytes,
                             struct hspmd_error *err)
{
	if (hspmd_transport_check(&t->base, to, tag, err))
		return NULL;
	struct message *m = hspmd_calloc(1, sizeof *m);
	if (!m) {
		hspmd_fail_memory(err, "starting a message");
		return NULL;
	}
	m->request = (struct hspmd_request){ .peer = to, .sending = sending, .bytes = bytes, .tag = tag };
	m->data = data;
	m->id = ++t->last_id;
	need_link(t, &t->peers[to]);
	return m;
}

static int socket_send(struct hspmd_transport *base, int to, uint64_t tag, const void *data, size_t bytes, struct hspmd_request **r,
                       struct hspmd_error *err)
{
	struct socket_transport *t = (struct socket_transport *)base;
	struct message *m = start(t, to, true, tag, (void *)(uintptr_t)data, bytes, err);
	if (!m)
		return -1;
	struct peer *p = &t->peers[to];
	bool small = bytes <= EAGER_MAX;
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
	struct message *m = start(t, from, false, tag, data, bytes, err);
	if (!m)
		return -1;
	struct peer *p = &t->peers[from];
	struct arrival *a;
	TAILQ_INSERT_TAIL(&p->receives, m, entry);
	*r = &m->request;
	TAILQ_FOREACH(a, &p->arrivals, entry)
	if (a->tag == tag && !a->claimed_by)
		break;
	if (!a)
		return 0;
	m->received = a->bytes;
	if (!a->complete) {
		m->stage = FILLING;
		a->claimed_by = m;
		return 0;
	}
	if (a->asks) {
		grant(t, p, m, a->id, a->bytes);
	} else {
		if (bytes == a->bytes && bytes)
			memcpy(data, a->body, bytes);
		m->stage = FINISHED;
	}
	TAILQ_REMOVE(&p->arrivals, a, entry);
	free(a);
	return 0;
}

static int test_send(struct peer *p, const struct message *m, struct hspmd_error *err)
{
	const struct hspmd_socket_item *i = &m->item;
	if (i->frame.kind != HSPMD_FRAME_REQUEST_TO_SEND && i->written == sizeof i->frame + i->body_bytes)
		return 1;
	return p->out.state == HSPMD_CONNECTION_DEAD ? hspmd_fail(err, "%s", p->out.why) : 0;
}

static int test_receive(struct socket_transport *t, struct peer *p, const struct message *m, struct hspmd_error *err)
{
	if (m->stage == FINISHED)
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
	struct message *m = (struct message *)r;
	struct peer *p = &t->peers[r->peer];
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

static void close_peer(struct peer *p)
{
	struct message *m;
	struct arrival *a;
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
		close_incoming(t, TAILQ_FIRST(&t->incoming));
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
	t->waker_source = WAKER;
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
		struct peer *p = &t->peers[r];
		p->source = OUTGOING;
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
		if (hspmd_socket_target(&addresses[r], &t->peers[r].out.target, err))
			return hspmd_error_prefix(err, "%s", hspmd_transport_peer(base, r, peer, sizeof peer));
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
