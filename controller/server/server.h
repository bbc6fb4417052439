/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP server of job controllers and of hspmdctld, on a libuv loop. It challenges each client (common/auth.h), hears only those that
 * prove who they are, and bounds what any client can cost: time, memory, connections, lines in the log.
 *
 * Anybody may connect, as often as he likes. A client that has not proved who it is, a stranger, therefore has a deadline, and there are
 * limits on strangers in all and from one source (an IPv4 address or an IPv6 network of 64 bits; all loopback addresses are one source). A
 * stranger over a limit is not refused: it takes the place of the oldest one from its own source, or, if there are too many in all, from
 * the source that has most. So a source that floods the server crowds out itself only. A stranger whose hello has arrived is heard before
 * it would lose its place; a client that answers the challenge at once thus gets in even while others at its own address flood the
 * server. */
#ifndef HSPMD_CONTROLLER_SERVER_SERVER_H
#define HSPMD_CONTROLLER_SERVER_SERVER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "common/auth.h"
#include "common/error.h"

struct hspmd_server;
struct hspmd_peer; /* one connection to the server; valid until it is closed */

struct hspmd_server_limits {
	double hello_s;       /* seconds for a client to prove who it is */
	double network_s;     /* seconds without any sign of life from a peer's machine until the peer counts as lost */
	size_t hello_bytes;   /* longest message before the proof */
	size_t message_bytes; /* longest message after it */
	size_t unsent_bytes;  /* that a peer may leave unread */
	int strangers;        /* clients that have not proved who they are, at a time */
	int source_strangers; /* of these, from one source */
	int peers;            /* connections in all */
	int user_peers;       /* of these, of one user who has proved himself */
	int messages_s;       /* messages per second from one peer, averaged over 10 s; 0: no limit */
};

/* Called on the loop. */
struct hspmd_server_events {
	/* User `who` has proved himself and sent `hello`. Returns 0, or -1 and err to refuse him. */
	int (*hello)(void *context, struct hspmd_peer *peer, json_t *hello, uid_t who, struct hspmd_error *err);
	/* The welcome was sent: from now on messages may be sent to the peer. NULL: nothing. */
	void (*accepted)(void *context, struct hspmd_peer *peer, json_t *hello);
	/* Returns 0, or -1 and err to close the connection; `closed` is then called. */
	int (*message)(void *context, struct hspmd_peer *peer, json_t *message, struct hspmd_error *err);
	/* The connection of a peer whose hello was not refused is closed. Not called for a peer that the owner of the server has closed,
	 * drained or refused, nor by hspmd_server_close(). */
	void (*closed)(void *context, struct hspmd_peer *peer, const char *why);
};

struct hspmd_server_options {
	const char *listen; /* "ADDRESS:PORT" (common/address.h); empty address: all, IPv6 and IPv4; port 0: any free one */
	int default_port;
	const struct hspmd_auth *auth; /* borrowed */
	const char *job;               /* sent in the challenge; NULL: none */
	json_t *welcome;               /* the content of each welcome; the server takes a reference of its own */
	bool owner_only;               /* refuse users other than this process's and root */
	struct hspmd_server_limits limits;
	struct hspmd_server_events events;
	void *context;
};

struct hspmd_server_counts {
	uint64_t accepted, refused; /* since the start: connections taken, and connections closed for what the client did or did not */
	int peers, strangers;       /* connections now; of these strangers */
};

/* Borrows the loop. NULL and err: it cannot listen. May block in a name server, if the address is a name. */
struct hspmd_server *hspmd_server_open(uv_loop_t *loop, const struct hspmd_server_options *options, struct hspmd_error *err);
/* Closes all connections without calling anybody; the memory is freed when the loop has run once more. NULL: nothing. */
void hspmd_server_close(struct hspmd_server *s);
/* Returns the port number, or -1. */
int hspmd_server_port(const struct hspmd_server *s);
/* Returns the "host:port" under which others reach the server, those nearest to the cluster's network first; a new array, or NULL: out of
 * memory. */
json_t *hspmd_server_addresses(const struct hspmd_server *s);
struct hspmd_server_counts hspmd_server_counts(const struct hspmd_server *s);

/* Queues a message. Does not block. -1 and err: the connection is of no more use, and the caller closes it. */
int hspmd_peer_send(struct hspmd_peer *peer, const json_t *message, struct hspmd_error *err);
/* The same for a frame made by hspmd_wire_encode() or hspmd_wire_encode_with(). */
int hspmd_peer_send_frame(struct hspmd_peer *peer, const char *frame, size_t size, struct hspmd_error *err);
/* Closes the connection when all queued messages have been sent, or after a few seconds. Its further messages are dropped. */
void hspmd_peer_drain(struct hspmd_peer *peer);
void hspmd_peer_close(struct hspmd_peer *peer);
/* Sends the peer why it is refused, logs and counts that, and closes the connection. */
void hspmd_peer_refuse(struct hspmd_peer *peer, const char *why);
/* From now on, closes the connection when no message has come for so many seconds. */
void hspmd_peer_limit_silence(struct hspmd_peer *peer, double seconds);
/* A pointer that the server's owner attaches to a peer; NULL at first. */
void hspmd_peer_set_data(struct hspmd_peer *peer, void *data);
void *hspmd_peer_data(const struct hspmd_peer *peer);

#endif
