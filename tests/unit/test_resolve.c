/* SPDX-License-Identifier: Apache-2.0 */
/* Resolution: random pairs of annotations are resolved, executed on simulated devices and compared with slices of the full tensor; and
 * known cases get the expected communication. HSPMD_LONG=1 runs the full number of cases; HSPMD_SEED=n one case. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/format/cluster.h"
#include "common/format/expert_rows.h"
#include "runtime/resharding/resolve_internal.h"
#include "tests/unit/transfer_run.h"

#define MAX_DEVICES 16

struct tally {
	long cases, kinds[HSPMD_COMM_KIND_COUNT], identities, compositions;
};

static struct hspmd_shape random_shape(struct random *r)
{
	struct hspmd_shape shape = { .rank = (int)random_range(r, 0, 12) };
	shape.rank = shape.rank == 0 ? 0 : shape.rank > 9 ? shape.rank - 8 : 1 + shape.rank % 3;
	for (int d = 0; d < shape.rank; d++)
		shape.dim[d] = random_range(r, 1, shape.rank > 2 ? 7 : 24);
	return shape;
}

/* Nodes of 4, with faster links inside. */
static double node_seconds(const void *context, int from, int to, double bytes)
{
	(void)context;
	return from / 4 == to / 4 ? 2e-6 + bytes / 1e11 : 1e-5 + bytes / 1e10;
}

static int node_number(const void *context, int device)
{
	(void)context;
	return device / 4;
}

static void fail_case(uint64_t seed, const struct hspmd_annotation *a, const struct hspmd_annotation *b, const char *message)
{
	char *from = hspmd_annotation_text(a), *to = hspmd_annotation_text(b);
	print_error("%s\n  from %s\n  to   %s\n", message, from, to);
	free(from);
	free(to);
	fail_msg("HSPMD_SEED=%llu fails", (unsigned long long)seed);
}

static void count_kinds(const struct hspmd_transfer *t, struct tally *tally)
{
	tally->cases++;
	tally->identities += t->step_count == 0;
	tally->compositions += t->value_count > 2;
	for (int s = 0; s < t->step_count; s++)
		tally->kinds[t->steps[s].kind]++;
}

/* Returns true if source or destination, values 0 and the last, begin or end there. */
static bool is_bound(const struct hspmd_transfer *t, int dim, int64_t at)
{
	for (int v = 0; v<t->value_count; v += t->value_count> 1 ? t->value_count - 1 : 1)
		for (int i = 0; i < t->layout[v].device_count; i++)
			if (t->layout[v].box[i].lo[dim] == at || t->layout[v].box[i].hi[dim] == at)
				return true;
	return false;
}

static int count_cuts(const struct hspmd_transfer *t, const struct hspmd_box *box, int dims)
{
	int cuts = 0;
	for (int d = 0; d < dims && d < t->shape.rank && box->lo[d] < box->hi[d]; d++)
		cuts += !is_bound(t, d, box->lo[d]) + !is_bound(t, d, box->hi[d]);
	return cuts;
}

/* Bounds along the first `dims` dimensions where neither source nor destination has one. */
static int cuts_along(const struct hspmd_transfer *t, int dims)
{
	int cuts = 0;
	for (int v = 1; v + 1 < t->value_count; v++)
		for (int i = 0; i < t->layout[v].device_count; i++)
			cuts += count_cuts(t, &t->layout[v].box[i], dims);
	for (int k = 0; k < t->step_count; k++) {
		const struct hspmd_comm_step *step = &t->steps[k];
		for (int m = 0; m < step->member_count; m++)
			cuts += (step->in ? count_cuts(t, &step->in[m], dims) : 0) + (step->out ? count_cuts(t, &step->out[m], dims) : 0);
		for (int m = 0; m < step->move_count; m++)
			cuts += count_cuts(t, &step->moves[m].box, dims);
	}
	return cuts;
}

static void one_case(uint64_t seed, struct tally *tally)
{
	struct random r = { seed * 1000003 };
	struct hspmd_shape shape = random_shape(&r);
	int devices = (int)random_range(&r, 1, MAX_DEVICES);
	struct hspmd_annotation *a = random_annotation(&r, &shape, devices);
	struct hspmd_annotation *b = random_range(&r, 0, 1) ? random_annotation(&r, &shape, devices) : random_relative(&r, a, &shape);
	bool exact = random_range(&r, 0, 3) > 0;
	struct hspmd_link_cost cost = { .seconds = node_seconds,
		                        .node = random_range(&r, 0, 2) ? node_number : NULL,
		                        .whole_dims = (int)random_range(&r, 0, 2) };
	const struct hspmd_link_cost *by = random_range(&r, 0, 1) ? &cost : NULL;
	struct hspmd_error err = { "" };
	struct hspmd_transfer *t = hspmd_resolve(&shape, random_range(&r, 0, 1) ? 4 : 4000, a, b, by, &err);
	if (!t)
		fail_case(seed, a, b, err.text);
	if (by && cuts_along(t, cost.whole_dims))
		fail_case(seed, a, b, "a dimension that must stay whole is cut");
	int64_t n = hspmd_shape_elements(&shape);
	double *full = malloc((size_t)n * sizeof *full);
	for (int64_t i = 0; i < n; i++)
		full[i] = exact ? (double)random_range(&r, -100000, 100000) : (double)random_next(&r) / 1e18 - 9;
	struct buffers source = buffers_source(&r, a, &shape, full, exact, MAX_DEVICES), result;
	char message[512];
	if (!transfer_run(t, NULL, &source, &result, NULL, message, sizeof message) ||
	    !buffers_check(&result, b, &shape, full, exact ? 0 : 1e-9, message, sizeof message))
		fail_case(seed, a, b, message);
	count_kinds(t, tally);
	buffers_destroy(&source);
	buffers_destroy(&result);
	free(full);
	hspmd_transfer_destroy(t);
	hspmd_annotation_destroy(a);
	hspmd_annotation_destroy(b);
}

static void random_pairs(void **state)
{
	(void)state;
	struct tally tally = { 0 };
	const char *seed = getenv("HSPMD_SEED"), *all = getenv("HSPMD_LONG");
	if (seed) {
		one_case(strtoull(seed, NULL, 10), &tally);
		return;
	}
	uint64_t cases = all && *all == '1' ? 200000 : 4000;
	for (uint64_t s = 1; s <= cases; s++)
		one_case(s, &tally);
	print_message("%ld cases, %ld with nothing to do, %ld compositions; steps:", tally.cases, tally.identities, tally.compositions);
	for (int k = 0; k < HSPMD_COMM_KIND_COUNT; k++) {
		print_message(" %s %ld", hspmd_comm_kind_names[k], tally.kinds[k]);
		assert_true(tally.kinds[k] > 0 || k == HSPMD_COMM_DISPATCH || k == HSPMD_COMM_COMBINE); /* test_transfers has these */
	}
	print_message("\n");
	assert_true(tally.identities > 0 && tally.compositions > 0);
}

/* ---- choices */

/* The steps as "kind members; ..", device numbers separated by commas; moves as "from>to". */
static char *steps_text(const struct hspmd_transfer *t)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	for (int s = 0; s < t->step_count; s++) {
		const struct hspmd_comm_step *step = &t->steps[s];
		fprintf(f, "%s%s ", s ? "; " : "", hspmd_comm_kind_names[step->kind]);
		for (int i = 0; i < step->move_count; i++)
			fprintf(f, "%s%d>%d%s", i ? "," : "", step->moves[i].from, step->moves[i].to, step->moves[i].add ? "+" : "");
		for (int i = 0; i < step->member_count && step->move_count == 0; i++)
			fprintf(f, "%s%d", i ? "," : "", step->members[i]);
	}
	fclose(f);
	return text;
}

/* 4-byte elements; links as in node_seconds, nodes of 4. */
static void check_steps(struct hspmd_shape shape, const char *from, const char *to, const char *want)
{
	struct hspmd_error err = { "" };
	struct hspmd_link_cost cost = { .seconds = node_seconds, .node = node_number };
	struct hspmd_annotation *a = hspmd_annotation_parse(from, &err), *b = a ? hspmd_annotation_parse(to, &err) : NULL;
	struct hspmd_transfer *t = b ? hspmd_resolve(&shape, 4, a, b, &cost, &err) : NULL;
	if (!t)
		fail_msg("%s", err.text);
	char *got = steps_text(t);
	if (strcmp(got, want) != 0)
		fail_msg("%s -> %s\n  got    %s\n  wanted %s\n  (%s)", from, to, got, want, t->why);
	free(got);
	hspmd_transfer_destroy(t);
	hspmd_annotation_destroy(a);
	hspmd_annotation_destroy(b);
}

static const struct hspmd_shape LARGE = { 2, { 96000, 64 } };

static void one_collective(void **state)
{
	(void)state;
	check_steps(LARGE, "{[0-3]: 0:4}", "{[0,1]: 0:2 | [2,3]: 0:2} h0", "");
	check_steps(LARGE, "{[0-3]: -1:4}", "{[0-3]: 0:4}", "copy 0,1,2,3");
	check_steps(LARGE, "{[0]}", "{[5]}", "send-receive 0,5");
	check_steps(LARGE, "{[0-3]: -2:4}", "{[0-3]: -1:4}", "all-reduce 0,1,2,3");
	check_steps(LARGE, "{[3,2,1,0]: -2:4}", "{[0-3]: -1:4}", "all-reduce 3,2,1,0");
	check_steps(LARGE, "{[0-3]: -2:2 -1:2}", "{[0-3]: -1:4}", "all-reduce 0,2; all-reduce 1,3");
	check_steps(LARGE, "{[0-3]: 1:2 -2:2}", "{[0-3]: 1:2 -1:2}", "all-reduce 0,1; all-reduce 2,3");
	check_steps(LARGE, "{[0-3]: -2:4}", "{[0-3]: 0:4(8:9:9:8)}", "reduce-scatter 0,1,2,3");
	check_steps(LARGE, "{[0-3]: -2:4}", "{[0-3]: 0:4(1:2:3:4)}", "reduce-scatter 0,1,2,3; all-to-all 0,1,2,3");
	check_steps(LARGE, "{[0-3]: -2:2 1:2}", "{[0-3]: 0:2 1:2}", "reduce-scatter 0,2; reduce-scatter 1,3");
	check_steps(LARGE, "{[0-3]: 0:4(8:9:9:8)}", "{[0-3]: -1:4}", "all-gather 0,1,2,3");
	/* A large part among small ones is scattered first. */
	check_steps(LARGE, "{[0-3]: 0:4(1:2:3:4)}", "{[0-3]: -1:4}", "all-to-all 0,1,2,3; all-gather 0,1,2,3");
	check_steps(LARGE, "{[0-3]: 0:2 -1:2}", "{[0-3]: -1:4}", "all-gather 0,2; all-gather 1,3");
	check_steps(LARGE, "{[0-3]: 0:4}", "{[0-3]: 1:4(1:2:3:4)}", "all-to-all 0,1,2,3");
	check_steps(LARGE, "{[0-3]: 0:2 -1:2}", "{[0-3]: 1:2 -1:2}", "all-to-all 0,2; all-to-all 1,3");
}

/* Boundaries of stages. */
static void between_groups(void **state)
{
	(void)state;
	check_steps(LARGE, "{[0,1]: 0:2}", "{[4,5]: 0:2}", "send-receive 0,4; send-receive 1,5");
	check_steps(LARGE, "{[0-3]: 0:4}", "{[4,5]: 0:2}", "batched 0>4,1>4,2>5,3>5");
	check_steps(LARGE, "{[0,1]: 0:2}", "{[4-6]: 0:3}", "batched 0>4,0>5,1>5,1>6");
	check_steps(LARGE, "{[0,1]: -1:2}", "{[4]}", "send-receive 0,4");
	/* From the nearest copy. */
	check_steps(LARGE, "{[0,4]: -1:2}", "{[1]}", "send-receive 0,1");
	check_steps(LARGE, "{[0,4]: -1:2}", "{[5]}", "send-receive 4,5");
	/* Copies divide the sending, and bytes that all receivers need cross once. */
	check_steps(LARGE, "{[0,1]: -1:2}", "{[4,5]: -1:2}", "send-receive 0,4; send-receive 1,5; all-gather 4,5");
	/* Of two copies of each addend, those on the receiver's node. */
	check_steps((struct hspmd_shape){ 1, { 8 } }, "{[0,4,1,5]: -2:2 -1:2}", "{[6]}", "batched 4>6,5>6+");
	check_steps((struct hspmd_shape){ 1, { 8 } }, "{[0,4,1,5]: -2:2 -1:2}", "{[2]}", "batched 0>2,1>2+");
	/* A sum is made before it crosses. */
	check_steps(LARGE, "{[0,1]: -2:2}", "{[4,5]: -1:2}", "reduce-scatter 0,1; send-receive 0,4; send-receive 1,5; all-gather 4,5");
}

/* Gradients of data-parallel subgroups with unequal tensor parallelism, and optimizer state cut over them. */
static void between_subgroups(void **state)
{
	(void)state;
	check_steps(LARGE, "{[0,1]: 1:2 | [4,5]: 1:2} h-2", "{[0,1]: 1:2 | [4,5]: 1:2}", "all-reduce 0,4; all-reduce 1,5");
	check_steps(LARGE, "{[0-3]: 1:4 | [4,5]: 1:2} h-2", "{[0-3]: 1:4 | [4,5]: 1:2}",
	            "all-reduce 0,4; all-reduce 2,5; all-reduce 1,4; all-reduce 3,5");
	check_steps(LARGE, "{[0,1]: 1:2 | [4-6]: 1:3} h-2", "{[0,1]: 1:2 | [4-6]: 1:3} h0(2:1)",
	            "reduce-scatter 0,4; reduce-scatter 1,5; reduce-scatter 0,5; reduce-scatter 1,6");
	check_steps(LARGE, "{[0,1]: 1:2 | [4-6]: 1:3} h0(2:1)", "{[0,1]: 1:2 | [4-6]: 1:3}",
	            "all-gather 0,4; all-gather 1,5; all-gather 0,5; all-gather 1,6");
	/* Sums that are not needed yet stay apart. */
	check_steps(LARGE, "{[0,1]: -2:2 | [4,5]: -2:2} h-2", "{[0,1]: 0:2 | [4,5]: 0:2} h-2", "reduce-scatter 0,1; reduce-scatter 4,5");
	check_steps(LARGE, "{[0-3]: -2:2 0:2}", "{[0-3]: -2:2 1:2}", "all-to-all 0,1; all-to-all 2,3");
	check_steps(LARGE, "{[0,1]: -1:2}", "{[0,1]: -2:2}", "zero 1; copy 0");
	/* Two alternative ways to a sum: only one is taken, so that all have the same bits. */
	check_steps((struct hspmd_shape){ 1, { 8 } }, "{[0,1]: -2:2 | [2,3]: -2:2}", "{[0,1]: -1:2 | [2,3]: -1:2}",
	            "all-reduce 0,1; send-receive 0,2; send-receive 1,3; copy 0,1");
}

/* Sums over several nodes begin within them. */
static void across_nodes(void **state)
{
	(void)state;
	check_steps(LARGE, "{[0,1,4,5]: -2:4}", "{[0,1,4,5]: -1:4}",
	            "reduce-scatter 0,1; reduce-scatter 4,5; all-reduce 0,4; all-reduce 1,5; all-gather 0,1; all-gather 4,5");
	check_steps(LARGE, "{[0,1,4,5]: 0:4}", "{[0,1,4,5]: -1:4}", "all-to-all 0,1,4,5; all-gather 0,1; all-gather 4,5");
}

/* A placement whose addends are summed has whole values: one piece per device, in the order of devices, with nothing left of the
 * addends. */
static void sums_are_whole(void **state)
{
	(void)state;
	struct hspmd_arena *arena = hspmd_arena_create();
	struct resolver r = { .arena = arena, .device_count = 4 };
	struct placement *p = hspmd_placement_create(&r, 4);
	assert_non_null(p);
	for (int d = 0; d < 4; d++) /* devices 0 and 2 have addend 1, 1 and 3 addend 0 */
		hspmd_placement_add(p, &(struct piece){ .device = d,
		                                        .box = { .rank = 1, .hi = { 8 } },
		                                        .addend = (d + 1) % 2,
		                                        .addends = 2,
		                                        .copy = d / 2,
		                                        .copies = 2 });
	hspmd_placement_finish(&r, p);
	struct placement *sum = hspmd_placement_reduced(&r, p);
	assert_non_null(sum);
	assert_int_equal(sum->count, 4);
	assert_false(hspmd_placement_is_partial(sum));
	for (int d = 0; d < 4; d++) {
		assert_int_equal(sum->piece[d].device, d);
		assert_int_equal(sum->piece_of[d], d);
		assert_int_equal(sum->piece[d].addend, 0);
		assert_int_equal(sum->piece[d].copy, 0);
	}
	hspmd_arena_destroy(arena);
}

/* ---- large groups */

/* Three classes of nodes of 4, whose links differ. */
static int third(const void *context, int device)
{
	(void)context;
	return device / 4 % 3;
}

static double class_seconds(const void *context, int from, int to, double bytes)
{
	return node_seconds(context, from, to, bytes) * (from / 4 == to / 4 ? 1 : 1 + third(context, from) + 2 * third(context, to));
}

static double some_networks(const void *context, int node)
{
	(void)context;
	return node % 2 ? 5e9 : 0;
}

/* Messages counted by class and one by one give the same steps and the same times. */
static void counted_by_class(void **state)
{
	(void)state;
	static const char *const pairs[][2] = {
		{ "{[0-95]: -2:96}", "{[0-95]: -1:96}" },
		{ "{[0-95]: -2:96}", "{[0-95]: 0:96}" },
		{ "{[0-95]: 0:96}", "{[0-95]: -1:96}" },
		{ "{[0-95]: "
		  "0:96(1:3:2:2:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:"
		  "1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1)}",
		  "{[0-95]: -1:96}" },
		{ "{[0-63]: 0:8 -2:8 | [64-95]: 0:4 -2:8} h-2", "{[0-63]: 0:8 -1:8 | [64-95]: 0:4 -1:8}" },
	};
	struct hspmd_error err = { "" };
	for (size_t i = 0; i < 2 * sizeof pairs / sizeof *pairs; i++) {
		struct hspmd_link_cost cost = { .seconds = class_seconds, .node = node_number, .network = i % 2 ? some_networks : NULL };
		struct hspmd_annotation *a = hspmd_annotation_parse(pairs[i / 2][0], &err),
		                        *b = a ? hspmd_annotation_parse(pairs[i / 2][1], &err) : NULL;
		struct hspmd_transfer *singly = b ? hspmd_resolve(&LARGE, 4, a, b, &cost, &err) : NULL;
		cost.device_class = third;
		struct hspmd_transfer *by_class = singly ? hspmd_resolve(&LARGE, 4, a, b, &cost, &err) : NULL;
		if (!by_class)
			fail_msg("pair %zu: %s", i, err.text);
		char *want = steps_text(singly), *got = steps_text(by_class);
		assert_string_equal(got, want);
		assert_string_equal(by_class->why, singly->why); /* the alternatives, with their times */
		for (int k = 0; k < singly->step_count; k++)
			if (fabs(by_class->steps[k].seconds - singly->steps[k].seconds) > 1e-9 * singly->steps[k].seconds)
				fail_msg("pair %zu, step %d: %.12g s, not %.12g s", i, k, by_class->steps[k].seconds,
				         singly->steps[k].seconds);
		if (fabs(by_class->seconds - singly->seconds) > 1e-9 * singly->seconds)
			fail_msg("pair %zu: %.12g s, not %.12g s", i, by_class->seconds, singly->seconds);
		free(want);
		free(got);
		hspmd_transfer_destroy(singly);
		hspmd_transfer_destroy(by_class);
		hspmd_annotation_destroy(a);
		hspmd_annotation_destroy(b);
	}
}

static void refusals(void **state)
{
	(void)state;
	struct hspmd_shape shape = { 1, { 2 } };
	struct hspmd_error err = { "" };
	struct hspmd_annotation *good = hspmd_annotation_parse("{[0,1]: 0:2}", NULL), *bad = hspmd_annotation_parse("{[0-2]: 0:3}", NULL);
	assert_null(hspmd_resolve(&shape, 4, good, bad, NULL, &err));
	assert_non_null(strstr(err.text, "annotation {[0-2]: 0:3} on tensor [0:2]: device"));
	assert_null(hspmd_resolve(&shape, 4, bad, good, NULL, &err));
	hspmd_annotation_destroy(good);
	hspmd_annotation_destroy(bad);
}

/* ---- rows of experts */

static double choice_s;

static double choice_seconds(const void *context, int device)
{
	(void)context;
	return device < 8 ? choice_s : -1;
}

/* Like check_steps; rows: the experts of `to` or, if that is a sum, of `from`; of `count` experts, of which each row chooses `per_token`.
 * Returns the seconds. */
static double check_rows(const char *from, const char *to, const char *rows, int64_t count, int per_token, const char *want)
{
	struct hspmd_error err = { "" };
	struct hspmd_link_cost cost = { .seconds = node_seconds, .node = node_number, .choice_seconds = choice_seconds };
	struct hspmd_annotation *a = hspmd_annotation_parse(from, &err), *b = hspmd_annotation_parse(to, &err),
	                        *experts = hspmd_annotation_parse(rows, &err);
	assert_true(a && b && experts);
	assert_int_equal(hspmd_annotation_set_rows(hspmd_annotation_is_partial(a) ? a : b, experts, count, per_token), 0);
	struct hspmd_transfer *t = hspmd_resolve(&LARGE, 4, a, b, &cost, &err);
	if (!t)
		fail_msg("%s", err.text);
	char *got = steps_text(t);
	if (strcmp(got, want) != 0)
		fail_msg("%s -> %s, rows of %s\n  got    %s\n  wanted %s\n  (%s)", from, to, rows, got, want, t->why);
	double seconds = t->seconds;
	free(got);
	hspmd_transfer_destroy(t);
	hspmd_annotation_destroy(a);
	hspmd_annotation_destroy(b);
	return seconds;
}

#define ALL_PAIRS "0>0,0>1,0>2,0>3,1>0,1>1,1>2,1>3,2>0,2>1,2>2,2>3,3>0,3>1,3>2,3>3"

static void rows_of_experts(void **state)
{
	(void)state;
	assert_true(fabs(hspmd_expert_row_share(2, 8, 1) - 0.25) < 1e-12);
	assert_true(fabs(hspmd_expert_row_share(2, 8, 2) - 13.0 / 28) < 1e-12);
	assert_true(hspmd_expert_row_share(3, 4, 2) == 1 && hspmd_expert_row_share(4, 4, 1) == 1);
	choice_s = 0;
	double even = check_rows("{[0-3]: 0:4}", "{[0-3]: -1:4}", "{[0-3]: 0:4}", 8, 1, "dispatch " ALL_PAIRS);
	double uneven = check_rows("{[0-3]: 0:4}", "{[0-3]: -1:4}", "{[0-3]: 0:4(5:1:1:1)}", 8, 1, "dispatch " ALL_PAIRS);
	/* But for three messages' latency: the first gets five of eight rows instead of two. */
	if (!(fabs((uneven - 3 * 2e-6) / (even - 3 * 2e-6) - 5.0 / 2) < 1e-3))
		fail_msg("%g with five of eight experts on a device, %g with two", uneven, even);
	/* The receiver's experts count: few rows go from the device that has many rows, and many experts, to others. */
	double from_one = check_rows("{[0-3]: 0:4(9:1:1:1)}", "{[0-3]: -1:4}", "{[0-3]: 0:4(5:1:1:1)}", 8, 1, "dispatch " ALL_PAIRS);
	assert_true(fabs((from_one - 3 * 2e-6) / (even - 3 * 2e-6) - 1.5) < 1e-3);
	check_rows("{[0-3]: -2:4}", "{[0-3]: 0:4}", "{[0-3]: 0:4}", 8, 1, "combine " ALL_PAIRS);
	/* Copies of sums: to all at once, or, if a row has several addends, once to where it is summed. */
	check_rows("{[0-3]: -2:4}", "{[0-3]: -1:4}", "{[0-3]: 0:4}", 8, 1, "combine " ALL_PAIRS);
	check_rows("{[0-3]: -2:4}", "{[0-3]: -1:4}", "{[0-3]: 0:4}", 8, 2, "combine " ALL_PAIRS "; all-gather 0,1,2,3");
	/* All rows: every row chooses an expert of each device, or the choice comes too late. */
	check_rows("{[0-3]: 0:4}", "{[0-3]: -1:4}", "{[0-3]: 0:4}", 4, 4, "all-gather 0,1,2,3");
	check_rows("{[0-3]: -2:4}", "{[0-3]: 0:4}", "{[0-3]: 0:4}", 4, 4, "reduce-scatter 0,1,2,3");
	choice_s = 1;
	check_rows("{[0-3]: 0:4}", "{[0-3]: -1:4}", "{[0-3]: 0:4}", 8, 1, "all-gather 0,1,2,3");
	choice_s = 0;
	/* Not by a sender that does not know the choice of the rows, nor by a device that cannot choose. */
	check_rows("{[4-7]: 0:4}", "{[0-3]: -1:4}", "{[0-3]: 0:4}", 8, 1,
	           "send-receive 4,0; send-receive 5,1; send-receive 6,2; send-receive 7,3; dispatch " ALL_PAIRS);
	check_rows("{[8-11]: 0:4}", "{[8-11]: -1:4}", "{[8-11]: 0:4}", 8, 1, "all-gather 8,9,10,11");
	/* What a device lacks cannot be made of its rows. */
	struct hspmd_error err = { "" };
	struct hspmd_annotation *rows = hspmd_annotation_parse("{[0-3]: -1:4}", &err),
	                        *split = hspmd_annotation_parse("{[0-3]: 0:4}", &err);
	assert_int_equal(hspmd_annotation_set_rows(rows, hspmd_annotation_copy(split), 8, 1), 0);
	assert_null(hspmd_resolve(&LARGE, 4, rows, split, NULL, &err));
	assert_non_null(strstr(err.text, "only the rows of their experts"));
	/* All rows are there: nothing is sent. */
	struct hspmd_annotation *whole = hspmd_annotation_parse("{[0-3]: -1:4}", &err);
	struct hspmd_transfer *t = hspmd_resolve(&LARGE, 4, whole, rows, NULL, &err);
	assert_true(t && t->step_count == 0);
	hspmd_transfer_destroy(t);
	hspmd_annotation_destroy(whole);
	hspmd_annotation_destroy(rows);
	hspmd_annotation_destroy(split);
}

static void cluster_costs(void **state)
{
	(void)state;
	static const char text[] =
	        "{\"format\": \"hspmd-cluster-1\", \"device_types\": {\"G\": {\"kind\": \"cuda\", \"memory_bytes\": 1000000000, "
	        "\"gbytes_per_s\": 1000, \"peak_tflops\": {\"fp32\": 10}}}, \"nodes\": [{\"name\": \"a\", \"devices\": [{\"type\": \"G\", "
	        "\"count\": 2}]}, "
	        "{\"name\": \"b\", \"devices\": [{\"type\": \"G\", \"count\": 2}], \"network_gbytes_per_s\": 40}], "
	        "\"links\": [{\"scope\": \"cluster\", \"alpha_s\": 1e-5, \"gbytes_per_s\": 10}]}";
	struct hspmd_error err = { "" };
	json_t *value = json_loads(text, 0, NULL);
	struct hspmd_cluster *c = hspmd_cluster_from_json(value, "cluster", &err);
	json_decref(value);
	if (!c)
		fail_msg("%s", err.text);
	struct hspmd_link_cost cost = hspmd_link_cost_of_cluster(c);
	assert_float_equal(cost.seconds(cost.context, 0, 2, 1e9), 0.10001, 1e-6);
	assert_float_equal(cost.seconds(cost.context, 0, 1, 1e9), 1.00001, 1e-6); /* without an entry for the link */
	assert_int_equal(cost.node(cost.context, 1), cost.node(cost.context, 0));
	assert_int_not_equal(cost.node(cost.context, 1), cost.node(cost.context, 2));
	assert_float_equal(cost.network(cost.context, cost.node(cost.context, 0)), 0, 0);
	assert_float_equal(cost.network(cost.context, cost.node(cost.context, 3)) / 40e9, 1, 1e-6);
	hspmd_cluster_destroy(c);
}

/* ---- unequal parts around a ring */

static bool first_four_ring(const void *context, int device)
{
	(void)context;
	return device < 4;
}

/* Resolves between texts: the answer has a step of this kind and form, of so many seconds. */
static void expect_form(const char *from, const char *to, const struct hspmd_shape *shape, enum hspmd_comm_kind kind,
                        enum hspmd_collective_form form, double seconds)
{
	struct hspmd_error err = { "" };
	struct hspmd_link_cost cost = { .rings = first_four_ring };
	struct hspmd_annotation *a = hspmd_annotation_parse(from, NULL), *b = hspmd_annotation_parse(to, NULL);
	struct hspmd_transfer *t = hspmd_resolve(shape, 4, a, b, &cost, &err);
	if (!t)
		fail_msg("%s", err.text);
	int at = -1;
	for (int s = 0; s < t->step_count; s++)
		at = t->steps[s].kind == kind ? s : at;
	if (at < 0)
		fail_msg("from %s to %s: %s", from, to, t->why);
	if (t->steps[at].form != form)
		fail_msg("from %s to %s: form %d: %s", from, to, t->steps[at].form, t->why);
	if (fabs(t->steps[at].seconds - seconds) > 1e-9 * seconds)
		fail_msg("from %s to %s: %.12g s, not %.12g s", from, to, t->steps[at].seconds, seconds);
	if (form > HSPMD_FORM_EVEN)
		assert_non_null(strstr(t->why, form == HSPMD_FORM_PADDED ? "padded" : "grouped"));
	hspmd_transfer_destroy(t);
	hspmd_annotation_destroy(a);
	hspmd_annotation_destroy(b);
}

/* Each unequal collective takes the cheaper form; with equal links of 1e-5 s and 1e9 bytes a second. */
static void unequal_rings(void **state)
{
	(void)state;
	const struct hspmd_shape large = { 2, { 16, 1 << 20 } }, fine = { 2, { 256, 1 << 16 } }, small = { 1, { 16 } };
	const double part = 4 * (1 << 20) / 1e9, row = part / 16, call = 1e-5;
	expect_form("{[0-3]: 0:4}", "{[0-3]: -1:4}", &large, HSPMD_COMM_ALL_GATHER, HSPMD_FORM_EVEN, 3 * (call + 4 * part));
	expect_form("{[0-3]: 0:4(65:64:64:63)}", "{[0-3]: -1:4}", &fine, HSPMD_COMM_ALL_GATHER, HSPMD_FORM_PADDED, 3 * (call + 65 * row));
	expect_form("{[0-3]: 0:4(13:1:1:1)}", "{[0-3]: -1:4}", &large, HSPMD_COMM_ALL_GATHER, HSPMD_FORM_GROUPED, 4 * call + 16 * part);
	expect_form("{[0-3]: 0:4(13:1:1:1)}", "{[0-3]: -1:4}", &small, HSPMD_COMM_ALL_GATHER, HSPMD_FORM_PADDED, 3 * (call + 13 * 4 / 1e9));
	expect_form("{[0-3]: -2:4}", "{[0-3]: 0:4(65:64:64:63)}", &fine, HSPMD_COMM_REDUCE_SCATTER, HSPMD_FORM_PADDED,
	            3 * (call + 65 * row));
	expect_form("{[0-3]: -2:4}", "{[0-3]: 0:4(13:1:1:1)}", &large, HSPMD_COMM_REDUCE_SCATTER, HSPMD_FORM_GROUPED, 4 * call + 16 * part);
	/* A member without a ring: everybody sends to everybody, parts as they are. */
	expect_form("{[0,1,4]: 0:3(86:85:85)}", "{[0,1,4]: -1:3}", &fine, HSPMD_COMM_ALL_GATHER, HSPMD_FORM_DIRECT, 2 * (call + 86 * row));
}

/* The same arguments get the same transfer, any others their own; transfers outlive the cache. */
static void cached_answers(void **state)
{
	(void)state;
	static const char *const texts[] = { "{[0,1]: -2:2}",       "{[0,1]: -1:2}",        "{[0,1]: 0:2}", "{[0,1]: 0:2(1:2)}",
		                             "{[0,1]: 0:2/2}",      "{[1,0]: 0:2}",         "{[0,2]: 0:2}", "{[0] | [1]} h0",
		                             "{[0] | [1]} h0(1:2)", "{[0,1]: 0:2 | [2]} h0" };
	enum { COUNT = sizeof texts / sizeof *texts };
	struct hspmd_annotation *a[COUNT];
	struct hspmd_transfer *first[COUNT][COUNT], *again[COUNT][COUNT];
	struct hspmd_link_cost cost = { .cache = hspmd_resolve_cache_create() };
	struct hspmd_shape shape = { 2, { 12, 4 } };
	for (int i = 0; i < COUNT; i++)
		a[i] = hspmd_annotation_parse(texts[i], NULL);
	for (int i = 0; i < COUNT * COUNT; i++)
		assert_non_null(first[i / COUNT][i % COUNT] = hspmd_resolve(&shape, 4, a[i / COUNT], a[i % COUNT], &cost, NULL));
	for (int i = 0; i < COUNT * COUNT; i++) {
		again[i / COUNT][i % COUNT] = hspmd_resolve(&shape, 4, a[i / COUNT], a[i % COUNT], &cost, NULL);
		assert_ptr_equal(again[i / COUNT][i % COUNT], first[i / COUNT][i % COUNT]);
		for (int j = 0; j < i; j++)
			assert_ptr_not_equal(first[i / COUNT][i % COUNT], first[j / COUNT][j % COUNT]);
	}
	struct hspmd_transfer *other = hspmd_resolve(&shape, 8, a[0], a[1], &cost, NULL);
	assert_ptr_not_equal(other, first[0][1]);
	hspmd_transfer_destroy(other);
	shape.dim[0] = 13;
	other = hspmd_resolve(&shape, 4, a[0], a[1], &cost, NULL);
	assert_ptr_not_equal(other, first[0][1]);
	hspmd_transfer_destroy(other);
	struct hspmd_transfer *of_rows[3];
	of_rows[0] = hspmd_resolve(&shape, 4, a[2], a[1], &cost, NULL);
	for (int per_token = 1; per_token < 3; per_token++) {
		struct hspmd_annotation *rows = hspmd_annotation_copy(a[1]);
		assert_int_equal(hspmd_annotation_set_rows(rows, hspmd_annotation_copy(a[2]), 4, per_token), 0);
		of_rows[per_token] = hspmd_resolve(&shape, 4, a[2], rows, &cost, NULL);
		for (int i = 0; i < per_token; i++)
			assert_ptr_not_equal(of_rows[per_token], of_rows[i]);
		hspmd_annotation_destroy(rows);
	}
	for (int i = 0; i < 3; i++)
		hspmd_transfer_destroy(of_rows[i]);
	hspmd_resolve_cache_destroy(cost.cache);
	for (int i = 0; i < COUNT * COUNT; i++) {
		assert_int_equal(first[i / COUNT][i % COUNT]->shape.dim[0], 12);
		hspmd_transfer_destroy(first[i / COUNT][i % COUNT]);
		hspmd_transfer_destroy(again[i / COUNT][i % COUNT]);
	}
	for (int i = 0; i < COUNT; i++)
		hspmd_annotation_destroy(a[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_pairs),      cmocka_unit_test(one_collective), cmocka_unit_test(between_groups),
		cmocka_unit_test(between_subgroups), cmocka_unit_test(across_nodes),   cmocka_unit_test(refusals),
		cmocka_unit_test(sums_are_whole),    cmocka_unit_test(unequal_rings),  cmocka_unit_test(rows_of_experts),
		cmocka_unit_test(cluster_costs),     cmocka_unit_test(cached_answers), cmocka_unit_test(counted_by_class),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
