/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/run/listener.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/log.h"
#include "common/stream.h"

#define HANDSHAKE_S 10  /* for a client to authenticate itself */
#define DRAIN_S 5       /* for the last messages to be sent */
#define UNPROVEN_MAX 64 /* unauthenticated connections at a time; if one more comes, the oldest is refused */
#define CONNECTIONS_MAX 16384
#define UNSENT_MAX (256u << 20)

struct run_connection {
	struct run_listener *listener;
	struct run_connection *next, **link;
	struct hspmd_stream *stream;
	uv_poll_t poll;
	uv_timer_t timer;
	int handles; /* not yet closed */
	bool accepted, closing, draining;
	char nonce[HSPMD_NONCE_HEX];
	char from[64];
	void *data;
};

struct run_listener {
	uv_loop_t *loop;
	uv_poll_t poll;
	int fd, number;
	bool loopback;
	const struct hspmd_auth *auth;
	char *job_id;
	struct run_listener_callbacks events;
	void *context;
	struct run_connection *connections;
	int unproven, count;
	bool closing;
};

/* ---- one connection */

static void listener_free(struct run_listener *p)
{
	if (!p->closing || p->connections || p->fd >= 0)
		return;
	free(p->job_id);
	free(p);
}

static void on_handle_closed(uv_handle_t *h)
{
	struct run_connection *peer = h->data;
	if (--peer->handles)
		return;
	struct run_listener *p = peer->listener;
	*peer->link = peer->next;
	if (peer->next)
		peer->next->link = peer->link;
	hspmd_stream_destroy(peer->stream);
	free(peer);
	listener_free(p);
}

void run_connection_close(struct run_connection *peer)
{
	if (peer->closing)
		return;
	peer->closing = true;
	peer->listener->count--;
	if (!peer->accepted)
		peer->listener->unproven--;
	uv_close((uv_handle_t *)&peer->poll, on_handle_closed);
	uv_close((uv_handle_t *)&peer->timer, on_handle_closed);
}

static void connection_lost(struct run_connection *peer, const char *why)
{
	bool told = peer->accepted && !peer->closing;
	run_connection_close(peer);
	if (told)
		peer->listener->events.closed(peer->listener->context, peer, why);
}

/* Refuses a client. Whether it receives the reason does not matter. */
static void refuse(struct run_connection *peer, const char *why)
{
	hspmd_warn("refused a connection from %s: %s", peer->from, why);
	json_t *m = json_pack("{s:s, s:s}", "type", "refused", "text", why);
	if (m)
		hspmd_stream_send(peer->stream, m, NULL);
	json_decref(m);
	run_connection_close(peer);
}

static void watch(struct run_connection *peer);

/* *content_out: the content of the hello, if it is accepted (new reference). */
static int check_hello(struct run_connection *peer, json_t *hello, json_t **content_out, struct hspmd_error *err)
{
	struct run_listener *p = peer->listener;
	uid_t who;
	json_t *content = hspmd_auth_open(p->auth, "hello", peer->nonce, hello, &who, err), *welcome = NULL, *sealed = NULL;
	int rc = content ? 0 : -1;
	const char *nonce = json_string_value(json_object_get(content, "nonce"));
	if (!rc && who != getuid() && who != 0)
		rc = hspmd_fail(err, "user %u is not the owner of this job", (unsigned)who);
	if (!rc && !nonce)
		rc = hspmd_fail(err, "the hello has no nonce");
	if (!rc)
		rc = p->events.hello(p->context, peer, content, who, &welcome, err);
	if (!rc && (!(sealed = hspmd_auth_seal(p->auth, "welcome", nonce, welcome, err)) || hspmd_stream_send(peer->stream, sealed, err)))
		rc = -1;
	json_decref(welcome);
	json_decref(sealed);
	if (rc)
		json_decref(content);
	else
		*content_out = content;
	return rc;
}

static void handshake(struct run_connection *peer, json_t *message)
{
	struct hspmd_error err;
	json_t *hello;
	if (check_hello(peer, message, &hello, &err)) {
		refuse(peer, err.text);
		return;
	}
	peer->accepted = true;
	peer->listener->unproven--;
	uv_timer_stop(&peer->timer);
	hspmd_stream_set_max_frame(peer->stream, HSPMD_WIRE_MAX);
	peer->listener->events.accepted(peer->listener->context, peer, hello);
	json_decref(hello);
}

static void take_messages(struct run_connection *peer)
{
	json_t *m;
	while (!peer->closing && (m = hspmd_stream_next(peer->stream))) {
		if (peer->accepted)
			peer->listener->events.message(peer->listener->context, peer, m);
		else
			handshake(peer, m);
		json_decref(m);
	}
}

static void on_ready(uv_poll_t *h, int status, int events)
{
	struct run_connection *peer = h->data;
	struct hspmd_error err = { "" };
	int rc = 1;
	if (status < 0)
		rc = hspmd_fail(&err, "the connection broke");
	if (rc == 1 && (events & UV_WRITABLE) && hspmd_stream_flush(peer->stream, &err))
		rc = -1;
	if (rc == 1 && (events & UV_READABLE))
		rc = hspmd_stream_read(peer->stream, &err);
	take_messages(peer);
	if (peer->closing)
		return;
	if (rc < 1 && !peer->accepted)
		refuse(peer, rc ? err.text : "it was closed without a hello");
	else if (rc < 1 || (peer->draining && !hspmd_stream_has_unsent(peer->stream)))
		connection_lost(peer, rc < 0 ? err.text : "the connection was closed");
	else
		watch(peer);
}

static void watch(struct run_connection *peer)
{
	uv_poll_start(&peer->poll, UV_READABLE | (hspmd_stream_has_unsent(peer->stream) ? UV_WRITABLE : 0), on_ready);
}

static void on_timeout(uv_timer_t *h)
{
	struct run_connection *peer = h->data;
	if (!peer->accepted)
		refuse(peer, "it did not prove itself in time");
	else
		connection_lost(peer, "it did not take the last words in time");
}

int run_connection_send(struct run_connection *peer, const json_t *message, struct hspmd_error *err)
{
	if (peer->closing)
		return hspmd_fail(err, "the connection is closed");
	if (hspmd_stream_send(peer->stream, message, err))
		return -1;
	watch(peer);
	return 0;
}

void run_connection_drain(struct run_connection *peer)
{
	peer->draining = true;
	if (!peer->closing && !hspmd_stream_has_unsent(peer->stream))
		run_connection_close(peer);
	else if (!peer->closing)
		uv_timer_start(&peer->timer, on_timeout, DRAIN_S * 1000, 0);
}

void run_connection_set_data(struct run_connection *peer, void *data)
{
	peer->data = data;
}

void *run_connection_data(const struct run_connection *peer)
{
	return peer->data;
}

/* ---- the listening socket */

static void challenge(struct run_connection *peer)
{
	struct hspmd_error err;
	json_t *m = NULL;
	if (hspmd_auth_nonce(peer->nonce, &err) ||
	    !(m = json_pack("{s:s, s:s, s:s}", "type", "challenge", "nonce", peer->nonce, "job", peer->listener->job_id)) ||
	    hspmd_stream_send(peer->stream, m, &err))
		run_connection_close(peer);
	else
		watch(peer);
	json_decref(m);
}

/* A node that is cut off is noticed after about ten seconds. */
static void keep_alive(int fd)
{
	int one = 1, idle = 5, interval = 2, count = 3, timeout_ms = 11000;
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* Refuses the oldest unauthenticated connection: else a few silent clients would keep all others out. */
static void evict_unproven(struct run_listener *p)
{
	struct run_connection *oldest = NULL;
	for (struct run_connection *peer = p->connections; peer; peer = peer->next)
		if (!peer->accepted && !peer->closing)
			oldest = peer;
	if (oldest)
		refuse(oldest, "there are too many unauthenticated connections");
}

static void accept_connection(struct run_listener *p, int fd, const struct sockaddr *from, socklen_t size)
{
	struct hspmd_error err;
	if (p->unproven >= UNPROVEN_MAX)
		evict_unproven(p);
	if (p->count >= CONNECTIONS_MAX) {
		hspmd_warn("refused a connection: there are too many");
		close(fd);
		return;
	}
	keep_alive(fd);
	struct hspmd_stream *s = hspmd_stream_create(fd, HSPMD_HELLO_MAX, UNSENT_MAX, &err);
	struct run_connection *peer = s ? calloc(1, sizeof *peer) : NULL;
	if (!peer) {
		hspmd_stream_destroy(s);
		return;
	}
	peer->listener = p;
	peer->stream = s;
	if (getnameinfo(from, size, peer->from, sizeof peer->from, NULL, 0, NI_NUMERICHOST))
		snprintf(peer->from, sizeof peer->from, "an unknown address");
	uv_timer_init(p->loop, &peer->timer);
	if (uv_poll_init(p->loop, &peer->poll, hspmd_stream_fd(s))) {
		hspmd_stream_destroy(s);
		peer->stream = NULL;
		peer->handles = 1;
		peer->timer.data = peer;
		peer->link = &peer->next; /* it is in no list */
		peer->next = NULL;
		peer->closing = true;
		uv_close((uv_handle_t *)&peer->timer, on_handle_closed);
		return;
	}
	peer->handles = 2;
	peer->poll.data = peer->timer.data = peer;
	peer->next = p->connections;
	peer->link = &p->connections;
	if (p->connections)
		p->connections->link = &peer->next;
	p->connections = peer;
	p->unproven++;
	p->count++;
	uv_timer_start(&peer->timer, on_timeout, HANDSHAKE_S * 1000, 0);
	challenge(peer);
}

static void on_connection(uv_poll_t *h, int status, int events)
{
	struct run_listener *p = h->data;
	(void)status, (void)events;
	for (;;) {
		struct sockaddr_storage from;
		socklen_t size = sizeof from;
		int fd = accept4(p->fd, (struct sockaddr *)&from, &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0)
			return;
		accept_connection(p, fd, (struct sockaddr *)&from, size);
	}
}

static int listen_on(int family, int port, bool loopback)
{
	struct sockaddr_storage a = { 0 };
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1, zero = 0;
	socklen_t size;
	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (family == AF_INET6) {
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&a;
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
		*in6 = (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = in6addr_any };
		size = sizeof *in6;
	} else {
		struct sockaddr_in *in = (struct sockaddr_in *)&a;
		*in = (struct sockaddr_in){ .sin_family = AF_INET,
			                    .sin_port = htons((uint16_t)port),
			                    .sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY) };
		size = sizeof *in;
	}
	if (!bind(fd, (struct sockaddr *)&a, size) && !listen(fd, 1024))
		return fd;
	int saved = errno;
	close(fd);
	errno = saved;
	return -1;
}

static int bound_port(int fd)
{
	struct sockaddr_storage a;
	socklen_t size = sizeof a;
	if (getsockname(fd, (struct sockaddr *)&a, &size))
		return -1;
	return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port);
}

struct run_listener *run_listener_open(uv_loop_t *loop, int port, bool loopback, const struct hspmd_auth *auth, const char *job_id,
                                       const struct run_listener_callbacks *events, void *context, struct hspmd_error *err)
{
	int fd = loopback ? -1 : listen_on(AF_INET6, port, false);
	if (fd < 0)
		fd = listen_on(AF_INET, port, loopback);
	if (fd < 0) {
		hspmd_fail_errno(err, "listening on port %d", port);
		return NULL;
	}
	struct run_listener *p = calloc(1, sizeof *p);
	if (!p || !(p->job_id = strdup(job_id)) || uv_poll_init(loop, &p->poll, fd)) {
		free(p ? p->job_id : NULL);
		free(p);
		close(fd);
		hspmd_fail(err, "cannot watch the listening socket");
		return NULL;
	}
	p->loop = loop;
	p->fd = fd;
	p->number = bound_port(fd);
	p->loopback = loopback;
	p->auth = auth;
	p->events = *events;
	p->context = context;
	p->poll.data = p;
	uv_poll_start(&p->poll, UV_READABLE, on_connection);
	return p;
}

static void on_listener_closed(uv_handle_t *h)
{
	struct run_listener *p = h->data;
	close(p->fd);
	p->fd = -1;
	listener_free(p);
}

void run_listener_close(struct run_listener *p)
{
	if (!p)
		return;
	p->closing = true;
	for (struct run_connection *peer = p->connections; peer; peer = peer->next)
		run_connection_close(peer);
	uv_close((uv_handle_t *)&p->poll, on_listener_closed);
}

static int add_address(json_t *list, const char *host, int port)
{
	char *text = hspmd_asprintf(strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, port);
	int rc = text ? json_array_append_new(list, json_string(text)) : -1;
	free(text);
	return rc;
}

json_t *run_listener_addresses(const struct run_listener *p)
{
	json_t *list = json_array();
	char host[256];
	struct ifaddrs *all = NULL;
	if (!list)
		return NULL;
	if (!p->loopback && !getifaddrs(&all)) {
		for (struct ifaddrs *i = all; i; i = i->ifa_next) {
			if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK))
				continue;
			int family = i->ifa_addr->sa_family;
			if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr))
				continue;
			socklen_t size = family == AF_INET    ? sizeof(struct sockaddr_in)
			                 : family == AF_INET6 ? sizeof(struct sockaddr_in6)
			                                      : 0;
			if (size && !getnameinfo(i->ifa_addr, size, host, sizeof host, NULL, 0, NI_NUMERICHOST))
				add_address(list, host, p->number);
		}
		freeifaddrs(all);
		if (!gethostname(host, sizeof host))
			add_address(list, host, p->number);
	}
	add_address(list, "127.0.0.1", p->number);
	return list;
}
