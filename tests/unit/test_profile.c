/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd-profile-1: what is read and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/durable.h"
#include "common/format/profile.h"
#include "common/json.h"
#include "edit.h"

#define FILE_NAME HSPMD_SRCDIR "/tests/data/profile/opt.json"

static struct hspmd_error err;

static struct hspmd_profile *from_text(const char *text)
{
	struct hspmd_json_doc doc;
	err.text[0] = '\0';
	if (hspmd_json_parse(&doc, "p.json", text, strlen(text), &err))
		return NULL;
	struct hspmd_profile *p = hspmd_profile_from_json(doc.root, "p.json", &err);
	hspmd_json_close(&doc);
	return p;
}

static void reads_everything(void **state)
{
	(void)state;
	struct hspmd_profile *p = hspmd_profile_read(FILE_NAME, &err);
	assert_non_null(p);
	assert_string_equal(p->model, "opt-350m");
	assert_int_equal(p->seq_len, 2048);
	assert_true(p->params_bytes == 2 && p->grads_bytes == 4 && p->activation_bytes == 2);
	assert_int_equal(p->layer_count, 3);
	assert_string_equal(p->layers[2].name, "head");
	assert_true(p->layers[0].params == 53608448 && p->layers[0].output_elems == 2097152 && p->layers[0].activation_bytes == 8388608);
	assert_true(isnan(p->layers[1].activation_bytes));
	assert_int_equal(p->tied_count, 1);
	assert_int_equal(p->tied[0][1], 2);
	assert_int_equal(p->times_count, 2);
	const struct hspmd_profile_times *t = p->times;
	assert_string_equal(t[0].device_type, "V100");
	assert_int_equal(t[1].tp, 2);
	assert_int_equal(t[1].micro_batch, 2);
	assert_true(t[0].forward_s[1] == 0.0074 && t[0].backward_s[2] == 0.02 && isnan(t[0].backward_s[1]));
	assert_null(t[0].optimizer_s);
	assert_null(t[1].backward_s);
	assert_true(t[1].optimizer_s[0] == 1e-4 && isnan(t[1].optimizer_s[2]));

	json_t *once = hspmd_profile_to_json(p), *file = json_load_file(FILE_NAME, 0, NULL);
	hspmd_profile_destroy(p);
	hspmd_profile_destroy(NULL);
	assert_true(json_equal(once, file));
	char *text = hspmd_json_text(once);
	p = from_text(text);
	json_t *twice = hspmd_profile_to_json(p);
	assert_true(json_equal(once, twice));
	hspmd_profile_destroy(p);
	free(text);
	json_decref(once);
	json_decref(twice);
	json_decref(file);
}

static const struct edit edits[] = {
	{ "hspmd-profile-1", "hspmd-profile-9", "p.json: format: expected \"hspmd-profile-1\", got \"hspmd-profile-9\"" },
	{ "{\"params\": 2, \"grads\": 4, \"activations\": 2}", "4", "" },
	{ "{\"params\": 2, \"grads\": 4, \"activations\": 2}", "0",
	  "p.json: dtype_bytes: expected a number above 0 and at most 64, got 0" },
	{ "{\"params\": 2, \"grads\": 4, \"activations\": 2}", "null",
	  "p.json: dtype_bytes: expected a number above 0 and at most 64, but it is" },
	{ "\"grads\": 4,", "", "p.json: dtype_bytes.grads: expected a number above 0 and at most 64, but it is missing" },
	{ "\"grads\"", "\"grad\"", "p.json: dtype_bytes.grads: expected" },
	{ "\"grads\": 4", "\"grads\": 4, \"momenst\": 3", "p.json: dtype_bytes.momenst: unknown key" },
	{ "\"seq_len\": 2048", "\"seq_len\": -1", "p.json: seq_len: expected 1..67108864, got -1" },
	{ "\"params\": 2048", "\"params\": -2048", "p.json: layers[2].params: expected a number of at least 0" },
	{ "\"name\": \"head\", ", "", "p.json: layers[2].name: expected a string that is not empty, but it is missing" },
	{ "[[0, 2]]", "[[0, 3]]", "p.json: tied[0][1]: expected 0..2, got 3" },
	{ "[[0, 2]]", "[[2, 2]]", "p.json: tied[0]: a layer cannot be tied to itself" },
	{ "[[0, 2]]", "[0, 2]", "p.json: tied[0]: expected an array of 2 elements, got 0" },
	{ "[0.0004, 0.0074, 0]", "[0.0004, 0.0074]", "p.json: times[0].forward_s: expected an array of 3 elements, got an array of 2" },
	{ "[0.0004, 0.0074, 0]", "[0.0004, 0.0074, -1]", "p.json: times[0].forward_s[2]: expected a number of at least 0" },
	{ "[0.0004, 0.0074, 0]", "[0.0004, 0.0074, null]", "p.json: times[0].forward_s[2]: expected a number of at least 0" },
	{ "[0.0004, 0.0074, 0]", "[0, 0, 0]", "p.json: times[0].forward_s: no layer takes any time" },
	{ "[0.0004, 0.0074, 0]", "null", "p.json: times[0].forward_s: expected an array of 3 elements, but it is missing" },
	{ "[0.001, null, 0.02]", "[0.001, NaN, 0.02]", "p.json: line" },
	{ "\"tp\": 2", "\"tp\": 0", "p.json: times[1].tp: expected 1..65536, got 0" },
	{ "\"tp\": 2", "\"tp\": 1", "p.json: times: there are two entries for V100 with tp 1 and micro_batch 2" },
	{ "\"times\"", "\"timse\"", "p.json: times: expected an array of 1..65536 elements, but it is missing" },
};

static void refuses(void **state)
{
	(void)state;
	char *good = hspmd_read_file(FILE_NAME, 1 << 20, NULL, &err);
	for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
		char *text = edited(good, edits[i].find, edits[i].replace);
		assert_non_null(text);
		struct hspmd_profile *p = from_text(text);
		if (*edits[i].error ? p != NULL || !strstr(err.text, edits[i].error) : !p)
			fail_msg("%s -> %s: expected \"%s\", got \"%s\"", edits[i].find, edits[i].replace, edits[i].error, err.text);
		hspmd_profile_destroy(p);
		free(text);
	}
	free(good);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_everything),
		cmocka_unit_test(refuses),
	};
	return cmocka_run_group_tests_name("profile", tests, NULL, NULL);
}
