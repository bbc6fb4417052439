/* SPDX-License-Identifier: Apache-2.0 */
/* Annotations: what each device holds, which annotations are refused, the text form. Expected boxes are worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/annotation/annotation.h"

static struct hspmd_annotation *parse(const char *text)
{
	struct hspmd_error err = { "" };
	struct hspmd_annotation *a = hspmd_annotation_parse(text, &err);
	if (!a)
		fail_msg("%s", err.text);
	return a;
}

/* Checks what `device` holds of a tensor annotated with `text`, as "[lo:hi, ...] partial/partials replica". */
static void check_share(const char *text, struct hspmd_shape shape, int device, const char *want)
{
	struct hspmd_error err = { "" };
	struct hspmd_annotation *a = parse(text);
	if (hspmd_annotation_check(a, &shape, &err) != 0)
		fail_msg("%s", err.text);
	struct hspmd_local_shard shard;
	char box[128], got[256];
	assert_true(hspmd_annotation_local_shard(a, &shape, device, &shard));
	snprintf(got, sizeof got, "%s %d/%d %d", hspmd_box_text(&shard.box, box, sizeof box), shard.partial, shard.partials, shard.replica);
	assert_string_equal(got, want);
	hspmd_annotation_destroy(a);
}

static const struct hspmd_shape MATRIX = { 2, { 12, 10 } };

static void single_group_shares(void **state)
{
	(void)state;
	check_share("{[7]}", MATRIX, 7, "[0:12, 0:10] 0/1 0");
	check_share("{[0-3]: 0:4}", MATRIX, 2, "[6:9, 0:10] 0/1 0");
	/* Outermost first: devices 0 and 1 are the copies of rows 0..5. */
	check_share("{[0-3]: 0:2 -1:2}", MATRIX, 1, "[0:6, 0:10] 0/1 1");
	check_share("{[0-3]: -1:2 0:2}", MATRIX, 1, "[6:12, 0:10] 0/1 0");
	check_share("{[0-3]: 0:2 1:2}", MATRIX, 3, "[6:12, 5:10] 0/1 0");
	check_share("{[3,2,1,0]: -2:2 1:2}", MATRIX, 0, "[0:12, 5:10] 1/2 0");
	check_share("{[0-7]: -2:2 -1:2 -2:2}", MATRIX, 5, "[0:12, 0:10] 3/4 0");
	check_share("{[0-7]: -2:2 -1:2 -2:2}", MATRIX, 2, "[0:12, 0:10] 0/4 1");
}

static void splits_that_do_not_divide(void **state)
{
	(void)state;
	struct hspmd_shape row = { 1, { 10 } };
	/* round(10 k / 4): 0 3 5 8 10 */
	check_share("{[0-3]: 0:4}", row, 0, "[0:3] 0/1 0");
	check_share("{[0-3]: 0:4}", row, 1, "[3:5] 0/1 0");
	check_share("{[0-3]: 0:4}", row, 2, "[5:8] 0/1 0");
	check_share("{[0-3]: 0:4}", row, 3, "[8:10] 0/1 0");
	/* Units of 4: ceil(10/4) = 3 units, round(3k/2): 0 2 3, limited to 10. */
	check_share("{[0-1]: 0:2/4}", row, 0, "[0:8] 0/1 0");
	check_share("{[0-1]: 0:2/4}", row, 1, "[8:10] 0/1 0");
	/* 12 heads of 64: weights that are 7:5 except for a rounding of the sixth digit mean 7:5. */
	struct hspmd_shape heads = { 1, { 768 } };
	check_share("{[0-1]: 0:2/64(583333:416667)}", heads, 0, "[0:448] 0/1 0");
	check_share("{[0-1]: 0:2/64(583333:416667)}", heads, 1, "[448:768] 0/1 0");
	/* Bounds are computed without overflow. */
	struct hspmd_shape huge = { 1, { INT64_C(4611686018427387904) } };
	check_share("{[0-1]: 0:2(4611686018427387903:1)}", huge, 1, "[4611686018427387903:4611686018427387904] 0/1 0");
}

static void repeated_dimensions(void **state)
{
	(void)state;
	/* A ZeRO shard within a tensor-parallel shard: rows 0..6 of 10 in the ratio 3:2, halved again. */
	struct hspmd_shape row = { 1, { 10 } };
	check_share("{[0-3]: 0:2(3:2) 0:2}", row, 1, "[3:6] 0/1 0");
	check_share("{[0-3]: 0:2(3:2) 0:2}", row, 2, "[6:8] 0/1 0");
}

static void union_shares(void **state)
{
	(void)state;
	check_share("{[0,1]: 1:2 | [5]} h0(2:1)", MATRIX, 1, "[0:8, 5:10] 0/1 0");
	check_share("{[0,1]: 1:2 | [5]} h0(2:1)", MATRIX, 5, "[8:12, 0:10] 0/1 0");
	/* hdim cuts before the subgroup's own splits. */
	check_share("{[0,1]: 0:2 | [2,3]: 0:2} h0/4", MATRIX, 2, "[8:10, 0:10] 0/1 0");
	check_share("{[0,1]: -1:2 | [2-4]: 0:3}", MATRIX, 1, "[0:12, 0:10] 0/1 1");
	check_share("{[0,1]: -1:2 | [2-4]: 0:3}", MATRIX, 4, "[8:12, 0:10] 0/1 2");
	check_share("{[0,1]: -2:2 | [2-4]: 0:3} h-2", MATRIX, 1, "[0:12, 0:10] 1/3 0");
	check_share("{[0,1]: -2:2 | [2-4]: 0:3} h-2", MATRIX, 4, "[8:12, 0:10] 2/3 0");
	check_share("{[0,1]: -2:2 | [2]} h0", MATRIX, 2, "[6:12, 0:10] 0/1 0");
}

/* The devices with replica 0 hold each element of each addend once. */
static void first_replicas_cover_once(void **state)
{
	(void)state;
	static const char *const texts[] = { "{[0-7]: 0:2 -1:2 1:2}", "{[0,1]: -1:2 | [2-4]: 0:3 | [5]}", "{[0-3]: 0:2 -1:2 | [4]} h1(1:4)",
		                             "{[0,1]: -2:2 | [2-5]: 0:2 -1:2} h-2" };
	static const int addends[] = { 1, 1, 1, 3 };
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		struct hspmd_annotation *a = parse(texts[i]);
		struct hspmd_local_shard shards[16];
		int count = hspmd_annotation_local_shards(a, &MATRIX, NULL, shards);
		int64_t covered = 0;
		for (int d = 0; d < count; d++)
			covered += shards[d].replica == 0 ? hspmd_box_elements(&shards[d].box) : 0;
		assert_int_equal(covered, 120 * addends[i]);
		hspmd_annotation_destroy(a);
	}
}

static void refuse(const char *text, struct hspmd_shape shape, const char *reason)
{
	struct hspmd_error err = { "" };
	struct hspmd_annotation *a = hspmd_annotation_parse(text, &err);
	if (a && hspmd_annotation_check(a, &shape, &err) == 0)
		fail_msg("'%s' was accepted", text);
	if (!strstr(err.text, reason))
		fail_msg("'%s': got \"%s\", expected \"%s\"", text, err.text, reason);
	hspmd_annotation_destroy(a);
}

static void illegal_annotations(void **state)
{
	(void)state;
	refuse("{[0,1]}", MATRIX, "subgroup 0: 2 devices, but its state has fewer parts");
	refuse("{[0,1]: 0:2 -1:2}", MATRIX, "subgroup 0: 2 devices, but its state has more parts");
	refuse("{[0,1,0]: 0:3}", MATRIX, "device 0 occurs twice");
	refuse("{[0,1]: 0:2 | [1]}", MATRIX, "device 1 occurs twice");
	refuse("{[0,1]: 2:2}", MATRIX, "subgroup 0, entry 0: dimension 2: the tensor has 2 dimensions");
	refuse("{[0] | [1]} h2", MATRIX, "hdim 2: the tensor has 2 dimensions");
	refuse("{[0-12]: 0:13}", MATRIX, "device 6 (number 6 of subgroup 0) would hold no element");
	refuse("{[7,3]: 0:2(1:100)}", MATRIX, "device 7 (number 0 of subgroup 0) would hold no element");
	refuse("{[0-3]: 1:2/5 1:2/5}", MATRIX, "would hold no element");
	refuse("{[0]}", (struct hspmd_shape){ 2, { 3, 0 } }, "dimension 1 has no elements");
	refuse("{[0,1]: 0:2(9223372036854775807:1)}", MATRIX, "a sum below 2^63");
	refuse("{[0,1]: 0:2(9223372036854775807:1)}", MATRIX, "annotation {[0,1]: 0:2(9223372036854775807:1)}");
	refuse("{[0,1]: 0:2}", (struct hspmd_shape){ 0, { 0 } }, "the tensor has 0 dimensions");

	struct hspmd_error err = { "" };
	int device = -4;
	struct hspmd_annotation *a = hspmd_annotation_single(&device, 1);
	assert_int_equal(hspmd_annotation_check(a, NULL, &err), -1);
	assert_non_null(strstr(err.text, "device -4"));
	a->groups[0].devices[0] = 4;
	a->hdim = 0;
	assert_int_equal(hspmd_annotation_check(a, NULL, &err), -1);
	assert_non_null(strstr(err.text, "one subgroup has hdim -1"));
	hspmd_annotation_destroy(a);
}

static void text_round_trip(void **state)
{
	(void)state;
	static const char *const texts[] = { "{[0]}", "{[0-3]: 0:2/64(5:3) -1:2 | [4]} h0/7(2:1)", "{[0,1]: -2:2 | [3,2]: 1:2} h-2",
		                             "{[9,4-6,2,1]: 5:6(1:2:3:4:5:6)}", "{[0,1]: 0:1 0:2 -1:1 | [7]}" };
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		struct hspmd_annotation *a = parse(texts[i]);
		char *text = hspmd_annotation_text(a);
		assert_string_equal(text, texts[i]);
		free(text);
		struct hspmd_annotation *b = hspmd_annotation_copy(a);
		hspmd_annotation_destroy(a);
		text = hspmd_annotation_text(b);
		assert_string_equal(text, texts[i]);
		free(text);
		hspmd_annotation_destroy(b);
	}
	struct hspmd_annotation *a = parse("  { [ 0 - 1 , 2 ] :0 : 3 / 2 ( 1 :1: 2 )|[ 4 ] : }  h -2 ");
	char *text = hspmd_annotation_text(a);
	assert_string_equal(text, "{[0-2]: 0:3/2(1:1:2) | [4]} h-2");
	free(text);
	hspmd_annotation_destroy(a);
}

static void text_errors(void **state)
{
	(void)state;
	static const struct {
		const char *text, *reason;
	} bad[] = {
		{ "", "column 1: expected '{'" },
		{ "{[0]} x", "column 7: expected the end" },
		{ "{[0,]}", "column 5: expected a device number" },
		{ "{[3-1]}", "expected a device number that is not below the first" },
		{ "{[0-99999]: 0:100000}", "expected fewer devices" },
		{ "{[0-65535]: 0:65536 | [70000]}", "expected fewer devices" },
		{ "{[99999999999999999999]}", "expected a device number" },
		{ "{[0]: 6:1}", "expected a dimension" },
		{ "{[0]: -3:1}", "expected a dimension" },
		{ "{[0]: 0:0}", "expected a number of parts" },
		{ "{[0,1]: 0:2(1)}", "expected as many weights as parts" },
		{ "{[0,1]: 0:2(1:0)}", "expected a weight" },
		{ "{[0,1]: -1:2/4}", "expected no unit and no weights" },
		{ "{[0,1]: 0:2", "expected an entry, '|' or '}'" },
		{ "{[0]} h0", "expected hdim -1" },
		{ "{[0]} h-2", "expected hdim -1" },
		{ "{[0] | [1]} h0(1:2:3)", "expected as many weights as parts" },
		{ "{[0] | [1]} h-1/2", "expected no unit" },
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		refuse(bad[i].text, MATRIX, bad[i].reason);
}

static void check_equal(const char *x, const char *y, bool want)
{
	struct hspmd_annotation *a = parse(x), *b = parse(y);
	if (hspmd_annotation_equal(a, b, &MATRIX) != want || hspmd_annotation_equal(b, a, &MATRIX) != want)
		fail_msg("%s and %s are%s equal", x, y, want ? " not" : "");
	hspmd_annotation_destroy(a);
	hspmd_annotation_destroy(b);
}

static void equality(void **state)
{
	(void)state;
	check_equal("{[0,1]: 0:2}", "{[1,0]: 0:2}", false);
	check_equal("{[0,1]: 0:2}", "{[0,1]: 0:2/3(7:7)}", true);
	check_equal("{[0,1]: 0:2}", "{[0] | [1]} h0", true);
	check_equal("{[0,1]: 0:2}", "{[0,1]: 0:2(2:1)}", false);
	check_equal("{[0,1]: -1:2}", "{[1] | [0]}", true);
	check_equal("{[0,1]: -1:2}", "{[0-2]: -1:3}", false);
	check_equal("{[0-3]: 0:2 1:2}", "{[0,2,1,3]: 1:2 0:2}", true);
	check_equal("{[0,1]: -2:2}", "{[0,1]: -1:2}", false);
	check_equal("{[0,1]: -2:2}", "{[1] | [0]} h-2", true);
	/* The order of copies and addends matters. */
	check_equal("{[0-3]: -2:2 -1:2}", "{[0-3]: -1:2 -2:2}", false);
	check_equal("{[0-3]: -2:2 -1:2}", "{[0,2,1,3]: -1:2 -2:2}", true);
	check_equal("{[0-3]: -2:2 -1:2}", "{[0,1]: -1:2 | [2,3]: -1:2} h-2", true);
	/* Two alternative ways to the value, each with addends of its own, are no equal copies. */
	check_equal("{[0,2,1,3]: -1:2 -2:2}", "{[0,2]: -2:2 | [1,3]: -2:2}", false);
	check_equal("{[0-3]: 0:2 -2:2}", "{[0,1]: -2:2 | [2,3]: -2:2} h0", true);
}

static void union_builder(void **state)
{
	(void)state;
	struct hspmd_annotation *parts[] = { parse("{[0,1]: 0:2 | [2]}"), parse("{[3]}") };
	int64_t weights[] = { 1, 2, 3 };
	struct hspmd_annotation *a = hspmd_annotation_union((const struct hspmd_annotation *const *)parts, 2, 0, 2, weights);
	char *text = hspmd_annotation_text(a);
	assert_string_equal(text, "{[0,1]: 0:2 | [2] | [3]} h0/2(1:2:3)");
	free(text);
	hspmd_annotation_destroy(a);
	a = hspmd_annotation_union((const struct hspmd_annotation *const *)&parts[1], 1, 0, 2, weights);
	assert_int_equal(hspmd_annotation_check(a, NULL, NULL), 0);
	assert_int_equal(a->hdim, HSPMD_DUPLICATE);
	hspmd_annotation_destroy(a);
	hspmd_annotation_destroy(parts[0]);
	hspmd_annotation_destroy(parts[1]);
	hspmd_annotation_destroy(NULL);
}

static void rows_of_experts(void **state)
{
	(void)state;
	const struct hspmd_shape shape = { 3, { 2, 4, 8 } };
	struct hspmd_annotation *whole = parse("{[0,1]: -1:2}"), *rows = parse("{[0,1]: -1:2}"), *others = parse("{[0,1]: -1:2}"),
	                        *sum = parse("{[0,1]: -2:2}"), *row_sum = parse("{[0,1]: -2:2}");
	assert_int_equal(hspmd_annotation_set_rows(rows, parse("{[0,1]: 0:2}"), 4, 2), 0);
	assert_int_equal(hspmd_annotation_set_rows(others, parse("{[0,1]: 0:2(3:1)}"), 4, 2), 0);
	assert_int_equal(hspmd_annotation_set_rows(row_sum, parse("{[0,1]: 0:2}"), 4, 2), 0);
	assert_int_equal(hspmd_annotation_check(rows, &shape, NULL), 0);
	assert_false(hspmd_annotation_equal(rows, whole, &shape) || hspmd_annotation_equal(rows, others, &shape));
	/* All copies of a row include those that are wanted; addends that are 0 are addends. Not the other way round. */
	assert_true(hspmd_annotation_serves(whole, rows, &shape) && !hspmd_annotation_serves(rows, whole, &shape));
	assert_true(hspmd_annotation_serves(row_sum, sum, &shape) && !hspmd_annotation_serves(sum, row_sum, &shape));
	assert_true(!hspmd_annotation_serves(rows, others, &shape) && !hspmd_annotation_serves(sum, rows, &shape));
	struct hspmd_annotation *copy = hspmd_annotation_copy(rows);
	assert_true(hspmd_annotation_equal(copy, rows, &shape));
	char *text = hspmd_annotation_text(copy);
	assert_string_equal(text, "{[0,1]: -1:2} rows of {[0,1]: 0:2} of 4/2");
	assert_null(hspmd_annotation_parse(text, NULL));
	free(text);
	hspmd_annotation_drop_rows(copy);
	assert_true(hspmd_annotation_equal(copy, whole, &shape));
	/* A device without experts, and a tensor without rows. */
	struct hspmd_error err;
	assert_int_equal(hspmd_annotation_set_rows(copy, parse("{[0,1]: 0:2}"), 1, 1), 0);
	assert_int_equal(hspmd_annotation_check(copy, &shape, &err), -1);
	assert_int_equal(hspmd_annotation_check(rows, &(struct hspmd_shape){ 1, { 4 } }, &err), -1);
	assert_non_null(strstr(err.text, "rows of experts of a tensor of 1 dimensions"));
	struct hspmd_annotation *all[] = { whole, rows, others, sum, row_sum, copy };
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		hspmd_annotation_destroy(all[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(single_group_shares),
		cmocka_unit_test(splits_that_do_not_divide),
		cmocka_unit_test(repeated_dimensions),
		cmocka_unit_test(union_shares),
		cmocka_unit_test(first_replicas_cover_once),
		cmocka_unit_test(illegal_annotations),
		cmocka_unit_test(text_round_trip),
		cmocka_unit_test(text_errors),
		cmocka_unit_test(equality),
		cmocka_unit_test(union_builder),
		cmocka_unit_test(rows_of_experts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
