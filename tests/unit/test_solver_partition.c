/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions of layers and shares of work, compared with trying everything. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "controller/solver/search/minmax.h"
#include "controller/solver/search/partition.h"
#include "controller/solver/search/partition_memo.h"
#include "controller/solver/search/shard_ratio.h"
#include "controller/solver/sim/simulate.h"
#include "tests/bench/solver/instances.h"

/* ---- partitions */

static double cycle_of(struct hspmd_submesh_tables *t, const struct hspmd_stage_sequence *sequence, bool messages, const int *ends)
{
	double worst = 0;
	for (int s = 0, first = 0; s < sequence->stages; first = ends[s++]) {
		const double *work = t->submeshes[sequence->submesh[s]].work[HSPMD_RECOMPUTE_NONE];
		double seconds = work[ends[s]] - work[first];
		if (messages && s > 0)
			seconds +=
			        hspmd_boundary_seconds(t, sequence->submesh[s - 1], sequence->submesh[s], false, 1, t->size_of[first - 1]);
		if (messages && s < sequence->stages - 1)
			seconds += hspmd_boundary_seconds(t, sequence->submesh[s], sequence->submesh[s + 1], false, 1,
			                                  t->size_of[ends[s] - 1]);
		worst = fmax(worst, seconds);
	}
	return worst;
}

static double least_cycle(struct hspmd_submesh_tables *t, const struct hspmd_stage_sequence *sequence, bool messages, int *ends, int s,
                          int first)
{
	double best = INFINITY;
	if (s == sequence->stages - 1) {
		ends[s] = t->layers;
		return cycle_of(t, sequence, messages, ends);
	}
	for (int end = first + 1; end <= t->layers - (sequence->stages - 1 - s); end++) {
		ends[s] = end;
		best = fmin(best, least_cycle(t, sequence, messages, ends, s + 1, end));
	}
	return best;
}

/* The bound by which sequences are left out is that of messages that take no time, as precisely as it is used. */
static void expect_least_period(struct hspmd_submesh_tables *t, const struct hspmd_stage_sequence *sequence)
{
	int ends[HSPMD_STAGES_MAX];
	double bound = hspmd_partition_least_period(t, sequence, NAN), best = least_cycle(t, sequence, false, ends, 0, 0);
	assert_true(bound <= best * (1 + 1e-12));
	assert_true(bound >= 0.99 * best);
}

/* A stage for each device that is alone in its node. */
static struct hspmd_stage_sequence one_device_stages(const struct hspmd_submesh_tables *t)
{
	struct hspmd_stage_sequence sequence = { 0 };
	for (int u = 0; u < t->submesh_count; u++) {
		const struct hspmd_device_class *k = &t->device_classes->list[t->submeshes[u].device_class];
		for (int n = 0; t->submeshes[u].tp == 1 && k->per_node == 1 && n < k->node_count && sequence.stages < t->layers; n++)
			sequence.submesh[sequence.stages++] = (unsigned char)u;
	}
	return sequence;
}

/* On clusters of one-device nodes every boundary crosses nodes, so the period can be computed by hand. */
static void splits_have_the_least_cycle(void **state)
{
	(void)state;
	struct hspmd_runtime_caps caps = hspmd_runtime_caps_default();
	int compared = 0;
	for (unsigned seed = 1; seed <= 200; seed++) {
		struct hspmd_error err = { "" };
		struct instance in;
		bool allowed[3] = { true, true, true };
		assert_int_equal(instance_new(seed, 6, 9, &in, &err), 0);
		struct hspmd_costs *c = hspmd_costs_new(in.cluster, NULL, in.profile, HSPMD_PRECISION_FP32, 0, &err);
		struct hspmd_device_classes *device_classes = hspmd_device_classes_new(in.cluster, allowed, &err);
		struct hspmd_submesh_tables *t = hspmd_submesh_tables_new(c, device_classes, &caps, 1, HSPMD_DRAFT_OFFLOADS_NOTHING, &err);
		assert_non_null(t);
		struct hspmd_stage_sequence sequence = one_device_stages(t);
		struct hspmd_pipeline_partition partition;
		struct hspmd_layer_copies copies = { .pipelines = 1 };
		int ends[HSPMD_STAGES_MAX];
		if (!in.tight && sequence.stages > 1) {
			assert_true(hspmd_partition_layers(t, &sequence, &copies, 64, 1e-9, &partition));
			double best = least_cycle(t, &sequence, true, ends, 0, 0);
			assert_true(fabs(partition.period_s - best) <= 1e-7 * best);
			/* No sequence runs more micro-batches per second than the sum of its submeshes' rates. */
			double rates = 0;
			for (int s = 0; s < sequence.stages; s++)
				rates += t->submeshes[sequence.submesh[s]].rate;
			assert_true(best * rates >= 1 - 1e-12);
			expect_least_period(t, &sequence);
			compared++;
		}
		hspmd_submesh_tables_destroy(t);
		hspmd_device_classes_destroy(device_classes);
		hspmd_costs_destroy(c);
		instance_free(&in);
	}
	assert_true(compared > 20);
}

/* Seconds of m micro-batches under ZB-H1. */
static double zb_h1_step(struct hspmd_submesh_tables *t, const struct hspmd_stage_sequence *sequence, const int *ends, int m)
{
	struct hspmd_sim_stage stages[HSPMD_STAGES_MAX] = { 0 };
	struct hspmd_pipeline_sim result = { 0 };
	for (int s = 0, first = 0; s < sequence->stages; first = ends[s++]) {
		const struct hspmd_submesh *u = &t->submeshes[sequence->submesh[s]];
		double forward = u->forward[ends[s]] - u->forward[first];
		double passes = u->work[HSPMD_RECOMPUTE_NONE][ends[s]] - u->work[HSPMD_RECOMPUTE_NONE][first];
		stages[s].forward = forward;
		stages[s].backward = passes - forward;
		stages[s].weight_grads = hspmd_sim_weight_grads(forward, passes - forward);
		if (s > 0)
			stages[s].send_backward = stages[s - 1].send_forward =
			        hspmd_boundary_seconds(t, sequence->submesh[s - 1], sequence->submesh[s], false, 1, t->size_of[first - 1]) /
			        2;
	}
	assert_int_equal(hspmd_simulate(stages, sequence->stages, m, HSPMD_SCHEDULE_ZB_H1, &result), 0);
	return result.end;
}

#define STEADY 4000 /* micro-batches by which any pipeline has settled */
#define SLOWER 20   /* links, by this factor, so that a transfer takes about as long as gradients of weights */

/* Under ZB-H1 the period is what the simulation comes to, and the partition for which transfers hide is taken where it is faster than the
 * one for which they do not: some of those are much faster. */
static void transfers_hide_behind_gradients_of_weights(void **state)
{
	(void)state;
	struct hspmd_runtime_caps caps = hspmd_runtime_caps_default();
	int compared = 0, faster = 0;
	for (unsigned seed = 1; seed <= 200; seed++) {
		struct hspmd_error err = { "" };
		struct instance in;
		bool allowed[3] = { true, true, true };
		assert_int_equal(instance_new(seed, 6, 9, &in, &err), 0);
		for (int l = 0; l < in.cluster->link_count; l++)
			in.cluster->links[l].gbytes_per_s /= SLOWER;
		struct hspmd_costs *c = hspmd_costs_new(in.cluster, NULL, in.profile, HSPMD_PRECISION_FP32, 0, &err);
		struct hspmd_device_classes *device_classes = hspmd_device_classes_new(in.cluster, allowed, &err);
		struct hspmd_submesh_tables *t = hspmd_submesh_tables_new(c, device_classes, &caps, 1, HSPMD_DRAFT_OFFLOADS_NOTHING, &err);
		assert_non_null(t);
		struct hspmd_stage_sequence sequence = one_device_stages(t);
		struct hspmd_pipeline_partition with, without;
		const struct hspmd_layer_copies copies = { .pipelines = 1 };
		if (!in.tight && sequence.stages > 1) {
			int ends[HSPMD_STAGES_MAX], ends_without[HSPMD_STAGES_MAX], few = HSPMD_FEW_MICRO_BATCHES * sequence.stages;
			assert_true(hspmd_partition_layers(t, &sequence, &copies, STEADY, 1e-9, &without));
			t->schedule = HSPMD_SCHEDULE_ZB_H1;
			assert_true(hspmd_partition_layers(t, &sequence, &copies, STEADY, 1e-9, &with));
			for (int s = 0; s < sequence.stages; s++) {
				ends[s] = with.ends[s];
				ends_without[s] = without.ends[s];
			}
			double later = zb_h1_step(t, &sequence, ends, 2 * STEADY) - zb_h1_step(t, &sequence, ends, STEADY);
			assert_true(fabs(with.period_s - later / STEADY) <= 1e-3 * with.period_s);
			double ours = zb_h1_step(t, &sequence, ends, few), other = zb_h1_step(t, &sequence, ends_without, few);
			assert_true(ours <= other * (1 + 1e-9));
			faster += ours < 0.98 * other;
			compared++;
		}
		hspmd_submesh_tables_destroy(t);
		hspmd_device_classes_destroy(device_classes);
		hspmd_costs_destroy(c);
		instance_free(&in);
	}
	print_message("%d compared, %d of them much faster\n", compared, faster);
	assert_true(compared > 20 && faster > 3);
}

/* Every plan that the search makes of all devices respects the bound by which it prunes, and the bound is tight: a bound lower by a fifth
 * would prune the best plan. */
static void no_plan_beats_the_bound(void **state)
{
	(void)state;
	struct hspmd_runtime_caps caps = hspmd_runtime_caps_default();
	int near = 0, plans = 0;
	for (unsigned seed = 1; seed <= 40; seed++) {
		struct hspmd_error err = { "" };
		struct instance in;
		bool allowed[3] = { true, true, true };
		assert_int_equal(instance_new(seed, 6, 8, &in, &err), 0);
		struct hspmd_costs *c = hspmd_costs_new(in.cluster, NULL, in.profile, HSPMD_PRECISION_FP32, 0, &err);
		struct hspmd_device_classes *device_classes = hspmd_device_classes_new(in.cluster, allowed, &err);
		for (int mb = 1; mb <= 2; mb++) {
			struct hspmd_submesh_tables *t =
			        hspmd_submesh_tables_new(c, device_classes, &caps, mb, HSPMD_DRAFT_OFFLOADS_NOTHING, &err);
			struct hspmd_solve_request r = { .global_batch = in.global_batch, .micro_batch = mb };
			struct hspmd_plan *p = hspmd_solve(in.cluster, NULL, in.profile, &r, NULL, &err);
			int available[HSPMD_DEVICE_CLASSES_MAX] = { 0 };
			for (int k = 0; k < device_classes->count; k++)
				available[k] = device_classes->list[k].count;
			double bound = in.global_batch / mb / hspmd_submesh_tables_rate(t, available) /
			               hspmd_variation(c, in.cluster->device_count, 1);
			if (p) {
				assert_true(p->predicted.step_s >= bound);
				near += 0.8 * p->predicted.step_s < bound;
				plans++;
			}
			hspmd_plan_destroy(p);
			hspmd_submesh_tables_destroy(t);
		}
		hspmd_device_classes_destroy(device_classes);
		hspmd_costs_destroy(c);
		instance_free(&in);
	}
	print_message("%d plans, %d of them near the bound\n", plans, near);
	assert_true(near > 3);
}

/* ---- shares */

static double slowest(const struct hspmd_minmax_worker *t, int count, const int *parts, const int *extra)
{
	double worst = 0;
	for (int i = 0; i < count; i++)
		worst = fmax(worst, t[i].fixed + t[i].each * (parts[i] + (extra[i] > 0)));
	return worst;
}

/* The least time by trying every number of parts for every worker (one copy each). */
static double tried(const struct hspmd_minmax_worker *t, int count, int total)
{
	double best = INFINITY;
	if (count == 1)
		return total >= 1 && total <= t->max_parts ? t->fixed + t->each * total : INFINITY;
	for (int n = 1; n < total && n <= t->max_parts; n++)
		best = fmin(best, fmax(t->fixed + t->each * n, tried(t + 1, count - 1, total - n)));
	return best;
}

static void shares_are_optimal_in_whole_parts(void **state)
{
	(void)state;
	unsigned random = 1;
	for (int round = 0; round < 300; round++) {
		struct hspmd_minmax_worker t[3];
		int parts[3], extra[3];
		for (int i = 0; i < 3; i++) {
			random = random * 1664525u + 1013904223u;
			t[i] = (struct hspmd_minmax_worker){ (random >> 8) % 100 / 10.0, 1 + (random >> 16) % 90 / 10.0, 1,
				                             (random >> 24) % 4 ? INT_MAX : 1 + (int)(random >> 20) % 6 };
		}
		int total = 3 + (int)(random >> 12) % 20;
		double best = tried(t, 3, total);
		int rc = hspmd_minmax_divide(t, 3, total, parts, extra);
		assert_int_equal(rc, isinf(best) ? 1 : 0);
		if (rc)
			continue;
		int sum = 0;
		for (int i = 0; i < 3; i++) {
			sum += parts[i] + extra[i];
			assert_true(parts[i] + extra[i] <= t[i].max_parts);
		}
		assert_int_equal(sum, total);
		assert_true(fabs(slowest(t, 3, parts, extra) - best) < 1e-9);
	}
}

static void copies_take_alike(void **state)
{
	(void)state;
	const struct hspmd_minmax_worker t[2] = { { 0, 1, 4, INT_MAX }, { 0, 2, 2, INT_MAX } };
	int parts[2], extra[2];
	assert_int_equal(hspmd_minmax_divide(t, 2, 22, parts, extra), 0);
	assert_int_equal(4 * parts[0] + extra[0] + 2 * parts[1] + extra[1], 22);
	assert_true(fabs(slowest(t, 2, parts, extra) - 5) < 1e-9);
	assert_int_equal(hspmd_minmax_divide(t, 2, 5, parts, extra), 1);
}

/* ---- shards of unequal devices */

#define UNLIKE 3

struct stage_of {
	struct hspmd_costs *c;
	struct hspmd_plan plan;
	struct hspmd_pipeline pipeline;
	struct hspmd_stage stage;
	int devices[UNLIKE];
	double ratio[UNLIKE];
};

/* Make a stage of one device of each type, with all layers. Returns the number of devices. */
static int put_together(struct stage_of *x, const struct instance *in, struct hspmd_costs *c)
{
	*x = (struct stage_of){ .c = c };
	int n = 0;
	for (int t = 0; t < in->cluster->type_count; t++)
		for (int d = 0; d < in->cluster->device_count; d++)
			if (in->cluster->devices[d].type == t) {
				x->devices[n++] = d;
				break;
			}
	x->stage = (struct hspmd_stage){ .layers = { 0, c->layer_count }, .device_count = n, .devices = x->devices, .context = 1 };
	x->pipeline = (struct hspmd_pipeline){ .micro_batches = 4, .micro_batch = 1, .stage_count = 1, .stages = &x->stage };
	x->plan = (struct hspmd_plan){ .global_batch = 4,
		                       .micro_batch = 1,
		                       .seq_len = c->seq_len,
		                       .virtual_stages = 1,
		                       .pipeline_count = 1,
		                       .pipelines = &x->pipeline };
	return n;
}

/* Seconds of a micro-batch on the slowest device; INFINITY if a device cannot hold its part. */
static double slowest_shard(struct stage_of *x, bool memory, bool *guess)
{
	double worst = 0;
	*guess = false;
	x->stage.shard_ratio = x->ratio;
	for (int i = 0; i < x->stage.device_count; i++) {
		int type = x->c->cluster->devices[x->devices[i]].type;
		const struct hspmd_layer_times *t = hspmd_costs_times(x->c, type, x->ratio[i], false, 1, NULL);
		assert_non_null(t);
		worst = fmax(worst, t->forward[x->c->layer_count] + t->backward[x->c->layer_count]);
		*guess = *guess || (t->origins & HSPMD_TIME_TP_EXTRAPOLATED);
		if (memory && hspmd_plan_memory(x->c, &x->plan, 0, 0, i) > (double)x->c->cluster->types[type].memory_bytes)
			worst = INFINITY;
	}
	x->stage.shard_ratio = NULL;
	return worst;
}

/* The least time over every division into granules; *guess: the best one has a share that was not measured. */
static double best_division(struct stage_of *x, int i, int left, bool memory, bool *guess)
{
	double best = INFINITY;
	bool own;
	if (i == x->stage.device_count - 1) {
		x->ratio[i] = (double)left / HSPMD_GRANULES;
		return slowest_shard(x, memory, guess);
	}
	for (int parts = 1; parts < left - (x->stage.device_count - 2 - i); parts++) {
		x->ratio[i] = (double)parts / HSPMD_GRANULES;
		double seconds = best_division(x, i + 1, left - parts, memory, &own);
		if (seconds < best) {
			best = seconds;
			*guess = own;
		}
	}
	return best;
}

static void unlike_devices_share_a_stage_as_well_as_can_be(void **state)
{
	(void)state;
	int compared = 0, bound = 0, impossible = 0;
	for (unsigned seed = 1; seed <= 120; seed++) {
		struct hspmd_error err = { "" };
		struct instance in;
		struct stage_of x;
		bool guess = false, ignored;
		assert_int_equal(instance_new(seed, 8, 6, &in, &err), 0);
		for (int t = 0; seed % 3 == 0 && t < in.cluster->type_count; t++)
			in.cluster->types[t].memory_bytes = in.cluster->types[t].memory_bytes * (2 + (int)seed % 4) / 6;
		struct hspmd_costs *c = hspmd_costs_new(in.cluster, NULL, in.profile, HSPMD_PRECISION_FP32, 0, &err);
		assert_non_null(c);
		int n = put_together(&x, &in, c), rc = n > 1 ? hspmd_choose_shard_ratio(c, &x.plan, 0, 0) : -1;
		if (n > 1) {
			double *own = x.stage.shard_ratio, ours = INFINITY;
			for (int i = 0; i < n && !rc; i++)
				x.ratio[i] = own ? own[i] : 1.0 / n;
			ours = rc ? INFINITY : slowest_shard(&x, true, &ignored);
			double best = best_division(&x, 0, HSPMD_GRANULES, true, &guess);
			assert_true(rc >= 0);
			/* Shares that were not measured are not used, however fast they look. */
			if (!guess && fabs(ours - best) > 1e-9 * best && !(isinf(ours) && isinf(best)))
				fail_msg("problem %u: %g s, the best division takes %g s", seed, ours, best);
			compared += !guess && !isinf(best);
			impossible += isinf(best);
			bound += !isinf(best) && best > best_division(&x, 0, HSPMD_GRANULES, false, &ignored) * (1 + 1e-9);
			free(own);
		}
		hspmd_costs_destroy(c);
		instance_free(&in);
	}
	print_message("%d divided, %d of them as memory allows, %d impossible\n", compared, bound, impossible);
	/* Memory decided often enough, in both ways. */
	assert_true(compared > 20 && bound > 0 && impossible > 0);
}

/* ---- partitions that are known */

static struct hspmd_stage_sequence sequence_of(int number)
{
	struct hspmd_stage_sequence x = { .stages = 1 + number % 5 };
	for (int s = 0; s < x.stages; s++, number /= 7)
		x.submesh[s] = (unsigned char)(number % 7);
	return x;
}

/* Every sequence has its own partitions for each number of pipelines, in the order in which they were added. */
static void known_partitions_are_found(void **state)
{
	(void)state;
	struct hspmd_partition_memo *m = hspmd_partition_memo_new();
	int added = 0;
	assert_non_null(m);
	for (int round = 0; round < 2; round++)
		for (int number = 0; number < 3000; number++) {
			struct hspmd_pipeline_partition x[2] = { { .sequence = sequence_of(number), .max_micro_batches = number },
				                                 { .sequence = sequence_of(number), .max_micro_batches = -number } };
			int pipelines = number % 3, count;
			const struct hspmd_pipeline_partition *known = hspmd_partition_memo_find(m, &x[0].sequence, pipelines, &count);
			if (!known) {
				assert_int_equal(round, 0);
				assert_int_equal(hspmd_partition_memo_add(m, x, pipelines, 1 + number % 2), 0);
				added++;
				continue;
			}
			assert_int_equal(known->sequence.stages, x[0].sequence.stages);
			assert_memory_equal(known->sequence.submesh, x[0].sequence.submesh, (size_t)known->sequence.stages);
			assert_int_equal(known->max_micro_batches % 3, pipelines);
			assert_int_equal(count, 1 + known->max_micro_batches % 2);
			if (count == 2)
				assert_int_equal(known[1].max_micro_batches, -known->max_micro_batches);
		}
	assert_true(added > 1000);
	hspmd_partition_memo_destroy(m);
	hspmd_partition_memo_destroy(NULL);
}

/* ---- partitions in plans of other numbers of pipelines */

static bool find_partition(struct hspmd_submesh_tables *t, const struct hspmd_stage_sequence *x, int pipelines,
                           struct hspmd_pipeline_partition *out)
{
	const struct hspmd_layer_copies copies = { .pipelines = pipelines, .zero = 1 };
	return hspmd_partition_layers(t, x, &copies, 16, 2e-3, out);
}

static bool same(const struct hspmd_pipeline_partition *a, const struct hspmd_pipeline_partition *b)
{
	size_t n = (size_t)a->sequence.stages;
	return !memcmp(a->ends, b->ends, n * sizeof *a->ends) && !memcmp(a->way, b->way, n) && a->period_s == b->period_s &&
	       a->fill_drain_s == b->fill_drain_s;
}

/* Searches for so many pipelines, then for all others of which that said that they have the same partition. Returns how many these are. */
static int compare_range(struct hspmd_submesh_tables *t, const struct hspmd_stage_sequence *x, int pipelines, bool *limited)
{
	struct hspmd_pipeline_partition one, other;
	bool there = find_partition(t, x, pipelines, &one);
	int most = one.most < 12 ? one.most : 12;
	assert_true(one.least <= pipelines && pipelines <= one.most);
	for (int n = one.least; n <= most; n++) {
		assert_int_equal(find_partition(t, x, n, &other), there);
		assert_true(!there || same(&one, &other));
	}
	*limited = !there || one.limited;
	return most - one.least;
}

/* With memory that suffices for everything, for something or for nothing. */
static void partitions_are_the_same_in_their_range(void **state)
{
	(void)state;
	struct hspmd_runtime_caps caps = hspmd_runtime_caps_default();
	int limited_others = 0, free_others = 0;
	for (unsigned seed = 1; seed <= 60; seed++) {
		struct hspmd_error err = { "" };
		struct instance in;
		bool allowed[3] = { true, true, true };
		assert_int_equal(instance_new(seed, 8, 12, &in, &err), 0);
		struct hspmd_costs *c = hspmd_costs_new(in.cluster, NULL, in.profile, HSPMD_PRECISION_FP32, 0, &err);
		struct hspmd_device_classes *device_classes = hspmd_device_classes_new(in.cluster, allowed, &err);
		struct hspmd_submesh_tables *t = hspmd_submesh_tables_new(c, device_classes, &caps, 1, HSPMD_DRAFT_OFFLOADS_NOTHING, &err);
		assert_non_null(t);
		for (int number = 0; number < 40; number++) {
			struct hspmd_stage_sequence x = sequence_of(number * 31 + (int)seed);
			for (int s = 0; s < x.stages; s++)
				x.submesh[s] = (unsigned char)(x.submesh[s] % t->submesh_count);
			t->schedule = number % 2 ? HSPMD_SCHEDULE_ZB_H1 : HSPMD_SCHEDULE_1F1B;
			for (int pipelines = 2; pipelines <= 8; pipelines += 3) {
				bool limited;
				int others = compare_range(t, &x, pipelines, &limited);
				*(limited ? &limited_others : &free_others) += others;
			}
		}
		hspmd_submesh_tables_destroy(t);
		hspmd_device_classes_destroy(device_classes);
		hspmd_costs_destroy(c);
		instance_free(&in);
	}
	assert_true(limited_others > 100 && free_others > 100);
}

/* What tables keep of earlier searches saves work, and changes no partition. */
static void used_tables_find_the_same(void **state)
{
	(void)state;
	struct hspmd_runtime_caps caps = hspmd_runtime_caps_default();
	int limited = 0, free_of_limits = 0, none = 0;
	for (unsigned seed = 1; seed <= 60; seed++) {
		struct hspmd_error err = { "" };
		struct instance in;
		bool allowed[3] = { true, true, true };
		assert_int_equal(instance_new(seed, 8, 12, &in, &err), 0);
		struct hspmd_costs *c = hspmd_costs_new(in.cluster, NULL, in.profile, HSPMD_PRECISION_FP32, 0, &err);
		struct hspmd_device_classes *device_classes = hspmd_device_classes_new(in.cluster, allowed, &err);
		struct hspmd_submesh_tables *used =
		        hspmd_submesh_tables_new(c, device_classes, &caps, 1, HSPMD_DRAFT_OFFLOADS_NOTHING, &err);
		assert_non_null(used);
		for (int number = 0; number < 120; number++) {
			struct hspmd_submesh_tables *fresh =
			        hspmd_submesh_tables_new(c, device_classes, &caps, 1, HSPMD_DRAFT_OFFLOADS_NOTHING, &err);
			struct hspmd_stage_sequence x = sequence_of(number * 31 + (int)seed);
			struct hspmd_pipeline_partition one, other;
			assert_non_null(fresh);
			for (int s = 0; s < x.stages; s++)
				x.submesh[s] = (unsigned char)(x.submesh[s] % used->submesh_count);
			used->schedule = fresh->schedule = number % 2 ? HSPMD_SCHEDULE_ZB_H1 : HSPMD_SCHEDULE_1F1B;
			bool there = find_partition(fresh, &x, 2 + number % 3, &one);
			assert_int_equal(find_partition(used, &x, 2 + number % 3, &other), there);
			assert_true(!there || same(&one, &other));
			++*(!there ? &none : one.limited ? &limited : &free_of_limits);
			hspmd_submesh_tables_destroy(fresh);
		}
		hspmd_submesh_tables_destroy(used);
		hspmd_device_classes_destroy(device_classes);
		hspmd_costs_destroy(c);
		instance_free(&in);
	}
	print_message("%d partitions, %d of them as memory allows, %d impossible\n", limited + free_of_limits, limited, none);
	assert_true(none > 20 && limited > 20 && free_of_limits > 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(known_partitions_are_found),
		cmocka_unit_test(partitions_are_the_same_in_their_range),
		cmocka_unit_test(used_tables_find_the_same),
		cmocka_unit_test(splits_have_the_least_cycle),
		cmocka_unit_test(transfers_hide_behind_gradients_of_weights),
		cmocka_unit_test(no_plan_beats_the_bound),
		cmocka_unit_test(shares_are_optimal_in_whole_parts),
		cmocka_unit_test(copies_take_alike),
		cmocka_unit_test(unlike_devices_share_a_stage_as_well_as_can_be),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
