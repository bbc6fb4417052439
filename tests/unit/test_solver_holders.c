/* SPDX-License-Identifier: Apache-2.0 */
/* Placement of a plan's stages among equal nodes (controller/solver/search/holders.h), against a count of all that any loss takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/losses.h"
#include "controller/solver/search/holders.h"
#include "tests/unit/solver_inputs.h"

#define NODES 11
#define NODE_DEVICES 2
#define LAYERS 14
#define EXPOSED 4.0 /* as in holders.c */
#define CASES 300

static unsigned next(unsigned *seed, unsigned count)
{
	*seed = *seed * 1664525u + 1013904223u;
	return (*seed >> 16) % count;
}

static void add(json_t *list, json_t *value)
{
	assert_int_equal(json_array_append_new(list, value), 0);
}

/* Nodes in three racks, some of them held by two member jobs. */
static struct hspmd_cluster *random_cluster(unsigned *seed)
{
	struct hspmd_error err;
	json_t *nodes = json_array();
	for (int n = 0; n < NODES; n++) {
		char name[8], rack[8];
		snprintf(name, sizeof name, "n%02d", n);
		snprintf(rack, sizeof rack, "r%u", next(seed, 3));
		json_t *node =
		        json_pack("{s:s, s:s, s:[{s:s, s:i}]}", "name", name, "rack", rack, "devices", "type", "a", "count", NODE_DEVICES);
		if (n && next(seed, 3) == 0)
			json_object_set_new(node, "member", json_integer(100 + (json_int_t)next(seed, 2)));
		add(nodes, node);
	}
	json_t *value = json_pack("{s:s, s:{s:{s:s, s:f, s:f, s:{s:f}}}, s:o, s:[{s:s, s:f, s:f}, {s:s, s:f, s:f}]}", "format",
	                          HSPMD_CLUSTER_FORMAT, "device_types", "a", "kind", "cpu", "memory_bytes", 1e12, "gbytes_per_s", 40.0,
	                          "peak_tflops", "fp32", 0.05, "nodes", nodes, "links", "scope", "node", "alpha_s", 1e-6, "gbytes_per_s",
	                          10.0, "scope", "cluster", "alpha_s", 5e-5, "gbytes_per_s", 1.0);
	struct hspmd_cluster *c = hspmd_cluster_from_json(value, "cluster", &err);
	json_decref(value);
	assert_non_null(c);
	return c;
}

/* Stages of one node, or of parts of two nodes, on nodes in a random order; one node stays free. */
static struct hspmd_plan *random_plan(const struct hspmd_cluster *c, unsigned *seed)
{
	struct hspmd_error err;
	json_t *pipelines = json_array();
	int order[NODES], used = 0;
	for (int n = 0; n < NODES; n++) {
		int k = (int)next(seed, (unsigned)n + 1);
		order[n] = order[k];
		order[k] = n;
	}
	while (used < NODES - 1) {
		int left = NODES - 1 - used, count = 1 + (int)next(seed, left < 4 ? (unsigned)left : 4);
		json_t *stages = json_array();
		for (int s = 0; s < count; s++) {
			json_t *devices = json_array();
			if (count == 2) { /* both stages lie on both nodes */
				for (int n = 0; n < 2; n++)
					add(devices, json_sprintf("%s:%d", c->nodes[order[used + n]].name, s));
			} else {
				add(devices, json_sprintf("%s:0-1", c->nodes[order[used + s]].name));
			}
			add(stages, json_pack("{s:[ii], s:o}", "layers", LAYERS * s / count, LAYERS * (s + 1) / count, "devices", devices));
		}
		add(pipelines, json_pack("{s:i, s:o}", "micro_batches", 2, "stages", stages));
		used += count;
	}
	json_t *value = json_pack("{s:s, s:i, s:i, s:i, s:s, s:i, s:o}", "format", HSPMD_PLAN_FORMAT, "global_batch",
	                          2 * (int)json_array_size(pipelines), "micro_batch", 1, "seq_len", 64, "schedule", "1f1b", "zero_stage", 0,
	                          "pipelines", pipelines);
	struct hspmd_plan *p = hspmd_plan_from_json(value, "plan", c, LAYERS, &err);
	if (!p)
		fail_msg("%s", err.text);
	json_decref(value);
	return p;
}

/* Returns true if a loss leaves the stage: no node of it is in set `set`, and all have a position below `left`. */
static bool stands(const struct hspmd_search *s, const struct hspmd_losses *l, const struct hspmd_stage *st, int set, int left)
{
	for (int d = 0; d < st->device_count; d++) {
		int node = s->costs->cluster->devices[st->devices[d]].node;
		if (set ? hspmd_losses_takes(l, set, node) : l->place[node] >= left)
			return false;
	}
	return true;
}

static bool layer_lost(const struct hspmd_search *s, const struct hspmd_losses *l, const struct hspmd_plan *p, int layer, int set, int left)
{
	for (int i = 0; i < p->pipeline_count; i++)
		for (int k = 0; k < p->pipelines[i].stage_count; k++) {
			const struct hspmd_stage *st = &p->pipelines[i].stages[k];
			if (st->layers[0] <= layer && layer < st->layers[1] && stands(s, l, st, set, left))
				return false;
		}
	return true;
}

/* Bytes that losses take completely, summed over the losses. */
static double exposed(const struct hspmd_search *s, const struct hspmd_plan *p)
{
	const struct hspmd_costs *c = s->costs;
	struct hspmd_losses l;
	struct hspmd_error err;
	double sum = 0, bytes = c->param_bytes + c->master_bytes + c->moment_bytes;
	assert_int_equal(hspmd_losses_make(c->cluster, NULL, 1, hspmd_losses_keep(c->cluster, NULL, s->request->least_nodes), &l, &err), 0);
	for (int layer = 0; layer < LAYERS; layer++) {
		int losses = 0;
		for (int left = l.keep; left < NODES; left++)
			losses += layer_lost(s, &l, p, layer, 0, left);
		for (int set = 1; set < hspmd_losses_count(&l); set++)
			losses += layer_lost(s, &l, p, layer, set, 0);
		sum += bytes * (c->params_sum[layer + 1] - c->params_sum[layer]) * losses;
	}
	hspmd_losses_free(&l);
	return sum;
}

static double moved(const struct hspmd_search *s, const struct hspmd_plan *p)
{
	return s->migration ? hspmd_migration_bytes(s->migration, p) : 0;
}

static void exchange(const struct hspmd_cluster *c, struct hspmd_plan *p, int a, int b)
{
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			for (int d = 0; d < p->pipelines[i].stages[s].device_count; d++) {
				int *device = &p->pipelines[i].stages[s].devices[d], node = c->devices[*device].node;
				if (node == a || node == b)
					*device += ((node == a ? b : a) - node) * NODE_DEVICES;
			}
}

/* Spread a random plan. Returns true if that made it safer. */
static bool spread(unsigned seed, const struct hspmd_model_facts *facts)
{
	bool all = true;
	struct hspmd_error err;
	struct hspmd_cluster *c = random_cluster(&seed);
	struct hspmd_plan *p = random_plan(c, &seed), *current = NULL;
	switch (next(&seed, 3)) {
	case 0:
		current = random_plan(c, &seed);
		break;
	case 1:
		current = hspmd_plan_copy(p); /* nothing need move */
		break;
	}
	struct hspmd_solve_request r = { .seq_len = 64, .least_nodes = 1 + (int)next(&seed, 9) };
	struct hspmd_search s = { .request = &r, .caps = hspmd_runtime_caps_default() };
	s.costs = hspmd_costs_new(c, facts, NULL, HSPMD_PRECISION_FP32, 64, &err);
	s.device_classes = hspmd_device_classes_new(c, &all, &err);
	assert_true(s.costs && s.device_classes);
	if (current)
		assert_non_null(s.migration = hspmd_migration_new(s.costs, s.device_classes, current, c, &err));
	double was_exposed = exposed(&s, p), before = EXPOSED * was_exposed + moved(&s, p), bytes = NAN;
	assert_int_equal(hspmd_holders_spread(&s, p, INFINITY, &bytes), 0);
	double now_exposed = exposed(&s, p), after = EXPOSED * now_exposed + moved(&s, p);
	assert_true(after <= before);
	assert_true(current ? fabs(bytes - moved(&s, p)) < 1 : isnan(bytes));
	check_plan(p, c, LAYERS);
	for (int a = 0; a < NODES; a++)
		for (int b = a + 1; b < NODES; b++) {
			exchange(c, p, a, b);
			double other = exposed(&s, p);
			if (other < now_exposed && EXPOSED * other + moved(&s, p) < after * (1 - 2e-6))
				fail_msg("exchanging nodes %d and %d is better: %g instead of %g", a, b, EXPOSED * other + moved(&s, p),
				         after);
			exchange(c, p, a, b);
		}
	hspmd_migration_destroy(s.migration);
	hspmd_device_classes_destroy(s.device_classes);
	hspmd_costs_destroy(s.costs);
	hspmd_plan_destroy(current);
	hspmd_plan_destroy(p);
	hspmd_cluster_destroy(c);
	return now_exposed < was_exposed;
}

/* For random plans, racks, member jobs and least sizes no exchange of two nodes is left that would be worth it. */
static void no_better_exchange_is_left(void **state)
{
	(void)state;
	struct hspmd_model_facts *facts = small_gpt2(LAYERS - 2, 64);
	int safer = 0;
	for (unsigned seed = 0; seed < CASES; seed++)
		safer += spread(seed, facts);
	assert_true(safer > CASES / 6);
	hspmd_model_facts_destroy(facts);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(no_better_exchange_is_left) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
