/* SPDX-License-Identifier: Apache-2.0 */
/* A connection for control messages that never blocks, for event loops. It keeps the bytes that cannot be written yet. The owner always
 * watches the descriptor for reading, and for writing while hspmd_stream_has_unsent(); it calls hspmd_stream_read() and
 * hspmd_stream_flush(). */
#ifndef HSPMD_COMMON_STREAM_H
#define HSPMD_COMMON_STREAM_H

#include <stdbool.h>
#include <stddef.h>

#include "common/error.h"
#include "common/wire.h"

struct hspmd_stream;

/* Takes over the descriptor (sets O_NONBLOCK and FD_CLOEXEC; destroy closes it, and so does a failure here). A message longer than
 * max_frame breaks the connection; so does a peer that leaves more than max_unsent bytes unread. */
struct hspmd_stream *hspmd_stream_create(int fd, size_t max_frame, size_t max_unsent, struct hspmd_error *err);
void hspmd_stream_destroy(struct hspmd_stream *s);
int hspmd_stream_fd(const struct hspmd_stream *s);
void hspmd_stream_set_max_frame(struct hspmd_stream *s, size_t max_frame);
void hspmd_stream_set_memo(struct hspmd_stream *s, struct hspmd_wire_memo *memo); /* of its reader (common/wire.h) */
/* From now on all messages are signed, both ways. Takes over both signers, also on failure. -1: the connection is no longer usable. */
int hspmd_stream_sign(struct hspmd_stream *s, struct hspmd_signer *sent, struct hspmd_signer *received, struct hspmd_error *err);

/* Queue a message and write as much as possible. -1: the connection is no longer usable. */
int hspmd_stream_send(struct hspmd_stream *s, const json_t *message, struct hspmd_error *err);
/* The same for a frame made by hspmd_wire_encode(); a message to many peers is then encoded once. */
int hspmd_stream_send_frame(struct hspmd_stream *s, const char *frame, size_t size, struct hspmd_error *err);
int hspmd_stream_flush(struct hspmd_stream *s, struct hspmd_error *err);
/* Read the available bytes, up to a few MiB, so that a peer that never pauses cannot keep the caller. 1: still open, 0: the peer closed
 * (err is filled if messages may be lost), -1: error. In each case hspmd_stream_next() returns the complete messages. */
int hspmd_stream_read(struct hspmd_stream *s, struct hspmd_error *err);
json_t *hspmd_stream_next(struct hspmd_stream *s); /* new reference or NULL */
/* Blocks: writes all queued bytes, then waits for the next message. 1: message (new reference), 0: the peer closed, -1: error or
 * timeout. */
int hspmd_stream_receive(struct hspmd_stream *s, double timeout_s, json_t **message, struct hspmd_error *err);
bool hspmd_stream_has_unsent(const struct hspmd_stream *s); /* then watch for writability too */

#endif
