/* SPDX-License-Identifier: Apache-2.0 */
/* The socket transport, shared by transport_socket.c (its operations) and socket_incoming.c (what arrives). */
#ifndef HSPMD_COMM_TRANSPORT_SOCKET_INTERNAL_H
#define HSPMD_COMM_TRANSPORT_SOCKET_INTERNAL_H

#include "runtime/comm/socket_connection.h"
#include "runtime/comm/transport.h"

#define SOCKET_EAGER_MAX (64u << 10) /* a larger message waits for permission */

enum socket_source { SOCKET_LISTENER, SOCKET_OUTGOING, SOCKET_INCOMING, SOCKET_WAKER }; /* first member of the data of every epoll event */

enum socket_stage {
	SOCKET_POSTED,  /* receive: nothing has arrived; send: not all is written, or permission is missing */
	SOCKET_GRANTED, /* receive: the sender has permission */
	SOCKET_FILLING, /* receive: the body is arriving */
	SOCKET_FINISHED
};

struct socket_message {
	struct hspmd_request request;
	TAILQ_ENTRY(socket_message) entry; /* in its peer's list of sends or receives */
	void *data;
	uint64_t id;
	enum socket_stage stage;
	size_t received;               /* receives: size of the message that arrived */
	struct hspmd_socket_item item; /* the frames that it writes: EAGER or REQUEST_TO_SEND, then DATA; CLEAR_TO_SEND */
};

/* A message without a posted receive: an eager one with its bytes, or a request to send. */
struct socket_arrival {
	TAILQ_ENTRY(socket_arrival) entry;
	uint64_t tag, id;
	size_t bytes;
	bool asks;
	bool complete;                     /* eager: all of it has arrived */
	struct socket_message *claimed_by; /* eager: a receive that was posted while it arrived */
	char body[];
};

struct socket_incoming {
	enum socket_source source;
	int fd, peer;    /* peer -1: no HELLO frame yet */
	double deadline; /* for the HELLO frame */
	TAILQ_ENTRY(socket_incoming) entry;
	struct hspmd_frame frame;
	size_t got; /* bytes of the frame received */
	size_t left;
	char *into; /* destination of the rest of the body; NULL: it is discarded */
	struct socket_message *message;
	struct socket_arrival *arrival;
	uint8_t token[HSPMD_SOCKET_TOKEN];
};

struct socket_peer {
	enum socket_source source;
	struct hspmd_socket_connection out;
	struct socket_incoming *in;
	bool in_closed;
	bool known; /* its address */
	TAILQ_HEAD(, socket_message) sends, receives; /* in the order in which they were started */
	TAILQ_HEAD(, socket_arrival) arrivals;
};

struct socket_transport {
	struct hspmd_transport base;
	int epoll;
	enum socket_source listener_source, waker_source;
	struct hspmd_socket_listener listener;
	struct socket_peer *peers;
	TAILQ_HEAD(, socket_incoming) incoming;
	int strangers;   /* connections without a HELLO frame */
	double sweep_at; /* when to look for strangers that have been silent for too long */
	bool connecting; /* some connections must be checked even without an event */
	uint64_t last_id;
	char waste[64 << 10];
};

/* ---- socket_incoming.c */
/* Accepts connections that wait, some at a time. */
void socket_accept_all(struct socket_transport *t, int listener);
/* Reads what has arrived, up to a limit so that one peer does not delay the others. */
void socket_read_incoming(struct socket_transport *t, struct socket_incoming *in);
/* Closes the connections of strangers who have been silent for too long, and of the oldest ones if there are too many. Not to be called
 * while events that were received are still to be handled. */
void socket_limit_strangers(struct socket_transport *t);
/* Closes the connection and frees `in`. */
void socket_close_incoming(struct socket_transport *t, struct socket_incoming *in);
/* Starts to connect to the peer unless that has been done. */
void socket_need_connection(struct socket_transport *t, struct socket_peer *p);
/* Permits the peer to send the body of its message of this id into the receive m. */
void socket_grant(struct socket_transport *t, struct socket_peer *p, struct socket_message *m, uint64_t send_id, uint64_t bytes);

#endif
