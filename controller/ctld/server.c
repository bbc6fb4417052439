/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/ctld/server.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/address.h"
#include "common/clock.h"
#include "common/log.h"
#include "controller/ctld_client/protocol.h"

#define UNAUTHENTICATED_MAX 128 /* connections that have not proved who they are */
#define CONNECTIONS_MAX 16384
#define USER_MAX 2048 /* of one user, so that none can use up all */
#define UNSENT_MAX (4u << 20)
#define LOG_EVERY_S 10.0 /* one line about refused connections per interval, so that they do not fill the log */

enum role { STRANGER, CONTROLLER, VIEWER };

struct conn {
	struct ctld_server *server;
	struct conn *next, *prev;
	struct hspmd_stream *stream;
	uv_poll_t poll;
	enum role role;
	uint32_t job;
	uid_t uid; /* proved, unless the role is STRANGER */
	char nonce[HSPMD_NONCE_HEX];
	double since, heard;
	int messages; /* in the 10 s since `span` */
	double span;
	bool closing;
};

struct ctld_server {
	uv_loop_t *loop;
	const struct hspmd_auth *auth;
	const struct ctld_handlers *handlers;
	int fd;
	uv_poll_t poll;
	uv_timer_t sweep;
	struct conn *conns;
	struct ctld_counts counts;
	int total;
	double logged; /* time of the last line about a refused connection */
	int unlogged;  /* refused connections since */
	int handles;   /* not closed yet */
	bool closing;
};

/* ---- closing */

static void free_if_done(struct ctld_server *s)
{
	if (s->closing && !s->handles && !s->conns)
		free(s);
}

static void conn_closed(uv_handle_t *handle)
{
	struct conn *c = handle->data;
	struct ctld_server *s = c->server;
	hspmd_stream_destroy(c->stream);
	if (c->prev)
		c->prev->next = c->next;
	else
		s->conns = c->next;
	if (c->next)
		c->next->prev = c->prev;
	s->total--;
	free(c);
	free_if_done(s);
}

static void conn_close(struct conn *c, const char *why)
{
	struct ctld_server *s = c->server;
	if (c->closing)
		return;
	c->closing = true;
	uv_poll_stop(&c->poll);
	uv_close((uv_handle_t *)&c->poll, conn_closed);
	if (c->role == STRANGER)
		s->counts.unauthenticated--;
	if (c->role == CONTROLLER) {
		s->counts.controllers--;
		if (!s->closing)
			s->handlers->gone(s->handlers->context, c->job);
	}
	if (!why)
		return;
	s->counts.refused++;
	if (hspmd_now() - s->logged < LOG_EVERY_S) {
		s->unlogged++;
		return;
	}
	s->logged = hspmd_now();
	if (s->unlogged)
		hspmd_warn("a connection was closed: %s (and %d more since the last such line)", why, s->unlogged);
	else
		hspmd_warn("a connection was closed: %s", why);
	s->unlogged = 0;
}

static void on_ready(uv_poll_t *poll, int status, int events);

static void watch(struct conn *c)
{
	if (!c->closing)
		uv_poll_start(&c->poll, UV_READABLE | (hspmd_stream_has_unsent(c->stream) ? UV_WRITABLE : 0), on_ready);
}

static void conn_send(struct conn *c, const json_t *message)
{
	struct hspmd_error err;
	if (c->closing)
		return;
	if (hspmd_stream_send(c->stream, message, &err) < 0)
		conn_close(c, NULL);
	else
		watch(c);
}

static void refuse(struct conn *c, const char *why)
{
	json_t *m = json_pack("{s:s, s:s}", "type", "refused", "text", why);
	if (m)
		conn_send(c, m);
	json_decref(m);
	conn_close(c, why);
}

/* ---- handshake and messages */

static struct conn *controller_of(struct ctld_server *s, uint32_t job)
{
	for (struct conn *c = s->conns; c; c = c->next)
		if (c->role == CONTROLLER && c->job == job && !c->closing)
			return c;
	return NULL;
}

static int count_of(const struct ctld_server *s, uid_t uid)
{
	int n = 0;
	for (const struct conn *c = s->conns; c; c = c->next)
		n += c->role != STRANGER && c->uid == uid && !c->closing;
	return n;
}

static int admit(struct conn *c, json_t *content, uid_t uid, struct hspmd_error *err)
{
	struct ctld_server *s = c->server;
	const char *role = json_string_value(json_object_get(content, "role"));
	json_int_t job = json_integer_value(json_object_get(content, "job"));
	c->uid = uid;
	if (count_of(s, uid) >= USER_MAX)
		return hspmd_fail(err, "user %u has %d connections already", (unsigned)uid, USER_MAX);
	if (role && !strcmp(role, "viewer")) {
		c->role = VIEWER;
		return 0;
	}
	if (!role || strcmp(role, "controller") != 0)
		return hspmd_fail(err, "unknown role");
	if (job < 1 || job > UINT32_MAX)
		return hspmd_fail(err, "user %u names no job", (unsigned)uid);
	if (s->handlers->hello(s->handlers->context, (uint32_t)job, uid, err) < 0)
		return -1;
	/* A controller that connects again has lost its old connection, even if that has not been noticed here. */
	struct conn *old = controller_of(s, (uint32_t)job);
	if (old) {
		old->role = VIEWER; /* so that gone() is not called for it */
		s->counts.controllers--;
		conn_close(old, NULL);
	}
	c->role = CONTROLLER;
	c->job = (uint32_t)job;
	s->counts.controllers++;
	return 0;
}

static void hello(struct conn *c, json_t *message)
{
	struct ctld_server *s = c->server;
	struct hspmd_error err = { "" };
	uid_t uid = (uid_t)-1;
	json_t *content = hspmd_auth_open(s->auth, "hello", c->nonce, message, &uid, &err);
	const char *nonce = json_string_value(json_object_get(content, "nonce"));
	if (!content) {
		refuse(c, err.text);
		return;
	}
	json_t *own = json_pack("{s:i}", "hspmdctld", 1);
	json_t *welcome = nonce && own ? hspmd_auth_seal(s->auth, "welcome", nonce, own, &err) : NULL;
	if (!welcome || admit(c, content, uid, &err) < 0) {
		refuse(c, *err.text ? err.text : "the hello has no nonce");
	} else {
		s->counts.unauthenticated--;
		hspmd_stream_set_max_frame(c->stream, CTLD_FRAME);
		conn_send(c, welcome);
	}
	json_decref(own);
	json_decref(welcome);
	json_decref(content);
}

static bool too_many(struct conn *c)
{
	if (c->heard - c->span > 10) {
		c->span = c->heard;
		c->messages = 0;
	}
	return ++c->messages > 10 * CTLD_MESSAGES_S;
}

static void query(struct conn *c, json_t *message)
{
	struct hspmd_error err = { "out of memory" };
	json_t *answer = c->server->handlers->query(c->server->handlers->context, c->uid, message, &err);
	if (answer)
		conn_send(c, answer);
	else
		conn_close(c, err.text);
	json_decref(answer);
}

static void on_message(struct conn *c, json_t *message)
{
	struct hspmd_error err = { "" };
	c->heard = hspmd_now();
	if (too_many(c))
		conn_close(c, "too many messages");
	else if (c->role == STRANGER)
		hello(c, message);
	else if (c->role == VIEWER)
		query(c, message);
	else if (c->server->handlers->message(c->server->handlers->context, c->job, message, &err) < 0)
		conn_close(c, err.text);
}

static void on_ready(uv_poll_t *poll, int status, int events)
{
	struct conn *c = poll->data;
	struct hspmd_error err = { "" };
	if (status < 0) {
		conn_close(c, NULL);
		return;
	}
	if (events & UV_WRITABLE && hspmd_stream_flush(c->stream, &err) < 0) {
		conn_close(c, NULL);
		return;
	}
	if (events & UV_READABLE) {
		int rc = hspmd_stream_read(c->stream, &err);
		for (json_t *m; !c->closing && (m = hspmd_stream_next(c->stream));) {
			on_message(c, m);
			json_decref(m);
		}
		if (rc < 0)
			conn_close(c, c->role == STRANGER ? err.text : NULL);
		else if (rc == 0)
			conn_close(c, NULL);
	}
	watch(c);
}

/* ---- new connections */

static void challenge(struct conn *c)
{
	struct hspmd_error err;
	json_t *m = hspmd_auth_nonce(c->nonce, &err) == 0 ? json_pack("{s:s, s:s, s:i}", "type", "challenge", "nonce", c->nonce, "job", 0)
	                                                  : NULL;
	if (m)
		conn_send(c, m);
	else
		conn_close(c, "no nonce");
	json_decref(m);
}

/* An honest client proves its user within milliseconds. The oldest stranger is disconnected, so that strangers cannot keep others out. */
static void evict_stranger(struct ctld_server *s)
{
	struct conn *oldest = NULL;
	for (struct conn *c = s->conns; c; c = c->next)
		if (c->role == STRANGER && !c->closing)
			oldest = c;
	if (oldest)
		conn_close(oldest, "too many have not proved who they are");
}

static void take(struct ctld_server *s, int fd)
{
	struct hspmd_error err;
	int one = 1;
	if (s->total >= CONNECTIONS_MAX) {
		close(fd);
		s->counts.refused++;
		return;
	}
	if (s->counts.unauthenticated >= UNAUTHENTICATED_MAX)
		evict_stranger(s);
	struct conn *c = calloc(1, sizeof *c);
	if (!c || !(c->stream = hspmd_stream_create(fd, CTLD_HELLO_FRAME, UNSENT_MAX, &err))) {
		if (!c)
			close(fd);
		free(c);
		return;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
	if (uv_poll_init(s->loop, &c->poll, fd) < 0) {
		hspmd_stream_destroy(c->stream);
		free(c);
		return;
	}
	c->server = s;
	c->poll.data = c;
	c->since = c->heard = c->span = hspmd_now();
	c->next = s->conns;
	if (s->conns)
		s->conns->prev = c;
	s->conns = c;
	s->total++;
	s->counts.accepted++;
	s->counts.unauthenticated++;
	challenge(c);
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
	struct ctld_server *s = poll->data;
	(void)status;
	(void)events;
	for (int i = 0; i < 64; i++) { /* bounded, so that other handles are served in between */
		int fd = accept4(s->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd < 0)
			return;
		take(s, fd);
	}
}

static void on_sweep(uv_timer_t *timer)
{
	struct ctld_server *s = timer->data;
	double now = hspmd_now();
	for (struct conn *c = s->conns; c; c = c->next) {
		if (c->role == STRANGER && now - c->since > CTLD_HELLO_S)
			conn_close(c, "it did not prove who it is in time");
		else if (c->role == VIEWER && now - c->heard > CTLD_HELLO_S)
			conn_close(c, NULL);
		else if (c->role == CONTROLLER && now - c->heard > CTLD_HEARTBEAT_TIMEOUT_S)
			conn_close(c, "a controller has gone silent");
	}
}

/* ---- open and close */

static int listen_on(const char *text, struct hspmd_error *err)
{
	struct addrinfo *list = hspmd_address_resolve(text, CTLD_PORT, true, err);
	int fd = -1, one = 1;
	for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
		fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		if (fd < 0)
			continue;
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 1024) == 0)
			break;
		hspmd_fail_errno(err, "listening on %s", text);
		close(fd);
		fd = -1;
	}
	if (list)
		freeaddrinfo(list);
	return fd;
}

struct ctld_server *ctld_server_open(uv_loop_t *loop, const char *listen_text, const struct hspmd_auth *auth,
                                     const struct ctld_handlers *handlers, struct hspmd_error *err)
{
	struct ctld_server *s = calloc(1, sizeof *s);
	if (!s) {
		hspmd_fail_memory(err, "opening hspmdctld's socket");
		return NULL;
	}
	*s = (struct ctld_server){ .loop = loop, .auth = auth, .handlers = handlers, .logged = -LOG_EVERY_S };
	s->fd = listen_on(listen_text, err);
	if (s->fd < 0 || uv_poll_init(loop, &s->poll, s->fd) < 0) {
		if (s->fd >= 0)
			close(s->fd);
		free(s);
		return NULL;
	}
	uv_timer_init(loop, &s->sweep);
	s->poll.data = s->sweep.data = s;
	s->handles = 2;
	uv_poll_start(&s->poll, UV_READABLE, on_connection);
	uv_timer_start(&s->sweep, on_sweep, 1000, 1000);
	return s;
}

int ctld_server_port(const struct ctld_server *s)
{
	struct sockaddr_storage a;
	socklen_t size = sizeof a;
	if (getsockname(s->fd, (struct sockaddr *)&a, &size) < 0)
		return -1;
	return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port);
}

struct ctld_counts ctld_server_counts(const struct ctld_server *s)
{
	return s->counts;
}

int ctld_server_send(struct ctld_server *s, uint32_t job, const json_t *message)
{
	struct conn *c = controller_of(s, job);
	if (!c)
		return -1;
	conn_send(c, message);
	return c->closing ? -1 : 0;
}

void ctld_server_drop(struct ctld_server *s, uint32_t job, const char *why)
{
	struct conn *c = controller_of(s, job);
	if (c)
		refuse(c, why);
}

static void server_closed(uv_handle_t *handle)
{
	struct ctld_server *s = handle->data;
	s->handles--;
	free_if_done(s);
}

void ctld_server_close(struct ctld_server *s)
{
	if (!s)
		return;
	s->closing = true;
	for (struct conn *c = s->conns; c; c = c->next)
		conn_close(c, NULL);
	uv_poll_stop(&s->poll);
	uv_close((uv_handle_t *)&s->poll, server_closed);
	uv_close((uv_handle_t *)&s->sweep, server_closed);
	close(s->fd);
}
