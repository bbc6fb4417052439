/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that the fuzz targets share. A target reads its bytes as a file; if they are accepted, what it then writes must be accepted
 * too, and must give the same again. libFuzzer stops at a crash, a leak, undefined behaviour, a message that is not one line, or when a
 * check here fails. */
#ifndef HSPMD_TESTS_FUZZ_H
#define HSPMD_TESTS_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void fuzz_check(int holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "does not hold: %s\n", what);
	abort();
}

/* An error must have a message, on one line. */
static inline void fuzz_check_error(const struct hspmd_error *err)
{
	fuzz_check(*err->text != '\0', "an error has a message");
	for (const char *p = err->text; *p; p++)
		fuzz_check((unsigned char)*p >= ' ', "a message is one line");
}

/* Reads a value, tries the functions that use it, and returns it as written again (a new reference), or NULL with err. */
typedef json_t *fuzz_written(const json_t *value, struct hspmd_error *err);

/* Writes the value as text and reads it back. */
static inline json_t *fuzz_through_text(const json_t *value)
{
	char *text = hspmd_json_text(value);
	fuzz_check(text != NULL, "a value can be written");
	json_t *again = json_loads(text, 0, NULL);
	fuzz_check(again != NULL, "what is written is JSON");
	free(text);
	return again;
}

static inline int fuzz_round_trip(const uint8_t *data, size_t size, fuzz_written *written)
{
	struct hspmd_json_doc doc;
	struct hspmd_error err = { "" };
	json_t *once = NULL;
	if (!hspmd_json_parse(&doc, "input", (const char *)data, size, &err))
		once = written(doc.root, &err);
	hspmd_json_close(&doc);
	if (!once) {
		fuzz_check_error(&err);
		return 0;
	}
	json_t *again = fuzz_through_text(once), *twice = written(again, &err);
	fuzz_check(twice && json_equal(once, twice), "what is written reads back the same");
	json_decref(once);
	json_decref(twice);
	json_decref(again);
	return 0;
}

#endif
