/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of other trainers by libhspmd: tensors of any type that several processes wrote in parts are read in other parts, to the bit;
 * a checkpoint exists when it is committed and not before; damage and missing parts are errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/error.h"
#include "runtime/lib/hspmd.h"
#include "runtime/state/export.h"
#include "tests/unit/state_folder.h"

#define PATIENCE_S 60

/* The state: a matrix, of which each of two processes has some columns, and what the first has alone. */
static float matrix[4][6];
static const int64_t matrix_shape[] = { 4, 6 };
static int64_t count = 7;
static uint16_t halves[3] = { 1, 2, 3 };
static const int64_t halves_shape[] = { 3 };
static unsigned char bytes[2] = { 250, 251 };
static const int64_t bytes_shape[] = { 2 };

static struct hspmd_stored_tensor columns(float *data, const int64_t *low, const int64_t *high)
{
	return (struct hspmd_stored_tensor){ "layer.weight", 1, "F32", 2, matrix_shape, low, high, data };
}

static void fill_matrix(float add)
{
	for (int i = 0; i < 24; i++)
		matrix[i / 6][i % 6] = (float)i + add;
}

/* What a process has of the matrix, packed. */
static void cut(float *to, int low, int high)
{
	for (int r = 0; r < 4; r++)
		for (int c = low; c < high; c++)
			*to++ = matrix[r][c];
}

static char *written[2];

static void save(int process, int64_t step, bool copied_first)
{
	struct hspmd_error err = { "" };
	static const int64_t low[2][2] = { { 0, 0 }, { 0, 2 } }, high[2][2] = { { 4, 2 }, { 4, 6 } };
	float part[16];
	cut(part, (int)low[process][1], (int)high[process][1]);
	struct hspmd_stored_tensor tensors[] = {
		columns(part, low[process], high[process]),
		{ "layer.weight", 0, "F16", 1, halves_shape, NULL, NULL, halves },
		{ "step", 0, "I64", 0, NULL, NULL, NULL, &count },
		{ "flags", 0, "BOOL", 1, bytes_shape, NULL, NULL, bytes },
		{ "bias", 1, "F16", 1, halves_shape, NULL, NULL, halves },
	};
	struct hspmd_saver *s = hspmd_saver_create(&err);
	const char *text = NULL, *again = NULL;
	assert_non_null(s);
	must(hspmd_saver_begin(s, scene_path("all/mine"), step, 3, process ? "b.safetensors" : "a.safetensors", tensors, process ? 1 : 5,
	                       &err),
	     &err);
	if (copied_first) {
		must(hspmd_saver_wait_copied(s, &err), &err);
		memset(part, 0, sizeof part);
	}
	assert_int_equal(hspmd_saver_result(s, PATIENCE_S, &text, &err), 1);
	free(written[process]);
	written[process] = strdup(text);
	assert_int_equal(hspmd_saver_result(s, 0, &again, &err), 0);
	assert_null(again);
	hspmd_saver_destroy(s);
}

static int commit(int64_t step, const char *note, int files, struct hspmd_error *err)
{
	return hspmd_saver_commit(scene_path("all/mine"), step, 3, note, (const char *const *)written, files, 2, err);
}

static struct hspmd_checkpoint *newest(struct hspmd_error *err)
{
	return hspmd_checkpoint_open(scene_path("all"), err);
}

static void test_other_parts(void **state)
{
	struct hspmd_error err = { "" };
	float got[10] = { 0 }, want[10];
	int64_t low[] = { 1, 0 }, high[] = { 3, 5 }, step = 0;
	uint16_t half = 0;
	int64_t one[] = { 1 }, two[] = { 2 };
	unsigned char flags[2] = { 0 };
	(void)state;
	fill_matrix(0.5f);
	save(0, 40, false);
	save(1, 40, true);
	assert_null(newest(&err));
	must(commit(40, "what else there is", 2, &err), &err);
	struct hspmd_checkpoint *c = newest(&err);
	assert_non_null(c);
	assert_int_equal(hspmd_checkpoint_step(c), 40);
	assert_string_equal(hspmd_checkpoint_note(c), "what else there is");
	struct hspmd_stored_tensor wanted[] = {
		columns(got, low, high),
		{ "layer.weight", 0, "F16", 1, halves_shape, one, two, &half },
		{ "step", 0, "I64", 0, NULL, NULL, NULL, &step },
		{ "flags", 0, "BOOL", 1, bytes_shape, NULL, NULL, flags },
	};
	must(hspmd_checkpoint_fill(c, wanted, 4, &err), &err);
	for (int i = 0; i < 10; i++)
		want[i] = matrix[1 + i / 5][i % 5];
	assert_memory_equal(got, want, sizeof got);
	assert_int_equal(half, 2);
	assert_int_equal(step, 7);
	assert_memory_equal(flags, bytes, 2);
	static const char *const listed[] = { "bias F16 1", "layer.weight F32 1", "flags BOOL 0", "layer.weight F16 0", "step I64 0" };
	struct hspmd_stored_tensor found;
	for (int i = 0; i < 5; i++) {
		char text[64];
		assert_int_equal(hspmd_checkpoint_tensor(c, i, &found), 1);
		snprintf(text, sizeof text, "%s %s %d", found.name, found.type, found.parameter);
		assert_string_equal(text, listed[i]);
		assert_null(found.data);
	}
	assert_int_equal(found.rank, 0);
	assert_int_equal(hspmd_checkpoint_tensor(c, 5, &found), 0);
	wanted[2].name = "steps";
	assert_int_equal(hspmd_checkpoint_fill(c, wanted, 4, &err), -1);
	assert_non_null(strstr(err.text, "steps"));
	wanted[2].name = "step";
	wanted[2].type = "F64";
	assert_int_equal(hspmd_checkpoint_fill(c, wanted, 4, &err), -1);
	assert_non_null(strstr(err.text, "I64"));
	hspmd_checkpoint_close(c);
}

/* Two are kept; one of which a part was never written is not committed. */
static void test_what_exists(void **state)
{
	struct hspmd_error err = { "" };
	(void)state;
	for (int64_t step = 1; step <= 3; step++) {
		fill_matrix((float)step);
		save(0, step, true);
		save(1, step, false);
		must(commit(step, NULL, 2, &err), &err);
	}
	assert_int_equal(access(scene_path("all/mine/step-0000000001-g3"), F_OK), -1);
	assert_int_equal(access(scene_path("all/mine/step-0000000002-g3/manifest.json"), F_OK), 0);
	save(0, 4, true);
	assert_int_equal(commit(4, NULL, 1, &err), -1);
	assert_non_null(strstr(err.text, "layer.weight"));
	struct hspmd_checkpoint *c = newest(&err);
	assert_non_null(c);
	assert_int_equal(hspmd_checkpoint_step(c), 3);
	assert_null(hspmd_checkpoint_note(c));
	hspmd_checkpoint_close(c);
}

static void test_damage(void **state)
{
	struct hspmd_error err = { "" };
	float got[24];
	(void)state;
	fill_matrix(2);
	save(0, 1, false);
	save(1, 1, false);
	must(commit(1, NULL, 2, &err), &err);
	FILE *f = fopen(scene_path("all/mine/step-0000000001-g3/b.safetensors"), "r+");
	assert_non_null(f);
	assert_int_equal(fseek(f, -3, SEEK_END), 0);
	assert_int_equal(fputc(0x55, f), 0x55);
	fclose(f);
	struct hspmd_checkpoint *c = newest(&err);
	assert_non_null(c);
	struct hspmd_stored_tensor all = columns(got, NULL, NULL);
	assert_int_equal(hspmd_checkpoint_fill(c, &all, 1, &err), -1);
	int64_t low[] = { 0, 0 }, high[] = { 4, 2 };
	struct hspmd_stored_tensor first = columns(got, low, high);
	must(hspmd_checkpoint_fill(c, &first, 1, &err), &err);
	hspmd_checkpoint_close(c);
}

/* The parameters alone, each in its type; F32 as BF16 if wanted. */
static void exported(bool bf16, size_t expected, const char *type)
{
	struct hspmd_error err = { "" };
	struct hspmd_listed_checkpoint *found = NULL;
	int all = hspmd_checkpoint_list(scene_path("all"), HSPMD_LOCATION_DEPTH, &found, &err);
	assert_int_equal(all, 1);
	const char *folder = found[0].folder;
	struct hspmd_reader *r = hspmd_reader_create(found[0].manifest, NULL, &folder, 1, &err);
	assert_non_null(r);
	struct hspmd_export_options how = { .folder = scene_path("out%d", bf16), .bf16 = bf16 };
	must(hspmd_weights_export(r, &how, &err), &err);
	hspmd_reader_destroy(r);
	hspmd_checkpoint_list_free(found, all);
	char text[2048] = { 0 };
	FILE *f = fopen(scene_path("out%d/model.safetensors", bf16), "r");
	assert_non_null(f);
	size_t size = fread(text, 1, sizeof text - 1, f);
	fclose(f);
	uint64_t head;
	memcpy(&head, text, sizeof head);
	assert_int_equal(size, sizeof head + head + expected);
	assert_non_null(strstr(text + sizeof head, type));
	assert_non_null(strstr(text + sizeof head, "\"layer.weight\""));
	assert_null(strstr(text + sizeof head, "\"step\""));
	assert_memory_equal(text + sizeof head + head, halves, sizeof halves);
	if (!bf16)
		assert_memory_equal(text + sizeof head + head + sizeof halves, matrix, sizeof matrix);
}

static void test_export(void **state)
{
	struct hspmd_error err = { "" };
	(void)state;
	fill_matrix(3);
	save(0, 5, true);
	save(1, 5, true);
	must(commit(5, "note", 2, &err), &err);
	exported(false, sizeof matrix + sizeof halves, "\"F32\"");
	exported(true, sizeof matrix / 2 + sizeof halves, "\"BF16\"");
}

static void refused(struct hspmd_stored_tensor t, const char *word)
{
	struct hspmd_error err = { "" };
	struct hspmd_saver *s = hspmd_saver_create(&err);
	assert_non_null(s);
	assert_int_equal(hspmd_saver_begin(s, scene_path("all"), 1, 1, "a.safetensors", &t, 1, &err), -1);
	assert_non_null(strstr(err.text, word));
	hspmd_saver_destroy(s);
}

static void test_wrong_descriptions(void **state)
{
	int64_t low[] = { 0, 3 }, high[] = { 4, 3 }, beyond[] = { 4, 7 };
	(void)state;
	refused((struct hspmd_stored_tensor){ NULL, 1, "F32", 2, matrix_shape, NULL, NULL, matrix }, "name");
	refused((struct hspmd_stored_tensor){ "w", 1, "F31", 2, matrix_shape, NULL, NULL, matrix }, "F31");
	refused((struct hspmd_stored_tensor){ "w", 1, NULL, 2, matrix_shape, NULL, NULL, matrix }, "type");
	refused((struct hspmd_stored_tensor){ "w", 1, "F32", 7, matrix_shape, NULL, NULL, matrix }, "7 dimensions");
	refused((struct hspmd_stored_tensor){ "w", 1, "F32", -1, matrix_shape, NULL, NULL, matrix }, "-1 dimensions");
	refused(columns(&matrix[0][0], low, high), "[3, 3)");
	refused(columns(&matrix[0][0], low, beyond), "outside of 6");
	refused(columns(NULL, NULL, NULL), "no data");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_FOLDER(test_other_parts), IN_FOLDER(test_what_exists),        IN_FOLDER(test_damage),
		IN_FOLDER(test_export),      IN_FOLDER(test_wrong_descriptions),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	for (int i = 0; i < 2; i++)
		free(written[i]);
	return failed;
}
