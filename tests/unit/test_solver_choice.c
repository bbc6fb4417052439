/* SPDX-License-Identifier: Apache-2.0 */
/* Criteria other than speed: the current plan, limits, and cost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/search/assignment.h"
#include "controller/solver/search/migration.h"
#include "tests/bench/solver/instances.h"
#include "tests/unit/draw.h"
#include "tests/unit/only.h"
#include "tests/unit/solver_inputs.h"

/* ---- assignment */

static double best_pairing(int n, const double *value, int i, unsigned taken)
{
	double best = i == n ? 0 : -INFINITY;
	for (int j = 0; i < n && j < n; j++)
		if (!(taken & 1u << j))
			best = fmax(best, value[i * n + j] + best_pairing(n, value, i + 1, taken | 1u << j));
	return best;
}

static void pairs_are_worth_most(void **state)
{
	(void)state;
	unsigned random = 12345;
	for (int round = 0; round < 200; round++) {
		int n = 1 + round % 6, to[6];
		double value[36], sum = 0;
		unsigned taken = 0;
		for (int i = 0; i < n * n; i++) {
			random = random * 1664525u + 1013904223u;
			value[i] = (random >> 16) % 7;
		}
		assert_int_equal(hspmd_assign_best(n, value, to), 0);
		for (int i = 0; i < n; i++) {
			assert_in_range(to[i], 0, n - 1);
			taken |= 1u << to[i];
			sum += value[i * n + to[i]];
		}
		assert_int_equal(taken, (1u << n) - 1);
		assert_true(fabs(sum - best_pairing(n, value, 0, 0)) < 1e-9);
	}
}

/* Too many to pair exactly: every element still gets a partner of its own, and one that alone values a partner gets it. */
static void many_are_paired_too(void **state)
{
	(void)state;
	enum { N = HSPMD_ASSIGN_EXACT_MAX + 40 };
	double *value = calloc(N * N, sizeof *value);
	int to[N], seen[N] = { 0 };
	assert_non_null(value);
	for (int i = 0; i < N; i += 2)
		value[i * N + (N - 1 - i)] = 1 + i;
	assert_int_equal(hspmd_assign_best(N, value, to), 0);
	for (int i = 0; i < N; i++) {
		assert_int_equal(seen[to[i]]++, 0);
		if (i % 2 == 0)
			assert_int_equal(to[i], N - 1 - i);
	}
	free(value);
}

/* ---- the current plan */

struct scene {
	struct hspmd_cluster *cluster;
	struct hspmd_profile *profile;
	struct hspmd_costs *costs;
	struct hspmd_device_classes *device_classes;
};

/* `nodes`: the text of the cluster's nodes. Six layers of 1000 weights, with 4 bytes and 8 bytes of moments each. */
static void scene_new(struct scene *s, const char *nodes)
{
	struct hspmd_error err = { "" };
	bool allowed[2] = { true, true };
	char *text = hspmd_asprintf(
	        "{\"format\": \"hspmd-cluster-1\", \"device_types\": {"
	        "\"a\": {\"kind\": \"cpu\", \"memory_bytes\": 40000000, \"gbytes_per_s\": 100, \"peak_tflops\": {\"fp32\": 1}},"
	        "\"b\": {\"kind\": \"cpu\", \"memory_bytes\": 40000000, \"gbytes_per_s\": 100, \"peak_tflops\": {\"fp32\": 1}}},"
	        "\"nodes\": %s, \"links\": [{\"scope\": \"node\", \"alpha_s\": 1e-6, \"gbytes_per_s\": 50},"
	        "{\"scope\": \"cluster\", \"alpha_s\": 1e-5, \"gbytes_per_s\": 5}]}",
	        nodes);
	s->cluster = cluster_from(text);
	free(text);
	json_t *profile = json_object(), *layers = json_array(), *times = json_array();
	for (int l = 0; l < 6; l++)
		json_array_append_new(layers, json_pack("{s:s, s:i, s:i, s:i}", "name", "layer", "params", 1000, "output_elems", 100,
		                                        "activation_bytes", 1000));
	for (int t = 0; t < 2; t++)
		for (int tp = 1; tp <= 2; tp++) {
			double f = (t ? 0.02 : 0.01) / tp;
			json_array_append_new(times, json_pack("{s:s, s:i, s:i, s:[f,f,f,f,f,f], s:[f,f,f,f,f,f], s:n}", "device_type",
			                                       t ? "b" : "a", "tp", tp, "micro_batch", 1, "forward_s", f, f, f, f, f, f,
			                                       "backward_s", 2 * f, 2 * f, 2 * f, 2 * f, 2 * f, 2 * f, "optimizer_s"));
		}
	json_object_set_new(profile, "format", json_string(HSPMD_PROFILE_FORMAT));
	json_object_set_new(profile, "model", json_string("six"));
	json_object_set_new(profile, "seq_len", json_integer(16));
	json_object_set_new(profile, "dtype_bytes", json_integer(4));
	json_object_set_new(profile, "layers", layers);
	json_object_set_new(profile, "times", times);
	s->profile = hspmd_profile_from_json(profile, "profile", &err);
	json_decref(profile);
	if (!s->profile)
		fail_msg("%s", err.text);
	s->costs = hspmd_costs_new(s->cluster, NULL, s->profile, HSPMD_PRECISION_FP32, 0, &err);
	s->device_classes = s->costs ? hspmd_device_classes_new(s->cluster, allowed, &err) : NULL;
	if (!s->device_classes)
		fail_msg("%s", err.text);
}

static void scene_free(struct scene *s)
{
	hspmd_device_classes_destroy(s->device_classes);
	hspmd_costs_destroy(s->costs);
	hspmd_profile_destroy(s->profile);
	hspmd_cluster_destroy(s->cluster);
}

static struct hspmd_plan *plan_from(const struct scene *s, int batch, int zero, const char *pipelines)
{
	struct hspmd_error err = { "" };
	json_error_t e;
	char *text = hspmd_asprintf(
	        "{\"format\": \"hspmd-plan-1\", \"global_batch\": %d, \"micro_batch\": 1, \"seq_len\": 16, \"schedule\": \"1f1b\","
	        "\"zero_stage\": %d, \"pipelines\": %s}",
	        batch, zero, pipelines);
	json_t *value = json_loads(text, 0, &e);
	if (!value)
		fail_msg("%s", e.text);
	struct hspmd_plan *p = hspmd_plan_from_json(value, "plan", s->cluster, 6, &err);
	if (!p)
		fail_msg("%s", err.text);
	json_decref(value);
	free(text);
	return p;
}

static double moved(const struct scene *s, const char *from, const char *to, int zero)
{
	struct hspmd_error err = { "" };
	struct hspmd_plan *a = plan_from(s, 4, 0, from), *b = plan_from(s, 4, zero, to);
	struct hspmd_migration *n = hspmd_migration_new(s->costs, s->device_classes, a, s->cluster, &err);
	assert_non_null(n);
	double bytes = hspmd_migration_bytes(n, b);
	hspmd_migration_destroy(n);
	hspmd_plan_destroy(a);
	hspmd_plan_destroy(b);
	return bytes;
}

#define ONE_STAGE(device) "[{\"micro_batches\": 4, \"stages\": [{\"layers\": [0, 6], \"devices\": [\"" device "\"]}]}]"
#define TWO_STAGES(at, x, y)                                                                                                               \
	"[{\"micro_batches\": 4, \"stages\": [{\"layers\": [0, " at "], \"devices\": [\"" x "\"]}, {\"layers\": [" at                      \
	", 6], \"devices\": [\"" y "\"]}]}]"
#define TWO_PIPELINES(x, y)                                                                                                                \
	"[{\"micro_batches\": 2, \"stages\": [{\"layers\": [0, 6], \"devices\": [\"" x                                                     \
	"\"]}]}, {\"micro_batches\": 2, \"stages\": [{\"layers\": [0, 6], \"devices\": [\"" y "\"]}]}]"

static void bytes_are_those_that_are_not_there(void **state)
{
	(void)state;
	struct scene s;
	scene_new(&s, "[{\"name\": \"n0\", \"devices\": [{\"type\": \"a\", \"count\": 2}]}, {\"name\": \"n1\", \"devices\": [{\"type\": "
	              "\"a\", \"count\": 2}]}]");
	const double layer = 12000;
	assert_true(moved(&s, TWO_STAGES("3", "n0:0", "n1:0"), TWO_STAGES("3", "n0:0", "n1:0"), 0) == 0);
	/* One layer moves to another device. */
	assert_true(moved(&s, TWO_STAGES("3", "n0:0", "n1:0"), TWO_STAGES("4", "n0:0", "n1:0"), 0) == layer);
	assert_true(moved(&s, TWO_STAGES("3", "n0:0", "n1:0"), TWO_STAGES("3", "n1:0", "n0:0"), 0) == 6 * layer);
	/* A group of two: each device drops a half, or receives the other half. */
	assert_true(moved(&s, ONE_STAGE("n0:0"), ONE_STAGE("n0:0-1"), 0) == 3 * layer);
	assert_true(moved(&s, ONE_STAGE("n0:0-1"), ONE_STAGE("n0:0"), 0) == 3 * layer);
	/* A second copy: complete, or its weights and half of the moments. */
	assert_true(moved(&s, ONE_STAGE("n0:0"), TWO_PIPELINES("n0:0", "n1:0"), 0) == 6 * layer);
	assert_true(moved(&s, ONE_STAGE("n0:0"), TWO_PIPELINES("n0:0", "n1:0"), 1) == 6 * (4000 + 4000));
	scene_free(&s);
}

/* Nodes and devices of one class are exchanged so that nothing moves without need; those of different classes are not exchanged. */
static void plans_move_to_the_devices_that_hold_their_state(void **state)
{
	(void)state;
	struct scene s;
	struct hspmd_error err = { "" };
	scene_new(&s, "[{\"name\": \"n[0-3]\", \"devices\": [{\"type\": \"a\", \"count\": 2}]}, {\"name\": \"m\", \"devices\": [{\"type\": "
	              "\"b\", \"count\": 2}]}]");
	struct hspmd_plan *now = plan_from(&s, 4, 0, TWO_STAGES("2", "n3:1", "m:1"));
	struct hspmd_plan *same = plan_from(&s, 4, 0, TWO_STAGES("2", "n1:0", "m:0")),
	                  *other = plan_from(&s, 4, 0, TWO_STAGES("2", "m:0", "n1:0"));
	struct hspmd_migration *n = hspmd_migration_new(s.costs, s.device_classes, now, s.cluster, &err);
	assert_non_null(n);
	assert_true(hspmd_migration_bytes(n, same) > 0);
	assert_int_equal(hspmd_migration_assign(n, same), 0);
	assert_true(hspmd_migration_bytes(n, same) == 0);
	assert_int_equal(hspmd_migration_assign(n, other), 0);
	check_plan(other, s.cluster, 6);
	assert_true(hspmd_migration_bytes(n, other) == 6 * 12000);
	assert_string_equal(s.cluster->types[s.cluster->devices[other->pipelines[0].stages[0].devices[0]].type].name, "b");
	hspmd_migration_destroy(n);
	hspmd_plan_destroy(now);
	hspmd_plan_destroy(same);
	hspmd_plan_destroy(other);
	scene_free(&s);
}

static struct hspmd_plan *solve(const struct scene *s, const struct hspmd_plan *current, const struct hspmd_cluster *of,
                                struct hspmd_solve_report *report)
{
	struct hspmd_error err = { "" };
	struct hspmd_solve_request r = { .global_batch = 12, .current = current, .current_cluster = of };
	struct hspmd_plan *p = hspmd_solve(s->cluster, NULL, s->profile, &r, report, &err);
	if (!p)
		fail_msg("%s", err.text);
	check_plan(p, s->cluster, 6);
	return p;
}

/* A node is lost: the others keep what they hold. Without a current plan nothing is reported about moving. */
static void a_smaller_cluster_keeps_what_it_has(void **state)
{
	(void)state;
	struct scene four, three;
	struct hspmd_solve_report report = { 0 };
	scene_new(&four, "[{\"name\": \"n[0-3]\", \"devices\": [{\"type\": \"a\", \"count\": 2}]}]");
	scene_new(&three, "[{\"name\": \"n[1-3]\", \"devices\": [{\"type\": \"a\", \"count\": 2}]}]");
	struct hspmd_plan *before = solve(&four, NULL, NULL, &report);
	assert_true(isnan(report.moved_bytes));
	hspmd_solve_report_clear(&report);
	struct hspmd_plan *again = solve(&four, before, NULL, &report);
	assert_true(report.moved_bytes == 0);
	hspmd_solve_report_clear(&report);
	struct hspmd_plan *fastest = solve(&three, NULL, NULL, NULL), *near = solve(&three, before, four.cluster, &report);
	assert_true(near->predicted.step_s <= 1.02 * fastest->predicted.step_s * (1 + 1e-9));
	struct hspmd_error err = { "" };
	struct hspmd_migration *n = hspmd_migration_new(three.costs, three.device_classes, before, four.cluster, &err);
	assert_non_null(n);
	assert_true(report.moved_bytes <= hspmd_migration_bytes(n, fastest));
	assert_true(report.moved_bytes == hspmd_migration_bytes(n, near));
	hspmd_migration_destroy(n);
	hspmd_solve_report_clear(&report);
	hspmd_plan_destroy(before);
	hspmd_plan_destroy(again);
	hspmd_plan_destroy(fastest);
	hspmd_plan_destroy(near);
	scene_free(&four);
	scene_free(&three);
}

/* Random problems; the current plan is that of another batch. The plan chosen is never more than 2 % slower than the fastest, and never
 * moves more bytes than it. */
static void nearness_costs_little(void **state)
{
	(void)state;
	int nearer = 0;
	const unsigned count = draw_count(8, 12), first = 1 + draw_first(count, 12);
	for (unsigned seed = first; seed < first + count; seed++) {
		struct hspmd_error err = { "" };
		struct instance in;
		struct hspmd_solve_report with = { 0 };
		assert_int_equal(instance_new(seed, 8, 8, &in, &err), 0);
		struct hspmd_solve_request r = { .global_batch = in.global_batch };
		struct hspmd_plan *now = hspmd_solve(in.cluster, NULL, in.profile, &r, NULL, &err);
		r.global_batch += 6;
		struct hspmd_plan *fastest = now ? hspmd_solve(in.cluster, NULL, in.profile, &r, NULL, &err) : NULL;
		r.current = now;
		struct hspmd_plan *near = fastest ? hspmd_solve(in.cluster, NULL, in.profile, &r, &with, &err) : NULL;
		if (near) {
			bool allowed[3] = { true, true, true };
			struct hspmd_costs *c = hspmd_costs_new(in.cluster, NULL, in.profile, HSPMD_PRECISION_FP32, 0, &err);
			struct hspmd_device_classes *k = hspmd_device_classes_new(in.cluster, allowed, &err);
			struct hspmd_migration *n = hspmd_migration_new(c, k, now, in.cluster, &err);
			assert_non_null(n);
			assert_true(near->predicted.step_s <= 1.02 * fastest->predicted.step_s * (1 + 1e-9));
			assert_true(with.moved_bytes <= hspmd_migration_bytes(n, fastest));
			nearer += with.moved_bytes < hspmd_migration_bytes(n, fastest);
			hspmd_migration_destroy(n);
			hspmd_device_classes_destroy(k);
			hspmd_costs_destroy(c);
		}
		hspmd_solve_report_clear(&with);
		hspmd_plan_destroy(now);
		hspmd_plan_destroy(fastest);
		hspmd_plan_destroy(near);
		instance_free(&in);
	}
	assert_true(nearer > 0 || count < 8); /* some have none */
}

/* ---- limits and cost */

/* Nodes n are fast and expensive, nodes m slow and cheap. */
#define MARKET                                                                                                                             \
	"[{\"name\": \"n[0-2]\", \"price_per_hour\": 5, \"devices\": [{\"type\": \"a\", \"count\": 2}]}, {\"name\": \"m[0-2]\", "          \
	"\"price_per_hour\": 2, \"devices\": [{\"type\": \"b\", \"count\": 2}]}]"

struct used {
	int nodes, devices;
	double price;
	bool types[2];
};

static struct used used_by(const struct hspmd_cluster *c, const struct hspmd_plan *p)
{
	struct used u = { 0 };
	bool nodes[16] = { false };
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			for (int d = 0; d < p->pipelines[i].stages[s].device_count; d++) {
				const struct hspmd_cluster_device *at = &c->devices[p->pipelines[i].stages[s].devices[d]];
				u.devices++;
				u.types[at->type] = true;
				if (!nodes[at->node]) {
					u.nodes++;
					u.price += c->nodes[at->node].price_per_hour;
				}
				nodes[at->node] = true;
			}
	return u;
}

static double step_within(const struct scene *s, struct hspmd_solve_limits limits, struct used *used)
{
	struct hspmd_error err = { "" };
	struct hspmd_solve_request r = { .global_batch = 36, .micro_batch = 1, .limits = limits };
	struct hspmd_plan *p = hspmd_solve(s->cluster, NULL, s->profile, &r, NULL, &err);
	if (!p)
		fail_msg("%s", err.text);
	check_plan(p, s->cluster, 6);
	*used = used_by(s->cluster, p);
	double seconds = p->predicted.step_s;
	hspmd_plan_destroy(p);
	return seconds;
}

static void limits_are_kept(void **state)
{
	(void)state;
	struct scene s;
	struct used u;
	scene_new(&s, MARKET);
	const char *only_b[] = { "b", "unknown" };
	double whole = step_within(&s, (struct hspmd_solve_limits){ 0 }, &u);
	assert_int_equal(u.nodes, 6);
	double two = step_within(&s, (struct hspmd_solve_limits){ .max_nodes = 2 }, &u);
	assert_in_range(u.nodes, 1, 2);
	assert_false(u.types[1]);
	assert_true(two > whole);
	step_within(&s, (struct hspmd_solve_limits){ .max_nodes = 1, .type_count = 2, .types = only_b }, &u);
	assert_true(u.nodes == 1 && u.types[1] && !u.types[0]);
	/* A part of a node, as devices are limited and not nodes. */
	double one = step_within(&s, (struct hspmd_solve_limits){ .max_devices = 1 }, &u);
	assert_int_equal(u.devices, 1);
	double three = step_within(&s, (struct hspmd_solve_limits){ .max_devices = 3 }, &u);
	assert_int_equal(u.devices, 3);
	assert_true(one > three && three > whole);
	/* 9 per hour: an expensive node and two cheap ones are as fast as two expensive ones, which cost 10. */
	double nine = step_within(&s, (struct hspmd_solve_limits){ .max_price_per_hour = 9 }, &u);
	assert_true(u.price <= 9 && u.types[0] && u.types[1]);
	assert_true(nine < two * 1.05);
	scene_free(&s);
}

static void impossible_limits_are_told(void **state)
{
	(void)state;
	struct scene s;
	scene_new(&s, MARKET);
	const char *none[] = { "c" };
	const struct hspmd_solve_limits bad[] = {
		{ .max_price_per_hour = 1 }, { .type_count = 1, .types = none }, { .cost_weight = 1.5 }, { .cost_weight = -1 }
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct hspmd_error err = { "" };
		struct hspmd_solve_request r = { .global_batch = 12, .limits = bad[i] };
		assert_null(hspmd_solve(s.cluster, NULL, s.profile, &r, NULL, &err));
		assert_true(strlen(err.text) > 10);
	}
	scene_free(&s);
}

/* The least step^(1-w) (step price)^w over every set of nodes, each searched for speed alone. */
static double best_bargain(const struct scene *s, double weight)
{
	double best = INFINITY;
	for (int a = 0; a <= 3; a++)
		for (int b = 0; b <= 3; b++) {
			char nodes[512], x[128] = "", y[128] = "";
			struct scene part;
			struct hspmd_error err = { "" };
			struct hspmd_solve_request r = { .global_batch = 36, .micro_batch = 1 };
			if (!a && !b)
				continue;
			if (a)
				snprintf(x, sizeof x,
				         "{\"name\": \"n[0-%d]\", \"price_per_hour\": 5, \"devices\": [{\"type\": \"a\", \"count\": 2}]}%s",
				         a - 1, b ? "," : "");
			if (b)
				snprintf(y, sizeof y,
				         "{\"name\": \"m[0-%d]\", \"price_per_hour\": 2, \"devices\": [{\"type\": \"b\", \"count\": 2}]}",
				         b - 1);
			snprintf(nodes, sizeof nodes, "[%s%s]", x, y);
			scene_new(&part, nodes);
			struct hspmd_plan *p = hspmd_solve(part.cluster, NULL, s->profile, &r, NULL, &err);
			assert_non_null(p);
			best = fmin(best, p->predicted.step_s * pow(used_by(part.cluster, p).price, weight));
			hspmd_plan_destroy(p);
			scene_free(&part);
		}
	return best;
}

static void cost_steers(void **state)
{
	(void)state;
	struct scene s;
	struct used u, before = { .price = INFINITY };
	scene_new(&s, MARKET);
	for (int w = 5 - (int)draw_count(4, 4); w <= 4; w++) {
		double weight = w / 4.0, step = step_within(&s, (struct hspmd_solve_limits){ .cost_weight = weight }, &u);
		assert_true(step * pow(u.price, weight) <= best_bargain(&s, weight) * (1 + 1e-9));
		assert_true(u.price <= before.price);
		before = u;
	}
	/* At the least cost the expensive nodes are not used. */
	assert_false(u.types[0]);
	scene_free(&s);
}

/* ---- nodes that are lost together */

/* Four nodes of one device, whose links were measured and therefore differ slightly. */
static struct hspmd_cluster *measured_cluster(unsigned seed, long memory_bytes, const char *rack)
{
	char links[2000] = "";
	for (int i = 0; i < 4; i++)
		for (int k = i + 1; k < 4; k++) {
			seed = seed * 1664525u + 1013904223u;
			sprintf(links + strlen(links),
			        "{\"scope\": \"cluster\", \"nodes\": [\"n%d\", \"n%d\"], \"alpha_s\": 5e-5, \"gbytes_per_s\": %g}%s", i, k,
			        1 + (seed >> 16) % 1000 * 5e-6, i < 2 ? ", " : "");
		}
	char *text = hspmd_asprintf("{\"format\": \"hspmd-cluster-1\", \"device_types\": {\"a\": {\"kind\": \"cpu\", \"memory_bytes\": "
	                            "%ld, \"gbytes_per_s\": 40, "
	                            "\"peak_tflops\": {\"fp32\": 0.05}}}, \"nodes\": [{\"name\": \"n0\", \"rack\": \"%c\", \"devices\": "
	                            "[{\"type\": \"a\", \"count\": 1}]}, "
	                            "{\"name\": \"n1\", \"rack\": \"%c\", \"devices\": [{\"type\": \"a\", \"count\": 1}]}, {\"name\": "
	                            "\"n2\", \"rack\": \"%c\", \"devices\": "
	                            "[{\"type\": \"a\", \"count\": 1}]}, {\"name\": \"n3\", \"rack\": \"%c\", \"devices\": [{\"type\": "
	                            "\"a\", \"count\": 1}]}], \"links\": [%s]}",
	                            memory_bytes, rack[0], rack[1], rack[2], rack[3], links);
	assert_non_null(text);
	struct hspmd_cluster *c = cluster_from(text);
	free(text);
	return c;
}

/* Returns true if each layer has a holder other than nodes a and b. */
static bool outlives(const struct hspmd_plan *p, int a, int b)
{
	const struct hspmd_pipeline *first = &p->pipelines[0];
	for (int layer = 0; layer < first->stages[first->stage_count - 1].layers[1]; layer++) {
		bool held = false;
		for (int i = 0; i < p->pipeline_count; i++)
			for (int s = 0; s < p->pipelines[i].stage_count; s++) {
				const struct hspmd_stage *st = &p->pipelines[i].stages[s];
				held |= st->layers[0] <= layer && layer < st->layers[1] && st->devices[0] != a && st->devices[0] != b;
			}
		if (!held)
			return false;
	}
	return true;
}

/* Two pipelines of two stages: for any measured links and any current placement, the two nodes that a shrink removes first, or a rack, do
 * not hold all copies of anything. */
static void holders_stay(void **state)
{
	(void)state;
	static const char *const racks[] = { "abcd", "abab", "abba" };
	struct hspmd_model_facts *m = small_gpt2(12, 64);
	struct hspmd_runtime_caps caps = hspmd_runtime_caps_default();
	int halves = 0;
	caps.max_tp = 1;
	caps.max_zero_stage = 0;
	for (unsigned seed = 0; seed < 24; seed++) {
		struct hspmd_cluster *c = measured_cluster(seed, 37000000, racks[seed % 3]);
		struct hspmd_solve_request r = { .global_batch = 16, .seq_len = 64, .micro_batch = 1, .caps = &caps, .least_nodes = 2 };
		struct hspmd_error err = { "" };
		struct hspmd_plan *p = hspmd_solve(c, m, NULL, &r, NULL, &err), *again;
		if (!p)
			fail_msg("%s", err.text);
		bool two = p->pipeline_count == 2 && p->pipelines[0].stage_count == 2;
		halves += two;
		assert_true(!two || (outlives(p, 2, 3) && (racks[seed % 3][1] != racks[seed % 3][3] || outlives(p, 1, 3)) &&
		                     (racks[seed % 3][0] != racks[seed % 3][3] || outlives(p, 0, 3))));
		/* Start from the worst placements. */
		static const int worst[2][2] = { { 0, 3 }, { 1, 2 } };
		for (int i = 0; two && i < 2; i++)
			for (int s = 0; s < 2; s++)
				p->pipelines[i].stages[s].devices[0] = worst[i][s];
		r.current = p;
		again = hspmd_solve(c, m, NULL, &r, NULL, &err);
		if (!again)
			fail_msg("%s", err.text);
		assert_true(!two || outlives(again, 2, 3));
		hspmd_plan_destroy(p);
		hspmd_plan_destroy(again);
		hspmd_cluster_destroy(c);
	}
	assert_true(halves >= 20);
	hspmd_model_facts_destroy(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pairs_are_worth_most),
		cmocka_unit_test(many_are_paired_too),
		cmocka_unit_test(bytes_are_those_that_are_not_there),
		cmocka_unit_test(plans_move_to_the_devices_that_hold_their_state),
		cmocka_unit_test(a_smaller_cluster_keeps_what_it_has),
		cmocka_unit_test(nearness_costs_little),
		cmocka_unit_test(limits_are_kept),
		cmocka_unit_test(impossible_limits_are_told),
		cmocka_unit_test(cost_steers),
		cmocka_unit_test(holders_stay),
	};
	only_chosen_tests(tests, sizeof tests / sizeof *tests);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
