/* SPDX-License-Identifier: Apache-2.0 */
/* The receiving half of the socket transport: connections that peers have opened to this member, and the frames that arrive on them. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/log.h"
#include "runtime/comm/transport_socket_internal.h"

/* Anybody may connect. A peer says HELLO at once. */
#define ACCEPTS 64      /* at a time, so that they can be limited */
#define STRANGERS 64    /* connections without a HELLO frame at a time, beside one per peer */
#define STRANGER_S 10.0 /* for the HELLO frame to come; or a quarter of the transport's own limit, if that is less */
#define SWEEP_S 0.5

void socket_close_incoming(struct socket_transport *t, struct socket_incoming *in)
{
	close(in->fd);
	TAILQ_REMOVE(&t->incoming, in, entry);
	if (in->peer < 0) {
		t->strangers--;
	} else {
		struct socket_peer *p = &t->peers[in->peer];
		p->in = NULL;
		p->in_closed = true;
		struct socket_arrival *a = in->arrival;
		/* The rest of this message will not arrive: its receive must fail and not finish. */
		if (in->message)
			in->message->stage = SOCKET_POSTED;
		if (a && a->claimed_by)
			a->claimed_by->stage = SOCKET_POSTED;
		if (a) {
			TAILQ_REMOVE(&p->arrivals, a, entry);
			free(a);
		}
	}
	free(in);
}

void socket_accept_all(struct socket_transport *t, int listener)
{
	if (listener < 0)
		return;
	for (int i = 0; i < ACCEPTS; i++) {
		int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd < 0)
			return;
		struct socket_incoming *in = hspmd_calloc(1, sizeof *in);
		struct epoll_event e = { .events = EPOLLIN, .data.ptr = in };
		if (!in || epoll_ctl(t->epoll, EPOLL_CTL_ADD, fd, &e)) {
			hspmd_warn("socket transport: a connection had to be refused: %s", strerror(errno));
			free(in);
			close(fd);
			continue;
		}
		in->source = SOCKET_INCOMING;
		in->fd = fd;
		in->peer = -1;
		in->deadline = hspmd_now() + fmin(STRANGER_S, t->base.options.timeout_s / 4);
		t->strangers++;
		TAILQ_INSERT_TAIL(&t->incoming, in, entry);
	}
}

void socket_limit_strangers(struct socket_transport *t)
{
	int most = STRANGERS + t->base.options.size;
	if (!t->strangers || (t->strangers <= most && hspmd_now() < t->sweep_at))
		return;
	double now = hspmd_now();
	t->sweep_at = now + SWEEP_S;
	struct socket_incoming *next;
	for (struct socket_incoming *in = TAILQ_FIRST(&t->incoming); in; in = next) {
		next = TAILQ_NEXT(in, entry);
		int before = t->strangers;
		if (in->peer >= 0 || (before <= most && now < in->deadline))
			continue;
		socket_read_incoming(t, in); /* its HELLO may have arrived */
		if (t->strangers == before)
			socket_close_incoming(t, in);
	}
}

void socket_need_connection(struct socket_transport *t, struct socket_peer *p)
{
	if (p->out.state != HSPMD_CONNECTION_UNUSED)
		return;
	hspmd_socket_connection_connect(&p->out, t->base.options.rank);
	t->connecting = true;
}

void socket_grant(struct socket_transport *t, struct socket_peer *p, struct socket_message *m, uint64_t send_id, uint64_t bytes)
{
	m->received = bytes;
	if (bytes != m->request.bytes) {
		m->stage = SOCKET_FINISHED;
		return;
	}
	m->stage = SOCKET_GRANTED;
	m->item.frame = (struct hspmd_frame){ .magic = HSPMD_FRAME_MAGIC, .kind = HSPMD_FRAME_CLEAR_TO_SEND, .tag = m->id, .id = send_id };
	socket_need_connection(t, p);
	hspmd_socket_connection_queue(&p->out, &m->item);
}

static struct socket_message *posted(struct socket_peer *p, uint64_t tag)
{
	struct socket_message *m;
	TAILQ_FOREACH(m, &p->receives, entry)
	if (m->stage == SOCKET_POSTED && m->request.tag == tag)
		return m;
	return NULL;
}

static struct socket_arrival *add_arrival(struct socket_peer *p, const struct hspmd_frame *f, bool asks)
{
	struct socket_arrival *a = malloc(sizeof *a + (asks ? 0 : f->bytes));
	if (!a)
		return NULL;
	*a = (struct socket_arrival){ .tag = f->tag, .id = f->id, .bytes = f->bytes, .asks = asks, .complete = asks };
	TAILQ_INSERT_TAIL(&p->arrivals, a, entry);
	return a;
}

static int begin_eager(struct socket_peer *p, struct socket_incoming *in)
{
	if (in->frame.bytes > SOCKET_EAGER_MAX)
		return -1;
	struct socket_message *m = posted(p, in->frame.tag);
	if (m) {
		m->received = in->frame.bytes;
		m->stage = SOCKET_FILLING;
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

static int begin_data(struct socket_peer *p, struct socket_incoming *in)
{
	struct socket_message *m;
	TAILQ_FOREACH(m, &p->receives, entry)
	if (m->stage == SOCKET_GRANTED && m->id == in->frame.id)
		break;
	if (!m || in->frame.bytes != m->request.bytes)
		return -1;
	m->stage = SOCKET_FILLING;
	in->message = m;
	in->into = m->data;
	in->left = in->frame.bytes;
	return 0;
}

static int granted(struct socket_peer *p, const struct hspmd_frame *f)
{
	struct socket_message *m;
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
static int begin_frame(struct socket_transport *t, struct socket_incoming *in)
{
	const struct hspmd_frame *f = &in->frame;
	if (f->magic != HSPMD_FRAME_MAGIC || (in->peer < 0) != (f->kind == HSPMD_FRAME_HELLO))
		return -1;
	struct socket_peer *p = in->peer < 0 ? NULL : &t->peers[in->peer];
	struct socket_message *m;
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
			socket_grant(t, p, m, f->id, f->bytes);
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

static int read_hello(struct socket_transport *t, struct socket_incoming *in)
{
	uint64_t rank = in->frame.tag;
	unsigned differ = 0; /* in constant time */
	for (size_t i = 0; i < sizeof in->token; i++)
		differ |= in->token[i] ^ t->listener.token[i];
	if (differ || !t->peers || rank >= (uint64_t)t->base.options.size || t->peers[rank].in || t->peers[rank].in_closed)
		return -1;
	t->strangers--;
	in->peer = (int)rank;
	t->peers[rank].in = in;
	return 0;
}

/* A frame and its body have arrived. */
static int end_frame(struct socket_transport *t, struct socket_incoming *in)
{
	in->got = 0;
	if (in->frame.kind == HSPMD_FRAME_HELLO)
		return read_hello(t, in);
	if (in->message)
		in->message->stage = SOCKET_FINISHED;
	if (in->arrival) {
		struct socket_arrival *a = in->arrival;
		a->complete = true;
		if (a->claimed_by) {
			struct socket_message *m = a->claimed_by;
			if (a->bytes == m->request.bytes && a->bytes)
				memcpy(m->data, a->body, a->bytes);
			m->stage = SOCKET_FINISHED;
			TAILQ_REMOVE(&t->peers[in->peer].arrivals, a, entry);
			free(a);
		}
	}
	in->message = NULL;
	in->arrival = NULL;
	return 0;
}

/* Read what has arrived, up to a limit so that one peer does not delay the others. */
void socket_read_incoming(struct socket_transport *t, struct socket_incoming *in)
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
			socket_close_incoming(t, in);
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
			socket_close_incoming(t, in);
			return;
		}
	}
}
