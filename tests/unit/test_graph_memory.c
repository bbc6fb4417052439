/* SPDX-License-Identifier: Apache-2.0 */
/* Shortage of memory in annotations, resolution and move planning. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "runtime/resharding/resolve.h"
#include "tests/unit/failing_alloc.h"

static struct hspmd_error err;
static const struct hspmd_shape shape = { 2, { 24, 6 } };
static struct hspmd_annotation *sums, *parts, *whole;

static int node_number(const void *context, int device)
{
	(void)context;
	return device / 2;
}

static const struct hspmd_link_cost cost = { .node = node_number };

static bool parse(void)
{
	struct hspmd_annotation *a = hspmd_annotation_parse("{[0-2]: 0:3/2(1:2:3) | [7,9]: -1:2} h1(2:1)", &err);
	hspmd_annotation_destroy(a);
	return a != NULL;
}

static bool print(void)
{
	char *text = hspmd_annotation_text(parts);
	free(text);
	return text != NULL;
}

static bool join(void)
{
	const struct hspmd_annotation *both[] = { parts, whole };
	int64_t weights[] = { 1, 2, 3, 4 };
	struct hspmd_annotation *a = hspmd_annotation_union(both, 2, 0, 1, weights);
	hspmd_annotation_destroy(a);
	return a != NULL;
}

static bool build(void)
{
	int devices[] = { 4, 5 };
	int64_t weights[] = { 1, 2 };
	struct hspmd_annotation *a = hspmd_annotation_single(devices, 2);
	bool done = a && hspmd_annotation_split(a, 0, 0, 2, 1, weights) == 0;
	hspmd_annotation_destroy(a);
	return done;
}

static bool check(void)
{
	return hspmd_annotation_check(parts, &shape, &err) == 0;
}

static bool resolve_pair(const struct hspmd_annotation *from, const struct hspmd_annotation *to)
{
	struct hspmd_transfer *t = hspmd_resolve(&shape, 4, from, to, &cost, &err);
	hspmd_transfer_destroy(t);
	return t != NULL;
}

static bool resolve_sums(void)
{
	return resolve_pair(sums, whole);
}

static bool resolve_parts(void)
{
	return resolve_pair(parts, whole);
}

static bool resolve_whole(void)
{
	return resolve_pair(whole, sums);
}

static bool plan_moves(void)
{
	struct hspmd_holding have[24];
	struct hspmd_need need[24];
	size_t element_bytes[3] = { 4, 4, 2 }, count;
	for (int i = 0; i < 24; i++) {
		have[i] = (struct hspmd_holding){ i % 3, i % 5, { 2, { 0, 0 }, { 24, 6 } } };
		need[i] = (struct hspmd_need){ i % 3, 3 + i % 7, { 2, { i, 0 }, { 24, 6 } } };
	}
	struct hspmd_planned_move *moves;
	if (hspmd_plan_moves(have, 24, need, 24, element_bytes, &cost, &moves, &count, &err) != 0)
		return false;
	free(moves);
	return true;
}

static int make_inputs(void **state)
{
	(void)state;
	sums = hspmd_annotation_parse("{[0-3]: -2:4 | [4,5]: -2:2} h-2", &err);
	parts = hspmd_annotation_parse("{[0,1]: 0:2 | [2]} h1(1:2)", &err);
	whole = hspmd_annotation_parse("{[3-7]: -1:5}", &err);
	return sums && parts && whole ? 0 : -1;
}

static int drop_inputs(void **state)
{
	(void)state;
	hspmd_annotation_destroy(sums);
	hspmd_annotation_destroy(parts);
	hspmd_annotation_destroy(whole);
	return 0;
}

static void every_allocation_may_fail(void **state)
{
	(void)state;
	static const struct failing_alloc_call calls[] = {
		{ "parse", parse, true },
		{ "print", print, false },
		{ "join", join, false },
		{ "build", build, false },
		{ "check", check, true },
		{ "resolve sums", resolve_sums, true },
		{ "resolve parts", resolve_parts, true },
		{ "resolve whole", resolve_whole, true },
		{ "plan moves", plan_moves, true },
	};
	failing_alloc_try(calls, sizeof calls / sizeof *calls, &err);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests_name("graph memory", tests, make_inputs, drop_inputs);
}
