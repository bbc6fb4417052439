/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/scale/frames.h"

#include <stdlib.h>

#include "common/signer.h"
#include "common/wire.h"
#include "tests/bench/processor_time.h"

int scale_pass(struct scale_control *c, int count, json_t *message, bool told, struct hspmd_error *err)
{
	static const unsigned char secret[HSPMD_KEY_BYTES];
	struct hspmd_wire_reader *r = hspmd_wire_reader_create(HSPMD_WIRE_MAX);
	struct hspmd_signer *from = hspmd_signer_create(secret, err), *to = from ? hspmd_signer_create(secret, err) : NULL;
	int status = r && to && message ? 0 : hspmd_fail(err, "out of memory");
	if (!status) {
		status = hspmd_wire_reader_expect_signed(r, to, err) < 0 ? -1 : 0;
		to = NULL; /* the reader's */
	}
	for (int i = 0; !status && i < count; i++) {
		char *frame = NULL;
		size_t size = 0;
		double start = processor_time(), made;
		status = hspmd_wire_encode(message, &frame, &size, err);
		char *copy = status ? NULL : realloc(frame, size + HSPMD_SIGNATURE_BYTES);
		frame = copy ? copy : frame;
		if (!status)
			status = copy ? hspmd_wire_sign(from, copy, size, err) : hspmd_fail(err, "out of memory");
		size += HSPMD_SIGNATURE_BYTES;
		made = processor_time();
		if (!status && hspmd_wire_feed(r, frame, size, err) < 0)
			status = -1;
		json_t *read = status ? NULL : hspmd_wire_next(r);
		c->processor_s += told ? made - start : processor_time() - made;
		c->bytes += (double)size;
		c->largest = (double)size > c->largest ? (double)size : c->largest;
		if (!status && !read)
			status = hspmd_fail(err, "a frame was not read");
		json_decref(read);
		free(frame);
	}
	hspmd_signer_destroy(from);
	hspmd_signer_destroy(to);
	hspmd_wire_reader_destroy(r);
	json_decref(message);
	return status;
}

int scale_pass_packed(struct scale_control *c, int count, json_t *message, json_t *own, struct hspmd_error *err)
{
	char *text = NULL, *frame;
	size_t text_size = 0, size;
	double start = processor_time();
	int status = message && own ? hspmd_wire_text_packed(message, &text, &text_size, err) : hspmd_fail(err, "out of memory");
	for (int i = 0; !status && i < count; i++) {
		status = hspmd_wire_encode_with(text, text_size, own, &frame, &size, err);
		if (status)
			break;
		size += HSPMD_SIGNATURE_BYTES;
		c->bytes += (double)size;
		c->largest = (double)size > c->largest ? (double)size : c->largest;
		free(frame);
	}
	c->processor_s += processor_time() - start;
	free(text);
	json_decref(message);
	json_decref(own);
	return status;
}
