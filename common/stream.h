/* SPDX-License-Identifier: Apache-2.0 */
/* A connection of control messages that never blocks, for event loops: bytes that cannot be written yet wait in it. The owner watches the
 * descriptor for reading always and for writing while hspmd_stream_has_unsent(), and calls hspmd_stream_read() / hspmd_stream_flush(). */
#ifndef HSPMD_COMMON_STREAM_H
#define HSPMD_COMMON_STREAM_H

#include <stdbool.h>
#include <stddef.h>

#include "common/error.h"
#include "common/wire.h"

struct hspmd_stream;

/* Takes the descriptor over (sets O_NONBLOCK and FD_CLOEXEC; closed by destroy, on failure too). Messages longer than max_frame break the
 * connection; so does a peer that leaves more than max_unsent bytes waiting. */
struct hspmd_stream *hspmd_stream_create(int fd, size_t max_frame, size_t max_unsent, struct hspmd_error *err);
void hspmd_stream_destroy(struct hspmd_stream *s);
int hspmd_stream_fd(const struct hspmd_stream *s);
void hspmd_stream_set_max_frame(struct hspmd_stream *s, size_t max_frame);

/* Put a message in line and write what can be written. -1: the connection is of no more use. */
int hspmd_stream_send(struct hspmd_stream *s, const json_t *message, struct hspmd_error *err);
/* The same for a frame made by hspmd_wire_encode(), so that one message to many is encoded once. */
int hspmd_stream_send_frame(struct hspmd_stream *s, const char *frame, size_t size, struct hspmd_error *err);
int hspmd_stream_flush(struct hspmd_stream *s, struct hspmd_error *err);
/* Read what is there. 1 still open, 0 the peer closed, -1 error. Whole messages are taken with hspmd_stream_next() in each case. */
int hspmd_stream_read(struct hspmd_stream *s, struct hspmd_error *err);
json_t *hspmd_stream_next(struct hspmd_stream *s); /* new reference or NULL */
/* Blocking: everything waiting is written, then the next message awaited. 1 message (new reference), 0 the peer closed, -1 error or
 * deadline. */
int hspmd_stream_receive(struct hspmd_stream *s, double timeout_s, json_t **message, struct hspmd_error *err);
bool hspmd_stream_has_unsent(const struct hspmd_stream *s); /* watch for writability too */

#endif
