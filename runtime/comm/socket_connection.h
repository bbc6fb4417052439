/* SPDX-License-Identifier: Apache-2.0 */
/* The sending half of the socket transport: a connection that this member opened to one peer, and the frames that wait to be written to
 * it.
 *
 * Data flows one way on a connection, from the member that opened it. A member opens a connection to every peer that it sends to or
 * receives from. The second kind carries the permissions to send large messages; when it closes, the peer is dead. */
#ifndef HSPMD_COMM_SOCKET_CONNECTION_H
#define HSPMD_COMM_SOCKET_CONNECTION_H

#include <stdbool.h>
#include <sys/queue.h>

#include "runtime/comm/socket_address.h"

#define HSPMD_FRAME_MAGIC 0x68737031u

enum hspmd_frame_kind {
	HSPMD_FRAME_HELLO,           /* tag: the sender's rank; body: the listener's token */
	HSPMD_FRAME_EAGER,           /* a small message: tag, body */
	HSPMD_FRAME_REQUEST_TO_SEND, /* a large message waits: tag, bytes, id of the send */
	HSPMD_FRAME_CLEAR_TO_SEND,   /* the receive is posted: id of the send, tag: id of the receive */
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
	size_t body_bytes, written; /* written includes the frame */
	bool waiting;               /* the item is in a queue */
};

enum hspmd_connection_state { HSPMD_CONNECTION_UNUSED, HSPMD_CONNECTION_CONNECTING, HSPMD_CONNECTION_OPEN, HSPMD_CONNECTION_DEAD };

struct hspmd_socket_connection {
	int epoll, fd;
	void *event; /* data of the epoll event */
	enum hspmd_connection_state state;
	bool wants_write, retry;
	struct hspmd_socket_target target;
	int endpoint;
	double since, timeout_s;
	TAILQ_HEAD(, hspmd_socket_item) queue;
	struct hspmd_socket_item hello;
	char why[160]; /* reason for state DEAD */
};

/* Set up an unused connection. It must be closed before its memory is freed. */
void hspmd_socket_connection_init(struct hspmd_socket_connection *l, int epoll, void *event, double timeout_s);
/* Start to connect (only in state UNUSED); own_rank is part of the HELLO frame. On failure the state is DEAD. */
void hspmd_socket_connection_connect(struct hspmd_socket_connection *l, int own_rank);
void hspmd_socket_connection_close(struct hspmd_socket_connection *l);
/* Write the item after those queued before it. `item` belongs to the caller and leaves the queue when all of it is written (waiting
 * becomes false, written equals its size). Does nothing on a dead connection. */
void hspmd_socket_connection_queue(struct hspmd_socket_connection *l, struct hspmd_socket_item *item);
/* Remove the item from the queue. If a part of it was written already, the connection is dead afterwards. */
void hspmd_socket_connection_cancel(struct hspmd_socket_connection *l, struct hspmd_socket_item *item);
/* To be called after an event on the descriptor, and periodically while CONNECTING. */
void hspmd_socket_connection_step(struct hspmd_socket_connection *l);

#endif
