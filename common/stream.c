/* SPDX-License-Identifier: Apache-2.0 */
#include "common/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"

#define READS 64 /* of 64 KiB at a time */

struct hspmd_stream {
	int fd;
	struct hspmd_wire_reader *reader;
	struct hspmd_signer *signer; /* of what is sent; NULL: nothing is signed */
	char *unsent;                /* [sent, used) is not written yet */
	size_t sent, used, capacity, max_unsent;
};

struct hspmd_stream *hspmd_stream_create(int fd, size_t max_frame, size_t max_unsent, struct hspmd_error *err)
{
	struct hspmd_stream *s = calloc(1, sizeof *s);
	if (s)
		s->reader = hspmd_wire_reader_create(max_frame);
	if (!s || !s->reader) {
		close(fd);
		free(s);
		hspmd_fail_memory(err, "opening a control connection");
		return NULL;
	}
	s->fd = fd;
	s->max_unsent = max_unsent;
	if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) || fcntl(fd, F_SETFD, FD_CLOEXEC)) {
		hspmd_fail_errno(err, "opening a control connection");
		hspmd_stream_destroy(s);
		return NULL;
	}
	return s;
}

void hspmd_stream_destroy(struct hspmd_stream *s)
{
	if (!s)
		return;
	close(s->fd);
	hspmd_wire_reader_destroy(s->reader);
	hspmd_signer_destroy(s->signer);
	free(s->unsent);
	free(s);
}

int hspmd_stream_fd(const struct hspmd_stream *s)
{
	return s->fd;
}

void hspmd_stream_set_max_frame(struct hspmd_stream *s, size_t max_frame)
{
	hspmd_wire_reader_set_max_frame(s->reader, max_frame);
}

void hspmd_stream_set_memo(struct hspmd_stream *s, struct hspmd_wire_memo *memo)
{
	hspmd_wire_reader_set_memo(s->reader, memo);
}

int hspmd_stream_sign(struct hspmd_stream *s, struct hspmd_signer *sent, struct hspmd_signer *received, struct hspmd_error *err)
{
	hspmd_signer_destroy(s->signer);
	s->signer = sent;
	return hspmd_wire_reader_expect_signed(s->reader, received, err);
}

int hspmd_stream_flush(struct hspmd_stream *s, struct hspmd_error *err)
{
	while (s->sent < s->used) {
		ssize_t n = send(s->fd, s->unsent + s->sent, s->used - s->sent, MSG_NOSIGNAL);
		if (n < 0 && errno == EAGAIN)
			return 0;
		if (n < 0 && errno != EINTR)
			return hspmd_fail_errno(err, "sending a control message");
		if (n > 0)
			s->sent += (size_t)n;
	}
	s->sent = s->used = 0;
	return 0;
}

static int reserve(struct hspmd_stream *s, size_t size)
{
	if (s->used + size <= s->capacity)
		return 0;
	if (s->sent) {
		memmove(s->unsent, s->unsent + s->sent, s->used - s->sent);
		s->used -= s->sent;
		s->sent = 0;
	}
	if (s->used + size <= s->capacity)
		return 0;
	size_t wanted = s->capacity ? s->capacity : 4096;
	while (wanted < s->used + size)
		wanted *= 2;
	char *more = realloc(s->unsent, wanted);
	if (!more)
		return -1;
	s->unsent = more;
	s->capacity = wanted;
	return 0;
}

int hspmd_stream_send_frame(struct hspmd_stream *s, const char *frame, size_t size, struct hspmd_error *err)
{
	size_t all = size + (s->signer ? HSPMD_SIGNATURE_BYTES : 0);
	if (s->used - s->sent + all > s->max_unsent)
		return hspmd_fail(err, "the other side has left %zu bytes unread", s->used - s->sent);
	if (reserve(s, all))
		return hspmd_fail_memory(err, "sending a control message");
	memcpy(s->unsent + s->used, frame, size);
	if (s->signer && hspmd_wire_sign(s->signer, s->unsent + s->used, size, err))
		return -1;
	s->used += all;
	return hspmd_stream_flush(s, err);
}

int hspmd_stream_send(struct hspmd_stream *s, const json_t *message, struct hspmd_error *err)
{
	char *frame;
	size_t size;
	if (hspmd_wire_encode(message, &frame, &size, err))
		return -1;
	int rc = hspmd_stream_send_frame(s, frame, size, err);
	free(frame);
	return rc;
}

int hspmd_stream_read(struct hspmd_stream *s, struct hspmd_error *err)
{
	char bytes[65536];
	for (int i = 0; i < READS; i++) {
		ssize_t n = recv(s->fd, bytes, sizeof bytes, 0);
		if (n == 0)
			return 0;
		if (n < 0 && errno == EAGAIN)
			return 1;
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			hspmd_fail_errno(err, "receiving a control message");
			return errno == ECONNRESET ? 0 : -1;
		}
		if (hspmd_wire_feed(s->reader, bytes, (size_t)n, err))
			return -1;
		if ((size_t)n < sizeof bytes)
			return 1;
	}
	return 1;
}

json_t *hspmd_stream_next(struct hspmd_stream *s)
{
	return hspmd_wire_next(s->reader);
}

int hspmd_stream_receive(struct hspmd_stream *s, double timeout_s, json_t **message, struct hspmd_error *err)
{
	double deadline = hspmd_now() + timeout_s;
	while (hspmd_stream_has_unsent(s)) {
		if (hspmd_stream_flush(s, err))
			return -1;
		double left = deadline - hspmd_now();
		struct pollfd p = { .fd = s->fd, .events = POLLOUT };
		if (hspmd_stream_has_unsent(s) && (left <= 0 || poll(&p, 1, (int)(left * 1e3) + 1) == 0))
			return hspmd_fail(err, "waited %.3g s for the other side to take a message", timeout_s);
	}
	double left = deadline - hspmd_now();
	return hspmd_wire_receive(s->fd, s->reader, left > 0 ? left : 0, message, err);
}

bool hspmd_stream_has_unsent(const struct hspmd_stream *s)
{
	return s->sent < s->used;
}
