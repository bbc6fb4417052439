/* SPDX-License-Identifier: Apache-2.0 */
#include "common/wire.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

#include "common/alloc.h"
#include "common/base64.h"
#include "common/clock.h"

#define HEAD 8
#define PACK_LEAST 4096 /* bytes of a text that is worth compressing */
static const char magic[4] = { 'H', 'S', 'P', '1' }, signed_magic[4] = { 'H', 'S', 'P', '2' };

struct hspmd_wire_reader {
	size_t max;           /* longest text that is accepted */
	unsigned char *bytes; /* received bytes of the incomplete frame */
	size_t used, capacity;
	json_t **messages; /* complete messages, [taken, count) */
	size_t taken, count, message_capacity;
	struct hspmd_signer *signer; /* NULL: frames are not signed */
};

static void put_length(unsigned char *at, uint32_t n)
{
	for (int i = 0; i < 4; i++)
		at[i] = (unsigned char)(n >> (24 - 8 * i));
}

static uint32_t get_length(const unsigned char *at)
{
	return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

int hspmd_wire_text(const json_t *message, char **text, size_t *size, struct hspmd_error *err)
{
	*text = NULL;
	if (!json_is_object(message))
		return hspmd_fail(err, "a control message must be a JSON object");
	*text = json_dumps(message, JSON_COMPACT);
	if (!*text)
		return hspmd_fail_memory(err, "writing a control message");
	*size = strlen(*text);
	return 0;
}

/* A frame of the first text followed by the second. */
static int make_frame(const char *first, size_t first_size, const char *second, size_t second_size, char **frame, size_t *size,
                      struct hspmd_error *err)
{
	size_t n = first_size + second_size;
	if (n > HSPMD_WIRE_MAX)
		return hspmd_fail(err, "control message of %zu bytes is longer than %u", n, HSPMD_WIRE_MAX);
	char *out = malloc(HEAD + n);
	if (!out)
		return hspmd_fail_memory(err, "writing a control message");
	memcpy(out, magic, sizeof magic);
	put_length((unsigned char *)out + 4, (uint32_t)n);
	memcpy(out + HEAD, first, first_size);
	memcpy(out + HEAD + first_size, second, second_size);
	*frame = out;
	*size = HEAD + n;
	return 0;
}

int hspmd_wire_encode(const json_t *message, char **frame, size_t *size, struct hspmd_error *err)
{
	char *text;
	size_t n;
	*frame = NULL;
	int rc = hspmd_wire_text(message, &text, &n, err);
	rc = rc ? rc : make_frame(text, n, "", 0, frame, size, err);
	free(text);
	return rc;
}

int hspmd_wire_text_packed(const json_t *message, char **text, size_t *size, struct hspmd_error *err)
{
	char *plain;
	size_t n;
	*text = NULL;
	if (hspmd_wire_text(message, &plain, &n, err))
		return -1;
	if (n > HSPMD_WIRE_MAX) { /* no reader would take it apart */
		free(plain);
		return hspmd_fail(err, "control message of %zu bytes is longer than %u", n, HSPMD_WIRE_MAX);
	}
	if (n < PACK_LEAST) {
		*text = plain;
		*size = n;
		return 0;
	}
	uLongf packed_size = compressBound(n);
	unsigned char *packed = malloc(packed_size);
	char *encoded = packed && compress2(packed, &packed_size, (const unsigned char *)plain, n, Z_DEFAULT_COMPRESSION) == Z_OK
	                        ? hspmd_base64_encode(packed, packed_size)
	                        : NULL;
	json_t *outer = encoded ? json_pack("{s:s, s:I}", "packed", encoded, "bytes", (json_int_t)n) : NULL;
	int rc = outer ? hspmd_wire_text(outer, text, size, err) : hspmd_fail_memory(err, "compressing a control message");
	json_decref(outer);
	free(encoded);
	free(packed);
	free(plain);
	return rc;
}

int hspmd_wire_encode_with(const char *text, size_t text_size, const json_t *own, char **frame, size_t *size, struct hspmd_error *err)
{
	char *head = NULL;
	size_t n;
	*frame = NULL;
	int rc = hspmd_wire_text(own, &head, &n, err);
	if (!rc && n == 2) {
		rc = make_frame(text, text_size, "", 0, frame, size, err);
	} else if (!rc && text_size > 2) {
		head[n - 1] = ','; /* the object goes on with the members of the other */
		rc = make_frame(head, n, text + 1, text_size - 1, frame, size, err);
	} else if (!rc) {
		rc = make_frame(head, n, "", 0, frame, size, err);
	}
	free(head);
	return rc;
}

int hspmd_wire_sign(struct hspmd_signer *signer, char *copy, size_t size, struct hspmd_error *err)
{
	memcpy(copy, signed_magic, sizeof signed_magic);
	return hspmd_signer_sign(signer, copy, size, (unsigned char *)copy + size, err);
}

struct hspmd_wire_reader *hspmd_wire_reader_create(size_t max_frame)
{
	struct hspmd_wire_reader *r = calloc(1, sizeof *r);
	if (r)
		r->max = max_frame < HSPMD_WIRE_MAX ? max_frame : HSPMD_WIRE_MAX;
	return r;
}

void hspmd_wire_reader_set_max_frame(struct hspmd_wire_reader *r, size_t max_frame)
{
	r->max = max_frame < HSPMD_WIRE_MAX ? max_frame : HSPMD_WIRE_MAX;
}

void hspmd_wire_reader_destroy(struct hspmd_wire_reader *r)
{
	if (!r)
		return;
	for (size_t i = r->taken; i < r->count; i++)
		json_decref(r->messages[i]);
	free(r->messages);
	free(r->bytes);
	hspmd_signer_destroy(r->signer);
	free(r);
}

static int keep(struct hspmd_wire_reader *r, json_t *message)
{
	if (r->taken == r->count)
		r->taken = r->count = 0;
	if (hspmd_array_grow(&r->messages, &r->message_capacity, r->count, sizeof *r->messages))
		return -1;
	r->messages[r->count++] = message;
	return 0;
}

static bool begins_with(const unsigned char *at, size_t have, const char *wanted)
{
	return !memcmp(at, wanted, have < sizeof magic ? have : sizeof magic);
}

/* A message that hspmd_wire_text_packed() has compressed, with what stands beside the compressed text; or -1. */
static int unpack(const struct hspmd_wire_reader *r, json_t **message, struct hspmd_error *err)
{
	json_t *outer = *message;
	const char *encoded = json_string_value(json_object_get(outer, "packed"));
	json_int_t bytes = json_integer_value(json_object_get(outer, "bytes"));
	size_t packed_size = 0;
	if (!encoded || bytes < 2 || (uint64_t)bytes > r->max)
		return hspmd_fail(err, "a compressed message of %lld bytes where at most %zu are accepted", (long long)bytes, r->max);
	unsigned char *packed = (unsigned char *)hspmd_base64_decode(encoded, &packed_size);
	char *text = malloc((size_t)bytes);
	uLongf size = (uLongf)bytes;
	json_error_t why;
	json_t *inner = packed && text && uncompress((unsigned char *)text, &size, packed, packed_size) == Z_OK && size == (uLongf)bytes
	                        ? json_loadb(text, size, JSON_REJECT_DUPLICATES, &why)
	                        : NULL;
	free(text);
	free(packed);
	json_object_del(outer, "packed");
	json_object_del(outer, "bytes");
	if (!json_is_object(inner) || json_object_update(inner, outer)) {
		json_decref(inner);
		return hspmd_fail(err, "a compressed message is damaged");
	}
	json_decref(outer);
	*message = inner;
	return 0;
}

static int take_text(struct hspmd_wire_reader *r, const char *text, size_t size, struct hspmd_error *err)
{
	json_error_t why;
	json_t *message = json_loadb(text, size, JSON_REJECT_DUPLICATES, &why);
	if (!message)
		return hspmd_fail(err, "message is not JSON: %s", why.text);
	/* Only from somebody who has proved who he is: a few bytes may become many. */
	if (r->signer && json_object_get(message, "packed") && unpack(r, &message, err)) {
		json_decref(message);
		return -1;
	}
	if (!json_is_object(message) || keep(r, message)) {
		bool object = json_is_object(message);
		json_decref(message);
		return object ? hspmd_fail_memory(err, "reading a control message") : hspmd_fail(err, "message is not a JSON object");
	}
	return 0;
}

/* Take one complete frame off the front of [at, at + have). Returns the bytes used, 0 if the frame is incomplete or must wait for the
 * signer, -1 on error. */
static ssize_t one_frame(struct hspmd_wire_reader *r, const unsigned char *at, size_t have, struct hspmd_error *err)
{
	if (r->signer && have >= sizeof magic && begins_with(at, have, magic))
		return hspmd_fail(err, "a message is not signed");
	if (have && !begins_with(at, have, signed_magic) && (r->signer || !begins_with(at, have, magic)))
		return hspmd_fail(err, "the other side does not speak the hspmd protocol");
	if (have < HEAD)
		return 0;
	bool waits = !r->signer && begins_with(at, have, signed_magic);
	size_t n = get_length(at + 4), all = HEAD + n + (r->signer || waits ? HSPMD_SIGNATURE_BYTES : 0);
	if (n > r->max)
		return hspmd_fail(err, "message of %zu bytes where at most %zu are accepted", n, r->max);
	if (waits && have > HEAD + r->max + HSPMD_SIGNATURE_BYTES)
		return hspmd_fail(err, "messages beyond the handshake's before it has ended");
	if (waits || have < all)
		return 0;
	/* Before anything else is made of it. */
	if (r->signer && hspmd_signer_verify(r->signer, at, HEAD + n, at + HEAD + n, err))
		return -1;
	return take_text(r, (const char *)at + HEAD, n, err) ? -1 : (ssize_t)all;
}

static int append(struct hspmd_wire_reader *r, const void *data, size_t size)
{
	size_t need = r->used + size;
	if (need > r->capacity) {
		size_t wanted = r->capacity ? r->capacity : 4096;
		while (wanted < need)
			wanted *= 2;
		unsigned char *bytes = realloc(r->bytes, wanted);
		if (!bytes)
			return -1;
		r->bytes = bytes;
		r->capacity = wanted;
	}
	memcpy(r->bytes + r->used, data, size);
	r->used += size;
	return 0;
}

static int take_frames(struct hspmd_wire_reader *r, struct hspmd_error *err)
{
	size_t at = 0;
	ssize_t n;
	while ((n = one_frame(r, r->bytes + at, r->used - at, err)) > 0)
		at += (size_t)n;
	if (n < 0)
		return -1;
	if (at) {
		r->used -= at;
		memmove(r->bytes, r->bytes + at, r->used);
	}
	return 0;
}

int hspmd_wire_feed(struct hspmd_wire_reader *r, const void *data, size_t size, struct hspmd_error *err)
{
	if (size && append(r, data, size))
		return hspmd_fail_memory(err, "reading a control message");
	return take_frames(r, err);
}

int hspmd_wire_reader_expect_signed(struct hspmd_wire_reader *r, struct hspmd_signer *signer, struct hspmd_error *err)
{
	hspmd_signer_destroy(r->signer);
	r->signer = signer;
	return take_frames(r, err);
}

json_t *hspmd_wire_next(struct hspmd_wire_reader *r)
{
	return r->taken < r->count ? r->messages[r->taken++] : NULL;
}

/* Wait until fd is ready for `events`. 1 ready, 0 deadline passed, -1 error. deadline < 0: none. */
static int wait_for(int fd, short events, double deadline)
{
	for (;;) {
		int ms = -1;
		if (deadline >= 0) {
			double left = deadline - hspmd_now();
			ms = left <= 0 ? 0 : left > 1e6 ? 1000000000 : (int)(left * 1e3) + 1;
		}
		struct pollfd p = { .fd = fd, .events = events };
		int n = poll(&p, 1, ms);
		if (n >= 0)
			return n;
		if (errno != EINTR)
			return -1;
	}
}

int hspmd_wire_send(int fd, const json_t *message, double timeout_s, struct hspmd_error *err)
{
	char *frame;
	size_t size;
	if (hspmd_wire_encode(message, &frame, &size, err))
		return -1;
	double deadline = timeout_s < 0 ? -1 : hspmd_now() + timeout_s;
	size_t done = 0;
	int rc = 0;
	while (!rc && done < size) {
		ssize_t n = send(fd, frame + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n >= 0) {
			done += (size_t)n;
		} else if (errno == EAGAIN) {
			int ready = wait_for(fd, POLLOUT, deadline);
			if (ready < 0)
				rc = hspmd_fail_errno(err, "sending a control message");
			else if (!ready)
				rc = hspmd_fail(err, "waited %.3g s for the other side to take a message", timeout_s);
		} else if (errno != EINTR) {
			rc = hspmd_fail_errno(err, "sending a control message");
		}
	}
	free(frame);
	return rc;
}

int hspmd_wire_receive(int fd, struct hspmd_wire_reader *r, double timeout_s, json_t **message, struct hspmd_error *err)
{
	double deadline = timeout_s < 0 ? -1 : hspmd_now() + timeout_s;
	char bytes[65536];
	while (!(*message = hspmd_wire_next(r))) {
		int ready = wait_for(fd, POLLIN, deadline);
		if (ready < 0)
			return hspmd_fail_errno(err, "waiting for a control message");
		if (!ready)
			return hspmd_fail(err, "waited %.3g s for a message", timeout_s);
		ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
		if (n == 0)
			return 0;
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return hspmd_fail_errno(err, "receiving a control message");
		if (n > 0 && hspmd_wire_feed(r, bytes, (size_t)n, err))
			return -1;
	}
	return 1;
}
