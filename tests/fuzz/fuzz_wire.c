/* SPDX-License-Identifier: Apache-2.0 */
/* What a stranger may send to a control port, in pieces: the first byte gives the length of the pieces. */
#include "common/auth.h"
#include "common/wire.h"
#include "fuzz.h"

#define LIMIT 4096 /* bytes of a message */

/* A message that was received reads the same after it is written. */
static void check_again(const json_t *message)
{
	struct hspmd_error err = { "" };
	char *frame;
	size_t size;
	fuzz_check(hspmd_wire_encode(message, &frame, &size, &err) == 0, "a message can be sent on");
	struct hspmd_wire_reader *r = hspmd_wire_reader_create(HSPMD_WIRE_MAX);
	fuzz_check(r && hspmd_wire_feed(r, frame, size, &err) == 0, "a message that was sent on is taken in");
	json_t *again = hspmd_wire_next(r);
	fuzz_check(again && json_equal(message, again), "a message is the same after the way");
	json_decref(again);
	hspmd_wire_reader_destroy(r);
	free(frame);
}

/* Without the cookie no peer can prove its identity. */
static void check_refused(const json_t *message)
{
	struct hspmd_error err = { "" };
	struct hspmd_auth *auth = hspmd_auth_cookie("a cookie that nobody who is strange has seen", &err);
	uid_t who;
	json_t *content = auth ? hspmd_auth_open(auth, "hello", "0000000000000000000000000000000000000000000000000000000000000000", message,
	                                         &who, &err)
	                       : NULL;
	fuzz_check(auth && !content, "a stranger is refused");
	fuzz_check_error(&err);
	hspmd_auth_destroy(auth);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct hspmd_error err = { "" };
	struct hspmd_wire_reader *r = hspmd_wire_reader_create(LIMIT);
	size_t piece = size ? 1u + data[0] : 1;
	int rc = r ? 0 : -1;
	for (size_t at = 0; !rc && at < size; at += piece) {
		rc = hspmd_wire_feed(r, data + at, size - at < piece ? size - at : piece, &err);
		for (json_t *m; (m = hspmd_wire_next(r)); json_decref(m)) {
			check_again(m);
			check_refused(m);
		}
	}
	if (rc)
		fuzz_check_error(&err);
	hspmd_wire_reader_destroy(r);
	return 0;
}
