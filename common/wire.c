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
#include "common/delta_text.h"

#define HEAD 8
#define PACK_LEAST 4096 /* bytes of a text that is worth compressing */
#define PASSES 2        /* of zlib, whose longest match has 258 bytes: what repeats for longer leaves a stream that repeats itself */
static const char magic[4] = { 'H', 'S', 'P', '1' }, signed_magic[4] = { 'H', 'S', 'P', '2' };

struct hspmd_wire_reader {
	size_t max;           /* longest text that is accepted */
	unsigned char *bytes; /* received bytes of the incomplete frame */
	size_t used, capacity;
	json_t **messages; /* complete messages, [taken, count) */
	size_t taken, count, message_capacity;
	struct hspmd_signer *signer; /* NULL: frames are not signed */
	struct hspmd_wire_memo *memo; /* NULL: none */
};

struct hspmd_wire_memo {
	char *packed;  /* the last compressed text; NULL: none */
	json_t *inner; /* what it says */
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

/* The text compressed, in base64. Appends its length after each step but the last to `bytes`. */
static int pack(const char *text, size_t size, json_t *bytes, char **packed, struct hspmd_error *err)
{
	char *now;
	size_t n;
	if (hspmd_delta_text_encode(text, size, &now, &n, err))
		return -1;
	bool failed = false;
	for (int i = 0; i < PASSES && !failed; i++) {
		uLongf room = compressBound(n);
		unsigned char *next = malloc(room);
		failed = json_array_append_new(bytes, json_integer((json_int_t)n)) || !next ||
		         compress2(next, &room, (const unsigned char *)now, n, Z_DEFAULT_COMPRESSION) != Z_OK;
		free(now);
		now = (char *)next;
		n = room;
	}
	*packed = failed ? NULL : hspmd_base64_encode(now, n);
	free(now);
	return *packed ? 0 : hspmd_fail_memory(err, "compressing a control message");
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
	char *packed = NULL;
	json_t *bytes = json_pack("[I]", (json_int_t)n), *outer = NULL;
	int rc = bytes ? pack(plain, n, bytes, &packed, err) : hspmd_fail_memory(err, "compressing a control message");
	if (!rc && !(outer = json_pack("{s:s, s:O}", "packed", packed, "bytes", bytes)))
		rc = hspmd_fail_memory(err, "compressing a control message");
	rc = rc ? rc : hspmd_wire_text(outer, text, size, err);
	json_decref(outer);
	json_decref(bytes);
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

struct hspmd_wire_memo *hspmd_wire_memo_create(void)
{
	return calloc(1, sizeof(struct hspmd_wire_memo));
}

static void memo_forget(struct hspmd_wire_memo *memo)
{
	free(memo->packed);
	json_decref(memo->inner);
	*memo = (struct hspmd_wire_memo){ NULL, NULL };
}

void hspmd_wire_memo_destroy(struct hspmd_wire_memo *memo)
{
	if (memo)
		memo_forget(memo);
	free(memo);
}

void hspmd_wire_reader_set_memo(struct hspmd_wire_reader *r, struct hspmd_wire_memo *memo)
{
	r->memo = memo;
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

/* The lengths of a compressed text after each step of compressing it but the last. */
static int packed_lengths(const struct hspmd_wire_reader *r, const json_t *bytes, size_t *length, struct hspmd_error *err)
{
	for (size_t i = 0; i <= PASSES; i++) {
		json_int_t n = json_integer_value(json_array_get(bytes, i));
		if (n < 2 || (uint64_t)n > r->max)
			return hspmd_fail(err, "a compressed message of %lld bytes where at most %zu are accepted", (long long)n, r->max);
		length[i] = (size_t)n;
	}
	return 0;
}

/* Undoes pack(). NULL and err. */
static char *unpack_text(const char *packed, const size_t *length, struct hspmd_error *err)
{
	size_t n = 0;
	char *now = (char *)hspmd_base64_decode(packed, &n), *text = NULL;
	for (int i = PASSES; i > 0 && now; i--) {
		uLongf size = (uLongf)length[i];
		char *next = malloc(size);
		if (next && (uncompress((unsigned char *)next, &size, (unsigned char *)now, n) != Z_OK || size != length[i])) {
			free(next);
			next = NULL;
		}
		free(now);
		now = next;
		n = length[i];
	}
	if (!now)
		hspmd_fail(err, "a compressed message is damaged");
	else
		hspmd_delta_text_decode(now, n, length[0], &text, err);
	free(now);
	return text;
}

/* What a compressed text says, as a copy that may be changed. NULL and err. */
static json_t *read_packed(struct hspmd_wire_reader *r, const char *packed, const json_t *bytes, struct hspmd_error *err)
{
	struct hspmd_wire_memo *memo = r->memo;
	size_t length[PASSES + 1];
	if (packed_lengths(r, bytes, length, err))
		return NULL;
	if (memo && memo->packed && !strcmp(memo->packed, packed))
		return json_copy(memo->inner);
	char *text = unpack_text(packed, length, err);
	json_t *inner = text ? json_loadb(text, length[0], JSON_REJECT_DUPLICATES, NULL) : NULL;
	free(text);
	if (!json_is_object(inner)) {
		json_decref(inner);
		hspmd_fail(err, "a compressed message is damaged");
		return NULL;
	}
	char *copy = memo ? strdup(packed) : NULL;
	if (!copy)
		return inner;
	memo_forget(memo);
	*memo = (struct hspmd_wire_memo){ copy, inner };
	return json_copy(inner);
}

/* A message that hspmd_wire_text_packed() has compressed, with what stands beside the compressed text; or -1. */
static int unpack(struct hspmd_wire_reader *r, json_t **message, struct hspmd_error *err)
{
	json_t *outer = *message;
	const char *packed = json_string_value(json_object_get(outer, "packed"));
	json_t *inner = packed ? read_packed(r, packed, json_object_get(outer, "bytes"), err) : NULL;
	if (!packed)
		return hspmd_fail(err, "a compressed message is damaged");
	if (!inner)
		return -1;
	json_object_del(outer, "packed");
	json_object_del(outer, "bytes");
	if (json_object_update(inner, outer)) {
		json_decref(inner);
		return hspmd_fail_memory(err, "reading a control message");
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
