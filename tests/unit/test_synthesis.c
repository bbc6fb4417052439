/* SPDX-License-Identifier: Apache-2.0 */
/* The search for a stage's program: as good as the best of all programs of small graphs on unequal devices; what it predicts is what the
 * sharding pass makes of the graph that it writes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>

#include "common/error.h"
#include "common/format/device_speed.h"
#include "runtime/lib/hspmd.h"
#include "runtime/lib/net.h"
#include "runtime/synthesis/synthesis_internal.h"
#include "tests/unit/draw.h"
#include "tests/unit/synthesis_case.h"

#define WORST_ROUNDING 0.005 /* of shares: whole steps, and communication that is not convex */
#define MOST_PROGRAMS 1500   /* of a graph that is searched exhaustively: others are left out */

static uint64_t next(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return *seed >> 33;
}

static int below(uint64_t *seed, int n)
{
	return (int)(next(seed) % (uint64_t)n);
}

/* ---- random nets */

struct drawn {
	uint64_t seed;
	int operators;
	int64_t width, inner;
	bool table; /* the first and the last operator share a weight */
};

static int random_operator(const struct drawn *d, uint64_t *seed, struct hspmd_net *net, int number, const int *made, int count)
{
	int x = made[count - 1], y = made[below(seed, count)], kind = below(seed, 8);
	switch (kind) {
	case 0:
	case 1:
		return hspmd_net_linear(net, x, case_weight(net, number, d->width, d->width),
		                        kind ? case_vector(net, number, 'b', d->width) : -1);
	case 2:
		x = hspmd_net_linear(net, x, case_weight(net, number, d->inner, d->width), -1);
		return hspmd_net_linear(net, x, case_weight(net, number + 100, d->width, d->inner), -1);
	case 3:
		return hspmd_net_gelu(net, x);
	case 4:
		return hspmd_net_add(net, x, y);
	case 5:
		return hspmd_net_layer_norm(net, x, case_vector(net, number, 'g', d->width), case_vector(net, number, 'b', d->width), 1e-5);
	case 6:
		return case_experts(net, x, number, d->width, d->inner, 1 + below(seed, 2));
	default:
		return hspmd_net_attention(net, x, x, y, -1, d->width / 4);
	}
}

static void build_random(void *context, struct hspmd_net *net)
{
	const struct drawn *d = context;
	uint64_t seed = d->seed;
	int made[16], count = 0, shared = d->table ? case_weight(net, 99, d->width, d->width) : -1;
	made[count++] = hspmd_net_floats(net, "x", d->width);
	if (d->table)
		made[count++] = hspmd_net_linear(net, made[0], shared, -1);
	else
		made[count++] = hspmd_net_linear(net, made[0], case_weight(net, 98, d->width, d->width), -1);
	for (int i = 0; i < d->operators; i++, count++)
		made[count] = random_operator(d, &seed, net, i, made, count);
	if (d->table) {
		made[count] = hspmd_net_linear(net, made[count - 1], shared, -1);
		count++;
	}
	hspmd_net_mean_loss(net, made[count - 1], 1);
}

/* ---- random devices: of two types, on one or more nodes */

static struct hspmd_cluster *random_cluster(uint64_t *seed, int devices)
{
	char text[2048];
	int slow = 1 + below(seed, devices > 1 ? devices - 1 : 1);
	static const double rates[] = { 0.05, 1, 20 };
	snprintf(text, sizeof text,
	         "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"a\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,"
	         "\"gbytes_per_s\":100,\"peak_tflops\":{\"fp32\":%g}},\"b\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,"
	         "\"gbytes_per_s\":%d,\"peak_tflops\":{\"fp32\":%g}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"a\",\"count\":%d}"
	         "]},{\"name\":\"m\",\"devices\":[{\"type\":\"b\",\"count\":%d}]}],\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-7,"
	         "\"gbytes_per_s\":%g},{\"scope\":\"cluster\",\"alpha_s\":%g,\"gbytes_per_s\":%g}]}",
	         0.001 * (1 + below(seed, 8)), 10 + below(seed, 90), 0.001 * (1 + below(seed, 8)), devices - slow ? devices - slow : 1,
	         slow, rates[below(seed, 3)], 1e-7 * below(seed, 50), rates[below(seed, 3)]);
	struct hspmd_error err = { "" };
	json_t *value = json_loads(text, 0, NULL);
	assert_non_null(value);
	struct hspmd_cluster *c = hspmd_cluster_from_json(value, "drawn", &err);
	json_decref(value);
	if (!c)
		fail_msg("%s", err.text);
	return c;
}

/* ---- all programs */

struct exhaustive {
	struct hspmd_synthesis *s;
	struct live *scratch, (*states)[64];
	double best;
};

static void try_all(struct exhaustive *e, int number, double seconds)
{
	const struct group *g = &e->s->groups[number];
	if (number == e->s->group_count) {
		e->best = fmin(e->best, seconds);
		return;
	}
	for (int k = 0; k < g->choice_count; k++) {
		double more = hspmd_synthesis_advance(e->s, number, &g->choices[k], e->states[number], e->states[number + 1], e->scratch);
		if (isfinite(more))
			try_all(e, number + 1, seconds + more);
	}
}

static double best_of_all(struct hspmd_synthesis *s)
{
	struct exhaustive e = { .s = s, .best = HUGE_VAL };
	e.scratch = calloc(s->g->tensor_count, sizeof *e.scratch);
	e.states = calloc((size_t)s->group_count + 1, sizeof *e.states);
	try_all(&e, 0, 0);
	free(e.scratch);
	free(e.states);
	return e.best;
}

static double count_programs(const struct hspmd_synthesis *s)
{
	double all = 1;
	for (int n = 0; n < s->group_count; n++)
		all *= s->groups[n].choice_count;
	return all;
}

/* Returns true if an operator passes a gradient on unchanged, to be added to others. The sharding pass may find it in the layout that is
 * needed, because it came so or was brought for another; the search does not know of that. */
static bool passes_on_gradients(const struct hspmd_synthesis *s)
{
	for (int n = 0; n < s->group_count; n++)
		for (int k = 0; k < s->groups[n].contribution_count; k++)
			if (s->groups[n].contributions[k].leaf < 0 && s->tensors[s->groups[n].contributions[k].of].contributions > 1)
				return true;
	return false;
}

/* Searches again for programs that take less than so many seconds. Returns what the search does. */
static int search_below(const struct hspmd_graph *g, struct hspmd_synthesis_stage stage, double below_s,
                        struct hspmd_synthesis_result *result)
{
	struct hspmd_error err = { "" };
	stage.below_s = below_s;
	struct hspmd_synthesis *s = hspmd_synthesis_create(g, &stage, &err);
	int rc = s ? hspmd_synthesis_search(s, result, &err) : -1;
	hspmd_synthesis_destroy(s);
	return rc;
}

/* Returns false if the graph has too many programs to try all. */
static bool check_case(unsigned number)
{
	uint64_t seed = number * 7919 + 1;
	for (int i = 0; i < 5; i++)
		next(&seed);
	struct drawn d = { .seed = next(&seed), .operators = 1 + below(&seed, 3), .width = 8 * (1 + below(&seed, 3)) };
	d.inner = d.width * (1 + below(&seed, 3));
	d.table = below(&seed, 6) == 0;
	struct hspmd_cluster *c = random_cluster(&seed, 2 + below(&seed, 3));
	struct hspmd_graph *g = case_graph(build_random, &d, 1, 4 + below(&seed, 5), 4 + below(&seed, 3));
	struct hspmd_synthesis_stage stage = { .cluster = c,
		                               .device_count = c->device_count,
		                               .devices = case_devices,
		                               .micro_batches = 1 + below(&seed, 4),
		                               .keep_shares = true };
	struct hspmd_error err = { "" };
	char what[64];
	struct hspmd_synthesis_result result;
	snprintf(what, sizeof what, "case %u", number);
	struct hspmd_synthesis *s = hspmd_synthesis_create(g, &stage, &err);
	if (!s || hspmd_synthesis_search(s, &result, &err))
		fail_msg("%s: %s", what, err.text);
	bool tried = count_programs(s) <= MOST_PROGRAMS;
	if (tried) {
		struct hspmd_synthesis_result wanted;
		if (search_below(g, stage, result.seconds * (1 + 1e-6), &wanted) ||
		    !(fabs(wanted.seconds - result.seconds) <= 1e-9 * result.seconds))
			fail_msg("%s: a program that is wanted was not found", what);
		struct hspmd_synthesis *loaded = case_travelled(s, result.seconds, what);
		double best = best_of_all(s), applied = case_applied_cost(g, loaded, what);
		hspmd_synthesis_destroy(loaded);
		if (!(fabs(result.seconds - best) <= 1e-9 * best))
			fail_msg("%s: found %.12g, the best of %g programs takes %.12g", what, result.seconds, count_programs(s), best);
		if (!(result.first_bound <= best * (1 + 1e-9)) || result.first_bound <= 0 || result.bound != result.seconds)
			fail_msg("%s: bounds %g and %g, the best program takes %g", what, result.first_bound, result.bound, best);
		bool less = applied < best * (1 - 1e-9) && applied > 0.9 * best && passes_on_gradients(s);
		if (!(fabs(applied - best) <= 1e-9 * best || less))
			fail_msg("%s: predicted %.12g, the sharding pass makes %.12g of it", what, best, applied);
	}
	hspmd_synthesis_destroy(s);
	hspmd_graph_destroy(g);
	hspmd_cluster_destroy(c);
	return tried;
}

/* Four devices that are alike: the count of partial programs says how much is searched for nothing. */
static void test_wanted(void **state)
{
	(void)state;
	char text[1024];
	struct hspmd_error err = { "" };
	for (int limited = 0; limited < 3; limited++) {
		snprintf(text, sizeof text,
		         "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"a\":{\"kind\":\"cpu\",\"memory_bytes\":%d,\"gbytes_per_s\":"
		         "100,"
		         "\"peak_tflops\":{\"fp32\":0.004}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"a\",\"count\":4}]}],"
		         "\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-7,\"gbytes_per_s\":20}]}",
		         (const int[]){ 1000000000, 300000, 100000 }[limited]);
		json_t *value = json_loads(text, 0, NULL);
		struct hspmd_cluster *c = hspmd_cluster_from_json(value, "alike", &err);
		json_decref(value);
		assert_non_null(c);
		struct drawn d = { .seed = 12, .operators = 3, .width = 32, .inner = 64 };
		struct hspmd_graph *g = case_graph(build_random, &d, 1, 64, 16);
		struct hspmd_synthesis_stage stage = {
			.cluster = c, .device_count = 4, .devices = case_devices, .micro_batches = 1, .state_bytes = 16
		};
		struct hspmd_synthesis_result all, none;
		int rc = search_below(g, stage, 0, &all);
		printf("%d: %ld partial programs, %g s, at least %g s\n", rc, all.expanded, all.seconds, all.first_bound);
		assert_int_equal(rc, limited == 2 ? -1 : 0);
		if (limited == 2) { /* it is seen at once that nothing fits */
			assert_true(all.expanded <= 1);
		} else {
			assert_int_equal(search_below(g, stage, all.seconds, &none), 1);
			assert_true(none.expanded <= all.expanded);
			assert_int_equal(search_below(g, stage, all.first_bound, &none), 1);
			assert_int_equal(none.expanded, 0);
		}
		hspmd_graph_destroy(g);
		hspmd_cluster_destroy(c);
	}
}

static void test_optimal(void **state)
{
	(void)state;
	unsigned want = draw_count(320, 5000), first = draw_first(want, 1000000), tried = 0;
	for (unsigned n = first; tried < want; n++)
		tried += check_case(n);
}

/* ---- shares */

/* All steps of the samples' segment that two types of devices may have: `first` devices of the first, of `n`. */
struct grid {
	struct hspmd_synthesis *s;
	struct program p;
	int segment, n, first;
	double best, bytes[8];
};

static void try_share(struct grid *g, int64_t each)
{
	struct segment *segment = &g->s->segments[g->segment];
	int64_t left = segment->steps - each * g->first, second = g->n - g->first;
	if (left < second)
		return;
	for (int d = 0; d < g->n; d++)
		segment->weights[d] = d < g->first ? each : left / second + (d - g->first < left % second);
	hspmd_synthesis_forget(g->s, g->segment);
	g->best = fmin(g->best, hspmd_synthesis_program_seconds(g->s, &g->p, g->bytes));
}

/* The least that the program takes with any share of one segment, the others as they are. */
static double best_on_grid(struct hspmd_synthesis *s, int segment, int first)
{
	struct grid g = { .s = s, .segment = segment, .n = s->stage.device_count, .first = first, .best = HUGE_VAL };
	int64_t kept[8];
	memcpy(kept, s->segments[segment].weights, (size_t)g.n * sizeof *kept);
	assert_int_equal(hspmd_synthesis_program_open(s, &g.p), 0);
	for (int64_t each = 1; each * first < s->segments[segment].steps; each++)
		try_share(&g, each);
	memcpy(s->segments[segment].weights, kept, (size_t)g.n * sizeof *kept);
	hspmd_synthesis_forget(s, segment);
	hspmd_synthesis_program_close(&g.p);
	return g.best;
}

static double bounds; /* the sum of all cases' bounds of shares, each as a part of what was found */

/* Returns true if some share is better than those by speed. */
static bool check_shares(unsigned number)
{
	uint64_t seed = number * 104729 + 3;
	for (int i = 0; i < 5; i++)
		next(&seed);
	struct drawn d = { .seed = next(&seed), .operators = 1 + below(&seed, 3), .width = 8 * (1 + below(&seed, 6)) };
	d.inner = d.width * (1 + below(&seed, 3));
	struct hspmd_cluster *c = random_cluster(&seed, 2 + below(&seed, 3));
	struct hspmd_graph *g = case_graph(build_random, &d, 1, 4 + below(&seed, 60), 4 + below(&seed, 3));
	struct hspmd_synthesis_stage stage = { .cluster = c, .device_count = c->device_count, .devices = case_devices, .micro_batches = 1 };
	struct hspmd_error err = { "" };
	struct hspmd_synthesis_result by_speed, found;
	char what[64];
	snprintf(what, sizeof what, "case %u", number);
	stage.keep_shares = true;
	struct hspmd_synthesis *s = hspmd_synthesis_create(g, &stage, &err);
	if (!s || hspmd_synthesis_search(s, &by_speed, &err))
		fail_msg("%s: %s", what, err.text);
	hspmd_synthesis_destroy(s);
	stage.keep_shares = false;
	s = hspmd_synthesis_create(g, &stage, &err);
	if (!s || hspmd_synthesis_search(s, &found, &err))
		fail_msg("%s: %s", what, err.text);
	if (!(found.seconds <= by_speed.seconds * (1 + 1e-9)))
		fail_msg("%s: %.12g with shares of its own, %.12g with those by speed", what, found.seconds, by_speed.seconds);
	hspmd_synthesis_destroy(case_travelled(s, found.seconds, what));
	int first = 0;
	while (c->devices[first].type == 0)
		first++;
	for (int u = 0; u < s->segment_count; u++) {
		double best = best_on_grid(s, u, first);
		if (found.seconds > best * (1 + WORST_ROUNDING))
			fail_msg("%s: %.9g with its shares, %.9g with others of segment %d", what, found.seconds, best, u);
		if (found.shares_bound > best * (1 + WORST_ROUNDING))
			fail_msg("%s: bound of the shares %.9g, but shares take %.9g", what, found.shares_bound, best);
	}
	bounds += found.shares_bound / found.seconds;
	hspmd_synthesis_destroy(s);
	hspmd_graph_destroy(g);
	hspmd_cluster_destroy(c);
	return found.seconds < by_speed.seconds * 0.99;
}

static void test_shares(void **state)
{
	(void)state;
	unsigned want = draw_count(60, 1000), first = draw_first(want, 1000000), better = 0;
	for (unsigned n = first; n < first + want; n++)
		better += check_shares(n);
	printf("%u of %u are more than 1 %% faster than with shares by speed; bounds are %.3f of what was found\n", better, want,
	       bounds / want);
	assert_true(better >= want / 40);
	assert_true(bounds > 0.85 * want);
}

/* How many of 64 samples the fast device gets: a net whose samples can be divided, on a fast device with little memory and a slow one. */
static int64_t samples_of_fast(int64_t memory, double *seconds)
{
	char text[1024];
	struct hspmd_error err = { "" };
	snprintf(text, sizeof text,
	         "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"a\":{\"kind\":\"cpu\",\"memory_bytes\":%lld,\"gbytes_per_s\":100,"
	         "\"peak_tflops\":{\"fp32\":0.004}},\"b\":{\"kind\":\"cpu\",\"memory_bytes\":1000000,\"gbytes_per_s\":100,"
	         "\"peak_tflops\":{\"fp32\":0.001}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"a\",\"count\":1},{\"type\":\"b\","
	         "\"count\":1}]}],\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-7,\"gbytes_per_s\":20}]}",
	         (long long)memory);
	json_t *value = json_loads(text, 0, NULL);
	struct hspmd_cluster *c = hspmd_cluster_from_json(value, "limited", &err);
	json_decref(value);
	assert_non_null(c);
	struct drawn d = { .seed = 12, .operators = 2, .width = 32, .inner = 64 };
	struct hspmd_graph *g = case_graph(build_random, &d, 1, 64, 16);
	struct hspmd_synthesis_stage stage = {
		.cluster = c, .device_count = 2, .devices = case_devices, .micro_batches = 1, .state_bytes = 16
	};
	struct hspmd_synthesis_result result;
	struct hspmd_synthesis *s = hspmd_synthesis_create(g, &stage, &err);
	if (!s || hspmd_synthesis_search(s, &result, &err))
		fail_msg("%s", err.text);
	struct program p;
	double bytes[2];
	assert_int_equal(hspmd_synthesis_program_open(s, &p), 0);
	assert_true(fabs(hspmd_synthesis_program_seconds(s, &p, bytes) - result.seconds) <= 1e-9 * result.seconds);
	assert_true(!s->limited || bytes[0] <= (double)memory);
	int64_t lo, hi, *weights = s->segments[p.choices[0].segment].weights;
	hspmd_split_range(64, 1, 2, weights, 0, &lo, &hi);
	hspmd_synthesis_program_close(&p);
	hspmd_synthesis_destroy(s);
	hspmd_graph_destroy(g);
	hspmd_cluster_destroy(c);
	*seconds = result.seconds;
	assert_true(result.shares_bound <= result.seconds && result.shares_bound > 0.9 * result.seconds);
	return hi;
}

static void test_memory(void **state)
{
	(void)state;
	double ample, tight;
	int64_t most = samples_of_fast(1000000000, &ample), fewer = samples_of_fast(250000, &tight);
	assert_true(fewer < most && fewer > 0);
	assert_true(tight > ample);
}

/* ---- an operator whose rule names no priority: each of its inputs can say how it is divided */

static void build_gather(void *context, struct hspmd_net *net)
{
	(void)context;
	hspmd_net_mean_loss(net, hspmd_net_gather(net, case_weight(net, 0, 2, 8), hspmd_net_integers(net, "types"), 0), 1);
}

static void test_second_input(void **state)
{
	(void)state;
	uint64_t seed = 1;
	struct hspmd_cluster *c = random_cluster(&seed, 2);
	struct hspmd_graph *g = case_graph(build_gather, NULL, 1, 4, 4);
	struct hspmd_synthesis_stage stage = { .cluster = c, .device_count = 2, .devices = case_devices, .micro_batches = 1 };
	struct hspmd_synthesis_result result;
	struct hspmd_error err = { "" };
	struct hspmd_synthesis *s = hspmd_synthesis_create(g, &stage, &err);
	if (!s || hspmd_synthesis_search(s, &result, &err))
		fail_msg("%s", err.text);
	bool divided[2] = { false, false };
	for (int k = 0; k < s->groups[0].choice_count; k++)
		for (int d = 0; d < 2; d++)
			divided[d] |= s->groups[0].choices[k].take[1] == d && s->groups[0].choices[k].out[0] == d;
	assert_true(divided[0] && divided[1]);
	hspmd_synthesis_destroy(s);
	hspmd_graph_destroy(g);
	hspmd_cluster_destroy(c);
}

/* ---- programs as they travel, damaged; and a search that has no time */

/* Loads the saved program with one value changed: that at `index` of the list `key`, or of the list `inner` in its first element. Expects
 * words of the message. */
static void expect_refused(const struct hspmd_synthesis *s, const char *key, const char *inner, int index, json_t *value, const char *words)
{
	struct hspmd_error err = { "" };
	json_t *saved = hspmd_synthesis_save(s, &err), *list = json_object_get(saved, key);
	if (inner && index >= 0)
		json_array_set_new(json_object_get(json_array_get(list, 0), inner), (size_t)index, value);
	else if (inner)
		json_object_set_new(json_array_get(list, 0), inner, value);
	else if (value)
		json_array_set_new(list, (size_t)index, value);
	else
		json_array_remove(list, (size_t)index);
	struct hspmd_synthesis *t = hspmd_synthesis_create(s->g, &s->stage, &err);
	assert_non_null(t);
	assert_int_equal(hspmd_synthesis_load(t, saved, &err), -1);
	if (!strstr(err.text, words))
		fail_msg("expected \"%s\", got: %s", words, err.text);
	hspmd_synthesis_destroy(t);
	json_decref(saved);
}

static void test_saved(void **state)
{
	(void)state;
	uint64_t seed = 5;
	struct drawn d = { .seed = next(&seed), .operators = 3, .width = 16, .inner = 32 };
	struct hspmd_cluster *c = random_cluster(&seed, 3);
	struct hspmd_graph *g = case_graph(build_random, &d, 1, 8, 4);
	struct hspmd_synthesis_stage stage = { .cluster = c, .device_count = 3, .devices = case_devices, .micro_batches = 1 };
	struct hspmd_synthesis_result result;
	struct hspmd_error err = { "" };
	struct hspmd_synthesis *s = hspmd_synthesis_create(g, &stage, &err);
	if (!s || hspmd_synthesis_search(s, &result, &err))
		fail_msg("%s", err.text);
	expect_refused(s, "operators", NULL, 0, NULL, "operators: is of another model");
	expect_refused(s, "operators", NULL, 1, json_string("loss 0"), "operators[1]: expected");
	expect_refused(s, "operators", NULL, 1, json_integer(3), "operators[1]");
	const char *opcode = hspmd_opcode_names[g->ops[s->groups[0].op].opcode];
	static const char *const wrong[] = { "",          " ",       " 99",         " -1", " 0 backward", " 0 backward x",
		                             " 0 factor", " - kept", " - kept 999", " 0 0" };
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		expect_refused(s, "operators", NULL, 0, json_sprintf("%s%s", opcode, wrong[i]), "operators[0]: expected");
	expect_refused(s, "segments", "shares", 1, json_integer(0), "segments[0].shares[1]");
	expect_refused(s, "segments", "shares", -1, json_pack("[i,i]", 1, 2), "segments[0].shares");
	expect_refused(s, "segments", "tensor", -1, json_integer(100000), "segments[0].tensor");
	expect_refused(s, "segments", "dim", -1, json_integer(HSPMD_MAX_RANK - 1), "segments[0]: is of another model");
	expect_refused(s, "segments", "name", -1, json_string("another"), "segments[0]: is of another model");
	bool factors = false;
	for (int n = 0; n < s->group_count && !factors; n++)
		for (int k = 0; k < s->groups[n].choice_count && !factors; k++)
			if (s->groups[n].choices[k].factors) { /* searches seldom choose them */
				factors = true;
				s->chosen[n] = k;
				json_t *saved = hspmd_synthesis_save(s, &err);
				struct hspmd_synthesis *t = hspmd_synthesis_create(g, &stage, &err);
				assert_int_equal(hspmd_synthesis_load(t, saved, &err), 0);
				assert_true(t->groups[n].choices[t->chosen[n]].factors);
				hspmd_synthesis_destroy(t);
				json_decref(saved);
			}
	assert_true(factors);
	hspmd_synthesis_destroy(s);
	stage.until_s = 1e-9; /* long ago */
	s = hspmd_synthesis_create(g, &stage, &err);
	assert_non_null(s);
	assert_int_equal(hspmd_synthesis_search(s, &result, &err), -1);
	assert_non_null(strstr(err.text, "in time"));
	hspmd_synthesis_destroy(s);
	hspmd_graph_destroy(g);
	hspmd_cluster_destroy(c);
}

/* A device that packs the factors of its products lays out a convolution's windows before. */
static void test_windows(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	json_t *value = json_loads("{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"d\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,"
	                           "\"gbytes_per_s\":10,\"peak_tflops\":{\"fp32\":0.1}}},\"nodes\":[{\"name\":\"n\",\"devices\":"
	                           "[{\"type\":\"d\",\"count\":1}]}],\"links\":[]}",
	                           0, NULL);
	struct hspmd_cluster *c = hspmd_cluster_from_json(value, "windows", &err);
	if (!c)
		fail_msg("%s", err.text);
	int device = 0;
	struct hspmd_synthesis_stage stage = { .cluster = c, .device_count = 1, .devices = &device, .precision = HSPMD_PRECISION_FP32 };
	struct hspmd_annotation *all = hspmd_annotation_single(&device, 1);
	const struct hspmd_annotation *in[] = { all, all }, *out[] = { all };
	struct hspmd_op_attr attr = { .numbers = { 1, 1, 1, 1, 1, 1 } };
	struct hspmd_op_view view = { .attr = &attr, .input_count = 2, .output_count = 1 };
	view.in[0] = (struct hspmd_shape){ 4, { 2, 4, 5, 6 } };
	view.in[1] = (struct hspmd_shape){ 4, { 6, 4, 3, 3 } };
	view.out[0] = (struct hspmd_shape){ 4, { 2, 6, 5, 6 } };
	view.in_dtype[0] = view.in_dtype[1] = view.out_dtype[0] = HSPMD_F32;
	double rate, memory_rate, seconds[2];
	assert_int_equal(hspmd_synthesis_rates(&stage, &rate, &memory_rate, &err), 0);
	for (int packs = 0; packs < 2; packs++) {
		c->types[0].product_blocks.depth = packs;
		seconds[packs] =
		        hspmd_synthesis_op_seconds(&stage, &rate, &memory_rate, &view, hspmd_op_types[HSPMD_OP_CONV], in, out, NULL, NULL);
	}
	double windows = 2.0 * 5 * 6 * 4 * 9 * 4;
	assert_true(fabs(seconds[1] - seconds[0] - hspmd_device_window_traffic(&c->types[0], windows) / memory_rate) < 1e-15);
	assert_true(hspmd_device_window_traffic(&c->types[0], windows) > windows);
	hspmd_annotation_destroy(all);
	hspmd_cluster_destroy(c);
	json_decref(value);
}

/* What the same work takes at least holds for every division, also among three devices of which one is fast and the others lack either. */
static void test_least(void **state)
{
	(void)state;
	static const double speeds[][2] = { { 0.01, 0.877 }, { 1, 877 }, { 0.001, 8.77 } }; /* TFLOP/s, GB/s */
	struct hspmd_error err = { "" };
	struct hspmd_device_type types[3] = { { .name = NULL } };
	struct hspmd_cluster_device all[3] = { { .type = 0 }, { .type = 1 }, { .type = 2 } };
	struct hspmd_node node = { .slowdown = 1 };
	struct hspmd_cluster c = { .types = types, .devices = all, .nodes = &node };
	int devices[] = { 0, 1, 2 };
	struct hspmd_synthesis_stage stage = { .cluster = &c, .device_count = 3, .devices = devices, .precision = HSPMD_PRECISION_FP32 };
	struct hspmd_op_view view = { .input_count = 1, .output_count = 1, .in_dtype = { HSPMD_F32 }, .out_dtype = { HSPMD_F32 } };
	view.in[0] = view.out[0] = (struct hspmd_shape){ 2, { 4096, 64 } };
	double rate[3], memory[3], best = HUGE_VAL, most = 0, least;
	for (int i = 0; i < 3; i++)
		types[i].tflops[HSPMD_PRECISION_FP32] = speeds[i][0], types[i].gbytes_per_s = speeds[i][1];
	assert_int_equal(hspmd_synthesis_rates(&stage, rate, memory, &err), 0);
	for (int64_t i = 0; i < 62 * 62; i++) {
		struct hspmd_annotation *a = i % 62 + i / 62 < 62 ? hspmd_annotation_single(devices, 3) : NULL;
		const struct hspmd_annotation *of[] = { a };
		if (!a)
			continue;
		hspmd_annotation_split(a, 0, 0, 3, 1, (int64_t[]){ 1 + i % 62 * 64, 4094 - (i % 62 + i / 62) * 64, 1 + i / 62 * 64 });
		best = fmin(best,
		            hspmd_synthesis_op_seconds(&stage, rate, memory, &view, hspmd_op_types[HSPMD_OP_GELU], of, of, NULL, &least));
		most = fmax(most, least);
		hspmd_annotation_destroy(a);
	}
	assert_true(most > 0.3 * best && most <= best);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_optimal), cmocka_unit_test(test_wanted),       cmocka_unit_test(test_shares),
		cmocka_unit_test(test_memory),  cmocka_unit_test(test_second_input), cmocka_unit_test(test_saved),
		cmocka_unit_test(test_windows), cmocka_unit_test(test_least),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
