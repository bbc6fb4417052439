/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of control messages: complete, in pieces, damaged, too long, and over connections whose other side does not read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/delta_text.h"
#include "common/stream.h"
#include "common/wire.h"
#include "draw.h"

static json_t *sample(int i)
{
	return json_pack("{s:s, s:i, s:[f, f], s:{s:s}}", "type", "step", "generation", i, "values", 1.0 / 3.0, 5.4321e-300, "deep", "text",
	                 "\"}{\n");
}

static void frame_of(const json_t *m, char **frame, size_t *size)
{
	struct hspmd_error err;
	assert_int_equal(hspmd_wire_encode(m, frame, size, &err), 0);
}

static void test_pieces(void **state)
{
	(void)state;
	json_t *m[2] = { sample(1), sample(2) };
	char *a, *b;
	size_t na, nb;
	frame_of(m[0], &a, &na);
	frame_of(m[1], &b, &nb);
	char *both = malloc(na + nb);
	memcpy(both, a, na);
	memcpy(both + na, b, nb);
	struct hspmd_error err;
	for (size_t cut = 0; cut <= na + nb; cut++) {
		struct hspmd_wire_reader *r = hspmd_wire_reader_create(HSPMD_WIRE_MAX);
		assert_int_equal(hspmd_wire_feed(r, both, cut, &err), 0);
		assert_int_equal(hspmd_wire_feed(r, both + cut, na + nb - cut, &err), 0);
		for (int i = 0; i < 2; i++) {
			json_t *got = hspmd_wire_next(r);
			assert_true(json_equal(got, m[i]));
			json_decref(got);
		}
		assert_null(hspmd_wire_next(r));
		hspmd_wire_reader_destroy(r);
	}
	free(a), free(b), free(both);
	json_decref(m[0]), json_decref(m[1]);
}

static void decoded(char *frame, size_t size, const json_t *wanted)
{
	struct hspmd_error err;
	struct hspmd_wire_reader *r = hspmd_wire_reader_create(HSPMD_WIRE_MAX);
	assert_int_equal(hspmd_wire_feed(r, frame, size, &err), 0);
	json_t *got = hspmd_wire_next(r);
	assert_true(json_equal(got, wanted));
	json_decref(got);
	hspmd_wire_reader_destroy(r);
	free(frame);
}

/* Frames from one text say what frames of whole messages say. */
static void test_shared_text(void **state)
{
	(void)state;
	json_t *m[3] = { sample(1), sample(2), json_object() }, *tos[2] = { json_pack("[ss]", "n0:0", "n0:1\"]}"), json_string("*") };
	struct hspmd_error err = { "" };
	for (int i = 0; i < 3; i++) {
		char *text, *frame;
		size_t text_size, size;
		json_object_del(m[i], "to");
		assert_int_equal(hspmd_wire_text(m[i], &text, &text_size, &err), 0);
		for (int k = 0; k < 2; k++) {
			json_t *whole = json_copy(m[i]);
			json_object_set(whole, "to", tos[k]);
			json_t *own = json_pack("{s:O}", "to", tos[k]);
			assert_int_equal(hspmd_wire_encode_with(text, text_size, own, &frame, &size, &err), 0);
			decoded(frame, size, whole);
			json_decref(own);
			json_decref(whole);
		}
		json_t *nothing = json_object();
		assert_int_equal(hspmd_wire_encode_with(text, text_size, nothing, &frame, &size, &err), 0);
		decoded(frame, size, m[i]);
		json_decref(nothing);
		free(text);
		json_decref(m[i]);
	}
	char *text, *frame;
	size_t size;
	assert_int_equal(hspmd_wire_text(tos[0], &text, &size, &err), -1);
	assert_non_null(text = calloc(1, HSPMD_WIRE_MAX)); /* fits alone, but not with an address */
	memset(text, ' ', HSPMD_WIRE_MAX);
	json_t *own = json_pack("{s:O}", "to", tos[0]);
	assert_int_equal(hspmd_wire_encode_with(text, HSPMD_WIRE_MAX, own, &frame, &size, &err), -1);
	json_decref(own);
	assert_non_null(strstr(err.text, "longer than"));
	free(text);
	json_decref(tos[0]);
	json_decref(tos[1]);
}

/* A reader of a signed connection, and a signed frame for it. */
static struct hspmd_wire_reader *signed_reader(size_t max, char **frame, size_t *size)
{
	static const unsigned char key[HSPMD_KEY_BYTES] = { 1 };
	struct hspmd_error err;
	struct hspmd_wire_reader *r = hspmd_wire_reader_create(max);
	struct hspmd_signer *mine = hspmd_signer_create(key, &err), *theirs = hspmd_signer_create(key, &err);
	*frame = realloc(*frame, *size + HSPMD_SIGNATURE_BYTES);
	assert_int_equal(hspmd_wire_sign(mine, *frame, *size, &err), 0);
	*size += HSPMD_SIGNATURE_BYTES;
	hspmd_signer_destroy(mine);
	assert_int_equal(hspmd_wire_reader_expect_signed(r, theirs, &err), 0);
	return r;
}

/* A long text travels compressed, and is read as the message that it was, with what stands beside it. */
static void test_packed(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	json_t *m = sample(1), *list = json_array(), *own = json_pack("{s:[s], s:{s:s}}", "to", "n0:1", "addresses", "n0:1", "a");
	char *text, *frame;
	size_t text_size, size, whole;
	assert_int_equal(hspmd_wire_text_packed(m, &text, &text_size, &err), 0);
	assert_null(strstr(text, "packed")); /* it is short */
	free(text);
	for (int i = 0; i < 20000; i++)
		json_array_append_new(list, json_sprintf("n%d:0-7", i));
	json_object_set_new(m, "list", list);
	assert_int_equal(hspmd_wire_text(m, &text, &whole, &err), 0);
	free(text);
	for (int c = 0; c < 4; c++) {
		assert_int_equal(hspmd_wire_text_packed(m, &text, &text_size, &err), 0);
		assert_true(text_size < whole / 3);
		if (c == 2)
			text[text_size / 2] ^= 1; /* still base64, perhaps; no longer the stream */
		assert_int_equal(hspmd_wire_encode_with(text, text_size, own, &frame, &size, &err), 0);
		free(text);
		/* c 1: longer than the reader accepts; c 3: nobody has proved anything, and nothing is unpacked. */
		struct hspmd_wire_reader *r = c == 3 ? hspmd_wire_reader_create(HSPMD_WIRE_MAX)
		                                     : signed_reader(c == 1 ? whole - 1 : HSPMD_WIRE_MAX, &frame, &size);
		assert_int_equal(hspmd_wire_feed(r, frame, size, &err), c == 1 || c == 2 ? -1 : 0);
		json_t *got = hspmd_wire_next(r);
		if (c == 0) {
			json_t *wanted = json_copy(m);
			json_object_update(wanted, own);
			assert_true(json_equal(got, wanted));
			json_decref(wanted);
		} else if (c == 3) {
			assert_non_null(json_object_get(got, "packed"));
		} else {
			assert_null(got);
			assert_non_null(strstr(err.text, c == 1 ? "are accepted" : "damaged"));
		}
		json_decref(got);
		hspmd_wire_reader_destroy(r);
		free(frame);
	}
	json_decref(m);
	json_decref(own);
}

/* Connections that share a memo read the same as others: equal texts, which are read once, and another one between them. */
static void test_memo(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_wire_memo *memo = hspmd_wire_memo_create();
	json_t *shared = NULL;
	for (int i = 0; i < 6; i++) {
		json_t *m = sample(i / 2 == 1), *own = json_pack("{s:i}", "to", i), *list = json_array();
		for (int k = 0; k < 2000; k++)
			json_array_append_new(list, json_sprintf("n%d:0-7", k + (i / 2 == 1)));
		json_object_set_new(m, "list", list);
		char *text, *frame;
		size_t text_size, size;
		assert_int_equal(hspmd_wire_text_packed(m, &text, &text_size, &err), 0);
		assert_int_equal(hspmd_wire_encode_with(text, text_size, own, &frame, &size, &err), 0);
		struct hspmd_wire_reader *r = signed_reader(HSPMD_WIRE_MAX, &frame, &size);
		hspmd_wire_reader_set_memo(r, memo);
		assert_int_equal(hspmd_wire_feed(r, frame, size, &err), 0);
		json_t *got = hspmd_wire_next(r);
		json_object_update(m, own);
		assert_true(json_equal(got, m));
		if (i % 2)
			assert_ptr_equal(json_object_get(got, "list"), shared);
		shared = json_object_get(got, "list"); /* the memo holds it */
		json_decref(got);
		hspmd_wire_reader_destroy(r);
		json_decref(m);
		json_decref(own);
		free(text);
		free(frame);
	}
	hspmd_wire_memo_destroy(memo);
}

static int pick(unsigned *seed, int count)
{
	return rand_r(seed) % count;
}

static void delta_back(const char *text, const char *wanted, unsigned seed)
{
	struct hspmd_error err = { "" };
	char *encoded, *back;
	size_t n, size = strlen(text);
	assert_int_equal(hspmd_delta_text_encode(text, size, &encoded, &n, &err), 0);
	if (wanted) {
		assert_int_equal(n, strlen(wanted));
		assert_memory_equal(encoded, wanted, n);
	}
	assert_int_equal(hspmd_delta_text_decode(encoded, n, size, &back, &err), 0);
	assert_memory_equal(back, text, size);
	free(back);
	assert_int_equal(hspmd_delta_text_decode(encoded, n, size + 1, &back, &err), -1);
	assert_int_equal(hspmd_delta_text_decode(encoded, n, size - 1, &back, &err), -1);
	/* A damaged one gives an error or another text, never a crash or a write past the end (run under a sanitizer). */
	for (int i = 0; i < 20; i++) {
		size_t at = (size_t)pick(&seed, (int)n);
		char was = encoded[at];
		encoded[at] = (char)pick(&seed, 256);
		if (!hspmd_delta_text_decode(encoded, n, size, &back, &err))
			assert_int_equal(back[size], '\0');
		free(back);
		encoded[at] = was;
	}
	free(encoded);
}

static void test_delta_text(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	char *encoded;
	size_t n;
	/* Numbers outside of strings stay; names that count on become bytes; each text before a number has its own last number. */
	delta_back("[7,8,\"n7\",\"n8\",\"m3\",\"n6:0-3\",\"n6:4-7\"]", "[7,8,\"n7\",\"n\x10\",\"m3\",\"n\x0d:0-3\",\"n\x0f:\x13-\x13\"]",
	           1);
	/* Leading zeros are kept, until a number does not have them. */
	delta_back("[\"n098\",\"n099\",\"n100\",\"n1\",\"n02\"]", "[\"n098\",\"n\x10\",\"n\x10\",\"n1\",\"n02\"]", 1);
	delta_back("[\"n0\",\"n320\",\"n1\",\"n\\\"5\"]",
	           "[\"n0\",\"n\x1e"
	           "320\x1e\",\"n\x1e-319\x1e\",\"n\\\"5\"]",
	           1);
	delta_back("\"n[0-7,10-17]\"", "\"n[0-7,10-17]\"", 1);
	delta_back("[\"9999999999\",\"9999999999\",\"999999999\",\"0\"]", NULL, 1);
	assert_int_equal(hspmd_delta_text_encode("{\n}", 3, &encoded, &n, &err), -1);
	assert_non_null(strstr(err.text, "control character"));
	static const char *const parts[] = { "n", "\"", "\\\\", ",", ":", "[", "-", "0", "9", "12", "007", "1000000000", "}", " ", "a" };
	unsigned few = draw_count(3000, 200000), first = draw_first(few, 1000000);
	for (unsigned seed = first; seed < first + few; seed++) {
		unsigned s = seed;
		char text[700] = "";
		for (int words = 1 + pick(&s, 60); words > 0; words--)
			strcat(text, parts[pick(&s, (int)(sizeof parts / sizeof *parts))]);
		delta_back(text, NULL, s);
	}
}

static void refused(const char *bytes, size_t size, size_t max, const char *says)
{
	struct hspmd_error err = { "" };
	struct hspmd_wire_reader *r = hspmd_wire_reader_create(max);
	assert_int_equal(hspmd_wire_feed(r, bytes, size, &err), -1);
	if (!strstr(err.text, says))
		fail_msg("expected \"%s\" in \"%s\"", says, err.text);
	hspmd_wire_reader_destroy(r);
}

static void test_refused(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	refused("GET / HTTP/1.0\r\n\r\n", 18, 100, "does not speak");
	struct hspmd_wire_reader *r = hspmd_wire_reader_create(100);
	assert_int_equal(hspmd_wire_feed(r, "HSP1", 4, &err), 0);
	assert_null(hspmd_wire_next(r));
	hspmd_wire_reader_destroy(r);
	refused("HSX", 3, 100, "does not speak");
	refused("HSP1\0\0\0\x65", 8, 100, "101 bytes where at most 100");
	refused("HSP1\xff\xff\xff\xff", 8, 1u << 31, "4294967295 bytes");
	refused("HSP1\0\0\0\x03[1]", 11, 100, "not a JSON object");
	refused("HSP1\0\0\0\x03{x}", 11, 100, "not JSON");
	refused("HSP1\0\0\0\x0d{\"a\":1,\"a\":2}", 21, 100, "not JSON");
	refused("HSP1\0\0\0\0", 8, 100, "not JSON");
}

/* Any single damaged byte gives an error or another message, never a crash or a read past the end (run under a sanitizer). */
static void test_damage(void **state)
{
	(void)state;
	char *a;
	size_t n;
	json_t *m = sample(7);
	frame_of(m, &a, &n);
	uint32_t seed = 12345;
	for (int round = 0; round < 20000; round++) {
		char *copy = malloc(n);
		memcpy(copy, a, n);
		for (int hits = 1 + round % 3; hits > 0; hits--) {
			seed = seed * 1664525u + 1013904223u;
			copy[(seed >> 8) % n] = (char)(seed >> 24);
		}
		struct hspmd_wire_reader *r = hspmd_wire_reader_create(4096);
		struct hspmd_error err;
		hspmd_wire_feed(r, copy, n, &err);
		json_decref(hspmd_wire_next(r));
		hspmd_wire_reader_destroy(r);
		free(copy);
	}
	free(a);
	json_decref(m);
}

static void test_blocking(void **state)
{
	(void)state;
	int fd[2];
	struct hspmd_error err;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	struct hspmd_wire_reader *r = hspmd_wire_reader_create(HSPMD_WIRE_MAX);
	json_t *m = sample(3), *got;
	assert_int_equal(hspmd_wire_receive(fd[1], r, 0, &got, &err), -1);
	assert_non_null(strstr(err.text, "waited 0 s"));
	assert_int_equal(hspmd_wire_send(fd[0], m, 5, &err), 0);
	assert_int_equal(hspmd_wire_receive(fd[1], r, 5, &got, &err), 1);
	assert_true(json_equal(got, m));
	json_decref(got);
	close(fd[0]);
	assert_int_equal(hspmd_wire_receive(fd[1], r, 5, &got, &err), 0);
	assert_int_equal(hspmd_wire_send(fd[1], m, 5, &err), -1);
	close(fd[1]);
	hspmd_wire_reader_destroy(r);
	json_decref(m);
}

static json_t *big(size_t size)
{
	char *text = malloc(size + 1);
	memset(text, 'x', size);
	text[size] = 0;
	json_t *m = json_pack("{s:s, s:s}", "type", "big", "text", text);
	free(text);
	return m;
}

static void test_unread(void **state)
{
	(void)state;
	int fd[2];
	struct hspmd_error err;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	json_t *m = big(1 << 20), *got = NULL;
	assert_int_equal(hspmd_wire_send(fd[0], m, 0.01, &err), -1);
	assert_non_null(strstr(err.text, "to take a message"));
	close(fd[0]), close(fd[1]);

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	struct hspmd_stream *a = hspmd_stream_create(fd[0], HSPMD_WIRE_MAX, 3 << 20, &err);
	struct hspmd_stream *b = hspmd_stream_create(fd[1], HSPMD_WIRE_MAX, 3 << 20, &err);
	assert_int_equal(hspmd_stream_send(a, m, &err), 0);
	assert_true(hspmd_stream_has_unsent(a));
	assert_int_equal(hspmd_stream_send(a, m, &err), 0);
	int rc = 0;
	for (int i = 0; i < 4 && !rc; i++)
		rc = hspmd_stream_send(a, m, &err);
	assert_int_equal(rc, -1);
	assert_non_null(strstr(err.text, "unread"));
	for (int took = 0; took < 2;) {
		assert_int_equal(hspmd_stream_flush(a, &err), 0);
		assert_int_equal(hspmd_stream_read(b, &err), 1);
		while ((got = hspmd_stream_next(b))) {
			assert_true(json_equal(got, m));
			json_decref(got);
			took++;
		}
	}
	json_decref(m);
	hspmd_stream_destroy(a);
	hspmd_stream_destroy(b);
}

/* A limit that is raised after the peer has been identified applies to later messages. */
static void test_limit(void **state)
{
	(void)state;
	int fd[2];
	struct hspmd_error err;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	struct hspmd_stream *b = hspmd_stream_create(fd[1], 64, 1 << 20, &err);
	json_t *m = big(1000), *got;
	hspmd_stream_set_max_frame(b, 1 << 20);
	assert_int_equal(hspmd_wire_send(fd[0], m, 5, &err), 0);
	assert_int_equal(hspmd_stream_receive(b, 5, &got, &err), 1);
	json_decref(got);
	hspmd_stream_set_max_frame(b, 64);
	assert_int_equal(hspmd_wire_send(fd[0], m, 5, &err), 0);
	assert_int_equal(hspmd_stream_receive(b, 5, &got, &err), -1);
	assert_non_null(strstr(err.text, "at most 64"));
	json_decref(m);
	hspmd_stream_destroy(b);
	close(fd[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pieces),     cmocka_unit_test(test_shared_text), cmocka_unit_test(test_refused),
		cmocka_unit_test(test_damage),     cmocka_unit_test(test_blocking),    cmocka_unit_test(test_unread),
		cmocka_unit_test(test_limit),      cmocka_unit_test(test_packed),      cmocka_unit_test(test_memo),
		cmocka_unit_test(test_delta_text),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
