/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/server/server.h"

#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/log_limit.h"
#include "common/stream.h"
#include "common/tcp.h"
#include "controller/server/listen_internal.h"
#include "controller/server/proof_internal.h"
#include "controller/server/strangers_internal.h"

#define DRAIN_S 5.0  /* for the last messages to be sent */
#define SPAN_S 10.0  /* over which the rate of messages is averaged */
#define SWEEP_MS 500 /* between two looks at deadlines */
#define ACCEPTS 64   /* connections taken at a time, so that others are served in between */

/* Kinds of refusals, each with a limit on log lines of its own: a flood of one kind does not hide another. */
enum refusal {
	REFUSAL_CROWDED,
	REFUSAL_NOT_YET, /* REFUSAL_CROWDED as long as that is none to warn of */
	REFUSAL_UNCHECKED,
	REFUSAL_SILENT,
	REFUSAL_GARBLED,
	REFUSAL_UNPROVEN,
	REFUSAL_UNWANTED,
	REFUSAL_CUT,
	REFUSALS
};

struct hspmd_peer {
	struct hspmd_server *server;
	struct hspmd_peer *next, **link;
	struct hspmd_stream *stream;
	uv_poll_t poll;
	struct stranger stranger;
	struct proof *proof; /* its hello is being checked */
	bool accepted, closing, draining;
	uid_t uid; /* proved, if accepted */
	char nonce[HSPMD_NONCE_HEX];
	char from[64];
	double deadline;  /* for the hello, of silence, or for the last messages; INFINITY: none */
	double silence_s; /* INFINITY: any */
	double span;      /* start of the time in which `messages` came */
	int messages;
	void *data;
};

struct hspmd_server {
	uv_loop_t *loop;
	struct hspmd_server_options o;
	char *job;
	int fd;
	uv_poll_t poll;
	uv_timer_t sweep;
	struct hspmd_peer *peers;            /* also those that are being closed */
	struct strangers strangers, proving; /* before their hello; while it is being checked */
	struct proofs proofs;
	struct hspmd_auth *auth; /* a copy, which the threads that check hellos use */
	struct hspmd_server_counts counts;
	struct hspmd_log_limit log_limits[REFUSALS];
	double crowd_since, crowded; /* first and last refusal for lack of room, with no long time between two */
	int handles; /* not closed yet */
	bool closing, paused;
};

/* ---- how connections end */

static void free_if_done(struct hspmd_server *s)
{
	if (!s->closing || s->handles || s->peers || s->proofs.working)
		return;
	json_decref(s->o.welcome);
	hspmd_auth_destroy(s->auth);
	free(s->job);
	free(s);
}

static void on_peer_closed(uv_handle_t *handle)
{
	struct hspmd_peer *peer = handle->data;
	struct hspmd_server *s = peer->server;
	*peer->link = peer->next;
	if (peer->next)
		peer->next->link = peer->link;
	hspmd_stream_destroy(peer->stream);
	free(peer);
	free_if_done(s);
}

/* Whatever it was waiting for, it is no stranger any more. */
static void forget_stranger(struct hspmd_peer *peer)
{
	struct hspmd_server *s = peer->server;
	strangers_remove(peer->proof ? &s->proving : &s->strangers, &peer->stranger);
	if (peer->proof)
		proof_abandon(peer->proof);
	peer->proof = NULL;
}

void hspmd_peer_close(struct hspmd_peer *peer)
{
	if (peer->closing)
		return;
	peer->closing = true;
	peer->server->counts.peers--;
	forget_stranger(peer);
	uv_close((uv_handle_t *)&peer->poll, on_peer_closed);
}

/* Ends a connection that its owner has not ended. */
static void lose(struct hspmd_peer *peer, const char *why)
{
	struct hspmd_server *s = peer->server;
	bool notify = peer->accepted && !peer->closing && !peer->draining;
	hspmd_peer_close(peer);
	if (notify)
		s->o.events.closed(s->o.context, peer, why);
}

/* Returns true if clients have lacked room for longer than it takes to let in all agents of a large job, which call at one moment. Those
 * that are refused call again. */
static bool crowd_lasts(struct hspmd_server *s, double now)
{
	if (!(s->crowd_since > 0) || now - s->crowded > s->o.limits.hello_s)
		s->crowd_since = now;
	s->crowded = now;
	return now - s->crowd_since > s->o.limits.hello_s;
}

static void count_refusal(struct hspmd_server *s, enum refusal kind, const char *from, const char *why)
{
	uint64_t dropped;
	double now = hspmd_now();
	kind = kind == REFUSAL_CROWDED && !crowd_lasts(s, now) ? REFUSAL_NOT_YET : kind;
	s->counts.refused++;
	if (!hspmd_log_limit_allows(&s->log_limits[kind], now, &dropped))
		return;
	enum hspmd_log_level level = kind == REFUSAL_NOT_YET ? HSPMD_LOG_INFO : HSPMD_LOG_WARNING;
	const char *what = kind == REFUSAL_CUT       ? "closed the connection from"
	                   : kind == REFUSAL_NOT_YET ? "no room yet for a connection from"
	                                             : "refused a connection from";
	if (dropped)
		hspmd_log(level, "%s %s: %s (and %llu more like it since the last such line)", what, from, why,
		          (unsigned long long)dropped);
	else
		hspmd_log(level, "%s %s: %s", what, from, why);
}

/* Whether the peer receives the reason does not matter. */
static void refuse(struct hspmd_peer *peer, enum refusal kind, const char *why)
{
	json_t *again = kind == REFUSAL_CROWDED || kind == REFUSAL_UNCHECKED ? json_true() : NULL;
	json_t *m = peer->closing ? NULL : json_pack("{s:s, s:s, s:o*}", "type", "refused", "text", why, "again", again);
	if (!m)
		return;
	count_refusal(peer->server, kind, peer->from, why);
	hspmd_stream_send(peer->stream, m, NULL);
	json_decref(m);
	hspmd_peer_close(peer);
}

void hspmd_peer_refuse(struct hspmd_peer *peer, const char *why)
{
	refuse(peer, REFUSAL_UNWANTED, why);
}

/* Ends the connection of a peer that has misbehaved after it was accepted. */
static void cut(struct hspmd_peer *peer, const char *why)
{
	if (peer->closing)
		return;
	count_refusal(peer->server, REFUSAL_CUT, peer->from, why);
	lose(peer, why);
}

/* ---- handshake and messages */

static int count_of(const struct hspmd_server *s, uid_t uid)
{
	int n = 0;
	for (const struct hspmd_peer *p = s->peers; p; p = p->next)
		n += p->accepted && !p->closing && p->uid == uid;
	return n;
}

static void accept_peer(struct hspmd_peer *peer, const struct proof *p)
{
	struct hspmd_server *s = peer->server;
	struct hspmd_error err;
	peer->accepted = true;
	peer->uid = p->who;
	peer->deadline = hspmd_now() + peer->silence_s;
	hspmd_stream_set_max_frame(peer->stream, s->o.limits.message_bytes);
	if (hspmd_stream_send(peer->stream, p->answer, &err) ||
	    hspmd_auth_sign_stream(s->auth, peer->stream, true, peer->nonce, p->hello, p->welcome, &err))
		lose(peer, err.text);
	json_object_del(p->hello, "key"); /* nobody else needs to know it */
	if (!peer->closing && s->o.events.accepted)
		s->o.events.accepted(s->o.context, peer, p->hello);
}

static void watch(struct hspmd_peer *peer);

static void on_proof(void *context, struct proof *p)
{
	struct hspmd_peer *peer = context;
	struct hspmd_server *s = peer->server;
	struct hspmd_error err = p->err;
	forget_stranger(peer);
	int status = p->status;
	if (!status && count_of(s, p->who) >= s->o.limits.user_peers)
		status = hspmd_fail(&err, "user %u has %d connections already", (unsigned)p->who, s->o.limits.user_peers);
	else if (!status)
		status = s->o.events.hello(s->o.context, peer, p->hello, p->who, &err);
	if (status)
		refuse(peer, p->status == -1 ? REFUSAL_UNPROVEN : REFUSAL_UNWANTED, err.text);
	else if (!peer->closing)
		accept_peer(peer, p);
	watch(peer);
}

static void on_no_proofs(struct proofs *all)
{
	free_if_done((struct hspmd_server *)((char *)all - offsetof(struct hspmd_server, proofs)));
}

/* Has the hello checked, unless as many others are being checked already as may be. */
static void handshake(struct hspmd_peer *peer, json_t *hello)
{
	struct hspmd_server *s = peer->server;
	if (peer->proof) {
		refuse(peer, REFUSAL_GARBLED, "a second message before the welcome");
		return;
	}
	if (strangers_move(&s->strangers, &s->proving, &peer->stranger, &s->o.limits)) {
		refuse(peer, REFUSAL_CROWDED, "too many others are being authenticated");
		return;
	}
	peer->proof = proof_start(&s->proofs, peer->nonce, hello, peer);
	if (!peer->proof) {
		strangers_remove(&s->proving, &peer->stranger);
		refuse(peer, REFUSAL_CROWDED, "out of memory");
	}
}

static bool too_many_messages(struct hspmd_peer *peer, double now)
{
	if (now - peer->span > SPAN_S) {
		peer->span = now;
		peer->messages = 0;
	}
	int most = peer->server->o.limits.messages_s;
	return most && ++peer->messages > SPAN_S * most;
}

static void receive(struct hspmd_peer *peer, json_t *message)
{
	struct hspmd_server *s = peer->server;
	struct hspmd_error err = { "" };
	double now = hspmd_now();
	if (!peer->accepted) {
		handshake(peer, message);
		return;
	}
	peer->deadline = now + peer->silence_s;
	if (too_many_messages(peer, now))
		cut(peer, "too many messages");
	else if (s->o.events.message(s->o.context, peer, message, &err))
		cut(peer, err.text);
}

static void on_ready(uv_poll_t *h, int status, int events);

static void watch(struct hspmd_peer *peer)
{
	if (!peer->closing)
		uv_poll_start(&peer->poll, UV_READABLE | (hspmd_stream_has_unsent(peer->stream) ? UV_WRITABLE : 0), on_ready);
}

/* Handles what has arrived. `rc`: as hspmd_stream_read() returns, and its err; 0 also for a connection that broke. */
static void take_messages(struct hspmd_peer *peer, int rc, const struct hspmd_error *err)
{
	json_t *m;
	while (!peer->closing && (m = hspmd_stream_next(peer->stream))) {
		if (!peer->draining)
			receive(peer, m);
		json_decref(m);
	}
	if (peer->closing)
		return;
	if (rc < 0 && !peer->accepted)
		refuse(peer, REFUSAL_GARBLED, err->text);
	else if (rc < 1)
		lose(peer, *err->text ? err->text : "the connection was closed");
	else if (peer->draining && !hspmd_stream_has_unsent(peer->stream))
		hspmd_peer_close(peer);
	else
		watch(peer);
}

static void on_ready(uv_poll_t *h, int status, int events)
{
	struct hspmd_peer *peer = h->data;
	struct hspmd_error err = { "" };
	int rc = 1;
	if (status < 0) {
		hspmd_fail(&err, "the connection broke");
		rc = 0;
	}
	if (rc == 1 && (events & UV_WRITABLE) && hspmd_stream_flush(peer->stream, &err))
		rc = 0;
	if (rc == 1 && (events & UV_READABLE))
		rc = hspmd_stream_read(peer->stream, &err);
	take_messages(peer, rc, &err);
}

/* ---- what the owner does with a peer */

int hspmd_peer_send(struct hspmd_peer *peer, const json_t *message, struct hspmd_error *err)
{
	char *frame;
	size_t size;
	if (hspmd_wire_encode(message, &frame, &size, err))
		return -1;
	int rc = hspmd_peer_send_frame(peer, frame, size, err);
	free(frame);
	return rc;
}

int hspmd_peer_send_frame(struct hspmd_peer *peer, const char *frame, size_t size, struct hspmd_error *err)
{
	if (peer->closing)
		return hspmd_fail(err, "the connection is closed");
	if (hspmd_stream_send_frame(peer->stream, frame, size, err))
		return -1;
	watch(peer);
	return 0;
}

void hspmd_peer_drain(struct hspmd_peer *peer)
{
	peer->draining = true;
	peer->deadline = hspmd_now() + DRAIN_S;
	if (!peer->closing && !hspmd_stream_has_unsent(peer->stream))
		hspmd_peer_close(peer);
}

void hspmd_peer_limit_silence(struct hspmd_peer *peer, double seconds)
{
	peer->silence_s = seconds;
	peer->deadline = hspmd_now() + seconds;
}

void hspmd_peer_set_data(struct hspmd_peer *peer, void *data)
{
	peer->data = data;
}

void *hspmd_peer_data(const struct hspmd_peer *peer)
{
	return peer->data;
}

/* ---- new connections */

static void challenge(struct hspmd_peer *peer)
{
	struct hspmd_error err;
	json_t *m = hspmd_auth_nonce(peer->nonce, &err)
	                    ? NULL
	                    : json_pack("{s:s, s:s, s:s*}", "type", "challenge", "nonce", peer->nonce, "job", peer->server->job);
	if (!m || hspmd_auth_add_version(m, &err) || hspmd_stream_send(peer->stream, m, &err))
		hspmd_peer_close(peer);
	else
		watch(peer);
	json_decref(m);
}

/* Makes a stranger give up its place, unless its hello has arrived meanwhile. In each case there is one stranger less. */
static void evict(struct hspmd_peer *peer)
{
	struct hspmd_error err = { "" };
	take_messages(peer, hspmd_stream_read(peer->stream, &err), &err);
	if (!peer->accepted && !peer->proof)
		refuse(peer, REFUSAL_CROWDED, "there are too many unauthenticated connections");
}

/* IPv4 addresses that a socket of IPv6 has accepted are shown as what they are. */
static void address_text(const struct sockaddr *from, socklen_t size, char *text, socklen_t text_size)
{
	if (getnameinfo(from, size, text, text_size, NULL, 0, NI_NUMERICHOST))
		snprintf(text, text_size, "an unknown address");
	else if (!strncmp(text, "::ffff:", 7) && strchr(text, '.'))
		memmove(text, text + 7, strlen(text + 7) + 1);
}

static struct hspmd_peer *peer_create(struct hspmd_server *s, int fd, const struct sockaddr *from, socklen_t size)
{
	struct hspmd_error err;
	struct hspmd_stream *stream = hspmd_stream_create(fd, s->o.limits.hello_bytes, s->o.limits.unsent_bytes, &err);
	struct hspmd_peer *peer = stream ? calloc(1, sizeof *peer) : NULL;
	if (!peer) {
		hspmd_stream_destroy(stream);
		return NULL;
	}
	*peer = (struct hspmd_peer){ .server = s, .stream = stream, .silence_s = INFINITY, .span = hspmd_now(), .stranger.peer = peer };
	peer->poll.data = peer;
	peer->deadline = peer->span + s->o.limits.hello_s;
	address_text(from, size, peer->from, sizeof peer->from);
	if (!strangers_add(&s->strangers, &peer->stranger, from)) {
		if (!uv_poll_init(s->loop, &peer->poll, fd))
			return peer;
		strangers_remove(&s->strangers, &peer->stranger);
	}
	hspmd_stream_destroy(stream);
	free(peer);
	return NULL;
}

static void take_connection(struct hspmd_server *s, int fd, const struct sockaddr *from, socklen_t size)
{
	struct hspmd_peer *in_the_way;
	while ((in_the_way = strangers_in_the_way(&s->strangers, from, &s->o.limits)))
		evict(in_the_way);
	while (s->counts.peers >= s->o.limits.peers && (in_the_way = strangers_of_largest_source(&s->strangers)))
		evict(in_the_way);
	if (s->counts.peers >= s->o.limits.peers) {
		char text[sizeof((struct hspmd_peer *)NULL)->from];
		address_text(from, size, text, sizeof text);
		count_refusal(s, REFUSAL_CROWDED, text, "there are too many connections");
		close(fd);
		return;
	}
	hspmd_tcp_keep_alive(fd, s->o.limits.network_s);
	struct hspmd_peer *peer = peer_create(s, fd, from, size);
	if (!peer)
		return;
	peer->next = s->peers;
	peer->link = &s->peers;
	if (s->peers)
		s->peers->link = &peer->next;
	s->peers = peer;
	s->counts.peers++;
	s->counts.accepted++;
	challenge(peer);
}

/* Descriptors or the kernel's memory are used up. A stranger gives back what it has; without one, connections wait. Linux reports missing
 * descriptors even if nobody calls. */
static void make_room(struct hspmd_server *s, int error)
{
	struct pollfd p = { .fd = s->fd, .events = POLLIN };
	struct hspmd_peer *in_the_way = strangers_of_largest_source(&s->strangers);
	if (poll(&p, 1, 0) <= 0)
		return;
	if (in_the_way) {
		evict(in_the_way);
		return;
	}
	count_refusal(s, REFUSAL_CROWDED, "somebody", strerror(error));
	uv_poll_stop(&s->poll);
	s->paused = true;
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
	struct hspmd_server *s = poll->data;
	(void)status, (void)events;
	for (int i = 0; i < ACCEPTS; i++) {
		struct sockaddr_storage from;
		socklen_t size = sizeof from;
		int fd = accept4(s->fd, (struct sockaddr *)&from, &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0)
			take_connection(s, fd, (struct sockaddr *)&from, size);
		else if (errno == EAGAIN || errno == EWOULDBLOCK)
			return;
		else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			make_room(s, errno);
			return;
		}
	}
}

static void on_deadline(struct hspmd_peer *peer)
{
	if (peer->proof)
		refuse(peer, REFUSAL_UNCHECKED, "it could not be authenticated in time: munged hangs, or is busy");
	else if (!peer->accepted)
		refuse(peer, REFUSAL_SILENT, "it did not prove itself in time");
	else if (peer->draining)
		hspmd_peer_close(peer);
	else
		cut(peer, "it has been silent for too long");
}

static void on_sweep(uv_timer_t *timer)
{
	struct hspmd_server *s = timer->data;
	double now = hspmd_now();
	for (struct hspmd_peer *peer = s->peers; peer; peer = peer->next)
		if (!peer->closing && now > peer->deadline)
			on_deadline(peer);
	if (s->paused)
		uv_poll_start(&s->poll, UV_READABLE, on_connection);
	s->paused = false;
}

/* ---- open and close */

struct hspmd_server *hspmd_server_open(uv_loop_t *loop, const struct hspmd_server_options *options, struct hspmd_error *err)
{
	struct hspmd_server *s = calloc(1, sizeof *s);
	if (!s || (options->job && !(s->job = strdup(options->job))) || !(s->auth = hspmd_auth_copy(options->auth, err))) {
		if (s)
			free(s->job);
		free(s);
		hspmd_fail_memory(err, "opening a port");
		return NULL;
	}
	s->fd = server_listen(options->listen, options->default_port, err);
	int rc = s->fd < 0 ? -1 : uv_poll_init(loop, &s->poll, s->fd) ? hspmd_fail(err, "cannot watch the listening socket") : 0;
	if (rc) {
		if (s->fd >= 0)
			close(s->fd);
		hspmd_auth_destroy(s->auth);
		free(s->job);
		free(s);
		return NULL;
	}
	s->loop = loop;
	s->o = *options;
	json_incref(s->o.welcome);
	s->proofs = (struct proofs){ .loop = loop,
		                     .auth = s->auth,
		                     .welcome = s->o.welcome,
		                     .owner_only = s->o.owner_only,
		                     .done = on_proof,
		                     .idle = on_no_proofs };
	proofs_init(&s->proofs);
	uv_timer_init(loop, &s->sweep);
	s->poll.data = s->sweep.data = s;
	s->handles = 2;
	uv_poll_start(&s->poll, UV_READABLE, on_connection);
	uv_timer_start(&s->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
	return s;
}

int hspmd_server_port(const struct hspmd_server *s)
{
	return server_listening_port(s->fd);
}

json_t *hspmd_server_addresses(const struct hspmd_server *s)
{
	return server_listening_addresses(s->fd);
}

struct hspmd_server_counts hspmd_server_counts(const struct hspmd_server *s)
{
	struct hspmd_server_counts c = s->counts;
	c.strangers = s->strangers.count + s->proving.count;
	return c;
}

static void on_server_closed(uv_handle_t *handle)
{
	struct hspmd_server *s = handle->data;
	s->handles--;
	free_if_done(s);
}

void hspmd_server_close(struct hspmd_server *s)
{
	if (!s)
		return;
	s->closing = true;
	for (struct hspmd_peer *peer = s->peers; peer; peer = peer->next)
		hspmd_peer_close(peer);
	uv_poll_stop(&s->poll);
	uv_close((uv_handle_t *)&s->poll, on_server_closed);
	uv_close((uv_handle_t *)&s->sweep, on_server_closed);
	close(s->fd);
}
