/* SPDX-License-Identifier: Apache-2.0 */
/* The sending half of the socket transport: a connection that this member opened to one peer, and the frames that wait to be written to it.
 *
 * Data flows one way on a connection, from who opened it. A member opens one to every peer it sends to or receives from: the second kind
 * carries the permissions to send large messages, and its end is how the peer's death shows. */
#ifndef HSPMD_COMM_SOCKET_CONNECTION_H
#define HSPMD_COMM_SOCKET_CONNECTION_H

#include <stdbool.h>
#include <sys/queue.h>

#include "runtime/comm/socket_address.h"

#define HSPMD_FRAME_MAGIC 0x68737031u

enum hspmd_frame_kind {
	HSPMD_FRAME_HELLO,           /* tag: the sender's rank; body: the listener's token */
	HSPMD_FRAME_EAGER,           /* a small message: tag, body */
	HSPMD_FRAME_REQUEST_TO_SEND, /* a large one waits: tag, bytes, id of the send */
	HSPMD_FRAME_CLEAR_TO_SEND,   /* its receive is posted: id of the send, tag: id of the receive */
	HSPMD_FRAME_DATA             /* id of the receive, body */
};

struct hspmd_frame {
	uint32_t magic, kind;
	uint64_t tag, bytes, id;
};

struct hspmd_socket_item {
	TAILQ_ENTRY(hspmd_socket_item) queued;
	struct hspmd_frame frame;
	const void *body;
	size_t body_bytes, written; /* written counts the frame too */
	bool waiting;               /* in a queue */
};

enum hspmd_connection_state { HSPMD_CONNECTION_UNUSED, HSPMD_CONNECTION_CONNECTING, HSPMD_CONNECTION_OPEN, HSPMD_CONNECTION_DEAD };

struct hspmd_socket_connection {
	int epoll, fd;
	void *event; /* what epoll reports for it */
	enum hspmd_connection_state state;
	bool wants_write, retry;
	struct hspmd_socket_target target;
	int endpoint;
	double since, timeout_s;
	TAILQ_HEAD(, hspmd_socket_item) queue;
	struct hspmd_socket_item hello;
	char why[160]; /* when dead */
};

/* An unused link; close it before its memory goes. */
void hspmd_socket_connection_init(struct hspmd_socket_connection *l, int epoll, void *event, double timeout_s);
/* Begin to connect (state UNUSED only); own_rank goes into the greeting. Failing ends in state DEAD. */
void hspmd_socket_connection_connect(struct hspmd_socket_connection *l, int own_rank);
void hspmd_socket_connection_close(struct hspmd_socket_connection *l);
/* Write it when its turn comes; `item` is the caller's and leaves the queue when all is written (waiting false, written at its end).
 * Nothing happens on a dead link. */
void hspmd_socket_connection_queue(struct hspmd_socket_connection *l, struct hspmd_socket_item *item);
/* Take it out again; a link on which a part of it was written already is dead afterwards. */
void hspmd_socket_connection_cancel(struct hspmd_socket_connection *l, struct hspmd_socket_item *item);
/* After an event on its descriptor, and now and then while CONNECTING. */
void hspmd_socket_connection_step(struct hspmd_socket_connection *l);

#endif
