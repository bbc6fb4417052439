/* SPDX-License-Identifier: Apache-2.0 */
/* The current plan, repaired after a loss: what becomes of it, when it is refused, and that what comes out can run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "tests/bench/solver/dice.h"
#include "tests/unit/draw.h"
#include "tests/unit/solver_inputs.h"

#define BLOCKS 6 /* 8 layers */
#define LAYERS (BLOCKS + 2)
#define BATCH 24

/* Nodes n0 ... of CPU devices, all of one type; `lost`: a bit for each that is missing. */
static struct hspmd_cluster *cluster_without(int nodes, int devices, unsigned lost, double memory)
{
	char *list = hspmd_asprintf("%s", "");
	for (int n = 0; n < nodes; n++) {
		char *more = lost & 1u << n ? NULL
		                            : hspmd_asprintf("%s%s{\"name\": \"n%d\", \"devices\": [{\"type\": \"a\", \"count\": %d}]}",
		                                             list, *list ? ", " : "", n, devices);
		if (!more)
			continue;
		free(list);
		list = more;
	}
	char *text =
	        hspmd_asprintf("{\"format\": \"hspmd-cluster-1\", \"device_types\": {\"a\": {\"kind\": \"cpu\", \"memory_bytes\": %.0f, "
	                       "\"gbytes_per_s\": 40, \"peak_tflops\": {\"fp32\": 0.05}}}, \"nodes\": [%s], \"links\": ["
	                       "{\"scope\": \"node\", \"alpha_s\": 1e-6, \"gbytes_per_s\": 40}, "
	                       "{\"scope\": \"cluster\", \"alpha_s\": 1e-5, \"gbytes_per_s\": 10}]}",
	                       memory, list);
	assert_non_null(text);
	struct hspmd_cluster *c = cluster_from(text);
	free(text);
	free(list);
	return c;
}

struct scene {
	struct hspmd_cluster *before, *now;
	struct hspmd_model_facts *facts;
	struct hspmd_plan *current;
	struct hspmd_solve_request request;
	double slower;
	struct hspmd_error err;
};

/* pipelines: text; NULL: the plan that the solver finds. */
static void scene_new(struct scene *s, struct hspmd_cluster *before, struct hspmd_cluster *now, const char *pipelines)
{
	json_error_t e;
	*s = (struct scene){ .before = before, .now = now, .facts = small_gpt2(BLOCKS, 64) };
	s->request = (struct hspmd_solve_request){ .global_batch = BATCH, .seq_len = 64, .precision = HSPMD_PRECISION_FP32 };
	if (pipelines) {
		char *text = hspmd_asprintf("{\"format\": \"hspmd-plan-1\", \"global_batch\": %d, \"micro_batch\": 1, \"seq_len\": 64, "
		                            "\"schedule\": \"1f1b\", \"zero_stage\": 0, \"pipelines\": [%s]}",
		                            BATCH, pipelines);
		json_t *value = json_loads(text, 0, &e);
		s->current = hspmd_plan_from_json(value, "plan", before, LAYERS, &s->err);
		json_decref(value);
		free(text);
	} else {
		s->current = hspmd_solve(before, s->facts, NULL, &s->request, NULL, &s->err);
	}
	if (!s->current)
		fail_msg("%s", s->err.text);
	s->request.current = s->current;
	s->request.current_cluster = before;
}

static void scene_free(struct scene *s)
{
	hspmd_plan_destroy(s->current);
	hspmd_model_facts_destroy(s->facts);
	hspmd_cluster_destroy(s->before);
	hspmd_cluster_destroy(s->now);
}

static struct hspmd_plan *repaired(struct scene *s)
{
	struct hspmd_plan *p = hspmd_repair_plan(s->now, s->facts, &s->request, 1, 1, &s->slower, &s->err);
	if (!p)
		fail_msg("%s", s->err.text);
	check_plan(p, s->now, LAYERS);
	return p;
}

static void assert_devices(const struct scene *s, const struct hspmd_plan *p, int pipeline, const char *const *names)
{
	char name[64];
	for (int k = 0; k < p->pipelines[pipeline].stage_count; k++)
		assert_string_equal(hspmd_cluster_device_address(s->now, p->pipelines[pipeline].stages[k].devices[0], name, sizeof name),
		                    names[k]);
}

#define MEMORY 4e9
#define STAGE(first, end, node) "{\"layers\": [" first ", " end "], \"devices\": [\"" node ":0\"]}"
#define PIPELINE(micro_batches, stages) "{\"micro_batches\": " micro_batches ", \"stages\": [" stages "]}"
#define FOUR_OF_ONE                                                                                                                        \
	PIPELINE("6", STAGE("0", "8", "n0"))                                                                                               \
	", " PIPELINE("6", STAGE("0", "8", "n1")) ", " PIPELINE("6", STAGE("0", "8", "n2")) ", " PIPELINE("6", STAGE("0", "8", "n3"))
#define TWO_OF_TWO                                                                                                                         \
	PIPELINE("12", STAGE("0", "4", "n0") ", " STAGE("4", "8", "n1"))                                                                   \
	", " PIPELINE("12", STAGE("0", "4", "n2") ", " STAGE("4", "8", "n3"))

/* ---- what becomes of it */

static void hurt_pipelines_are_dropped(void **state)
{
	(void)state;
	struct scene s;
	scene_new(&s, cluster_without(4, 1, 0, MEMORY), cluster_without(4, 1, 2, MEMORY), FOUR_OF_ONE);
	struct hspmd_plan *p = repaired(&s);
	assert_int_equal(p->pipeline_count, 3);
	for (int i = 0; i < 3; i++)
		assert_int_equal(p->pipelines[i].micro_batches, 8);
	assert_true(s.slower > 0.9 && s.slower < 1.1);
	hspmd_plan_destroy(p);
	scene_free(&s);
}

static void a_spare_node_takes_the_place(void **state)
{
	(void)state;
	struct scene s;
	scene_new(&s, cluster_without(5, 1, 0, MEMORY), cluster_without(5, 1, 2, MEMORY), TWO_OF_TWO);
	struct hspmd_plan *p = repaired(&s);
	assert_int_equal(p->pipeline_count, 2);
	assert_devices(&s, p, 0, (const char *const[]){ "n0:0", "n4:0" });
	assert_devices(&s, p, 1, (const char *const[]){ "n2:0", "n3:0" });
	assert_true(s.slower < 0.8); /* only three of the four are left */
	hspmd_plan_destroy(p);
	scene_free(&s);
}

/* Each of two pipelines has lost another stage: together they have one of each. */
static void pipelines_join_what_they_have_left(void **state)
{
	(void)state;
	struct scene s;
	scene_new(&s, cluster_without(4, 1, 0, MEMORY), cluster_without(4, 1, 2 | 4, MEMORY), TWO_OF_TWO);
	struct hspmd_plan *p = repaired(&s);
	assert_int_equal(p->pipeline_count, 1);
	assert_devices(&s, p, 0, (const char *const[]){ "n0:0", "n3:0" });
	assert_int_equal(p->pipelines[0].stages[0].layers[1], 4);
	hspmd_plan_destroy(p);
	scene_free(&s);
}

static void layers_are_divided_among_fewer_stages(void **state)
{
	(void)state;
	struct scene s;
	scene_new(&s, cluster_without(3, 1, 0, MEMORY), cluster_without(3, 1, 2, MEMORY),
	          PIPELINE("24", STAGE("0", "3", "n0") ", " STAGE("3", "5", "n1") ", " STAGE("5", "8", "n2")));
	struct hspmd_plan *p = repaired(&s);
	assert_int_equal(p->pipeline_count, 1);
	assert_int_equal(p->pipelines[0].stage_count, 2);
	assert_devices(&s, p, 0, (const char *const[]){ "n0:0", "n2:0" });
	assert_in_range(p->pipelines[0].stages[0].layers[1], 3, 5);
	hspmd_plan_destroy(p);
	scene_free(&s);
}

/* ---- when it is refused */

static void refused(struct scene *s, double behind, int nodes, const char *why)
{
	struct hspmd_plan *p = hspmd_repair_plan(s->now, s->facts, &s->request, behind, nodes, &s->slower, &s->err);
	assert_null(p);
	if (!strstr(s->err.text, why))
		fail_msg("\"%s\" lacks \"%s\"", s->err.text, why);
}

static void bad_plans_are_refused(void **state)
{
	(void)state;
	struct scene s;
	scene_new(&s, cluster_without(4, 1, 0, MEMORY), cluster_without(4, 1, 2, MEMORY), FOUR_OF_ONE);
	/* It is as good as the last one was, but that one was repaired, too. */
	refused(&s, 1.3, 1, "times as long as the lost speed explains");
	/* A single copy would have no other node. */
	hspmd_cluster_destroy(s.now);
	s.now = cluster_without(4, 1, 0, MEMORY);
	s.request.limits.max_nodes = 3;
	refused(&s, 1, 1, "needs 4 nodes, and 3 are allowed");
	s.request.limits.max_nodes = 0;
	s.request.limits.max_devices = 3;
	refused(&s, 1, 1, "needs 4 devices, and 3 are allowed");
	s.request.current = NULL;
	refused(&s, 1, 1, "no plan that can be repaired");
	scene_free(&s);
}

static void too_few_nodes_for_copies_are_refused(void **state)
{
	(void)state;
	struct scene s;
	scene_new(&s, cluster_without(4, 1, 0, MEMORY), cluster_without(4, 1, 2, MEMORY), PIPELINE("24", STAGE("0", "8", "n0")));
	refused(&s, 1, 2, "uses 1 nodes, and copies of the state need 2");
	hspmd_cluster_destroy(s.now);
	s.now = cluster_without(4, 1, 2 | 4 | 8, MEMORY); /* there is no other node */
	hspmd_plan_destroy(repaired(&s));
	scene_free(&s);
}

/* Everything on the only stage that is left needs more memory than it has. */
static void what_does_not_fit_is_refused(void **state)
{
	(void)state;
	const double memory = 15e6;
	struct scene s;
	scene_new(&s, cluster_without(2, 1, 0, memory), cluster_without(2, 1, 2, memory),
	          PIPELINE("24", STAGE("0", "4", "n0") ", " STAGE("4", "8", "n1")));
	refused(&s, 1, 1, "nothing of the current plan can go on");
	scene_free(&s);
}

/* ---- any */

static unsigned lose_some(struct dice *d, int nodes)
{
	unsigned lost = 0;
	for (int i = pick(d, 1, 2); i > 0; i--)
		lost |= 1u << pick(d, 0, nodes - 1);
	return lost;
}

/* After any loss the plan, if it is not refused, is for what is there, fits, takes the whole batch and the time that it says, and is the
 * same again. */
static void repaired_plans_can_run(void **state)
{
	(void)state;
	unsigned count = draw_count(16, 2000), first = draw_first(count, 2000), good = 0;
	for (unsigned round = first; round < first + count; round++) {
		struct dice d = { 77 + round };
		int nodes = pick(&d, 3, 8), devices = pick(&d, 1, 3);
		double memory = pick(&d, 0, 1) ? MEMORY : 4e7;
		struct scene s;
		unsigned lost = lose_some(&d, nodes);
		scene_new(&s, cluster_without(nodes, devices, 0, memory), cluster_without(nodes, devices, lost, memory), NULL);
		struct hspmd_plan *p = hspmd_repair_plan(s.now, s.facts, &s.request, 1, 1, &s.slower, &s.err);
		struct hspmd_plan *again = hspmd_repair_plan(s.now, s.facts, &s.request, 1, 1, &s.slower, &s.err);
		assert_true(!p == !again);
		if (p) {
			struct hspmd_solve_report report = { 0 };
			json_t *a = hspmd_plan_to_json(p, s.now), *b = hspmd_plan_to_json(again, s.now);
			double step_s = p->predicted.step_s;
			int samples = 0;
			assert_true(json_equal(a, b));
			json_decref(a);
			json_decref(b);
			check_plan(p, s.now, LAYERS);
			assert_int_equal(hspmd_evaluate(s.now, s.facts, NULL, s.request.precision, p, &report, &s.err), 0);
			assert_int_equal(report.shortage_count, 0);
			assert_float_equal(p->predicted.step_s, step_s, 1e-9 * step_s);
			for (int i = 0; i < p->pipeline_count; i++)
				samples += p->pipelines[i].micro_batches * p->pipelines[i].micro_batch;
			assert_int_equal(samples, BATCH);
			assert_true(s.slower <= HSPMD_REPAIRED_MOST);
			hspmd_solve_report_clear(&report);
			good++;
		}
		hspmd_plan_destroy(p);
		hspmd_plan_destroy(again);
		scene_free(&s);
	}
	print_message("%u of %u plans were repaired\n", good, count);
	assert_true(4 * good > count);
}

/* ---- searches that nobody waits for */

static void a_cancelled_search_gives_up(void **state)
{
	(void)state;
	struct scene s;
	const atomic_bool cancelled = true;
	scene_new(&s, cluster_without(8, 3, 0, MEMORY), cluster_without(8, 3, 2, MEMORY), NULL);
	s.request.current = NULL;
	s.request.cancelled = &cancelled;
	assert_null(hspmd_solve(s.now, s.facts, NULL, &s.request, NULL, &s.err));
	assert_string_equal(s.err.text, "the search was given up");
	scene_free(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hurt_pipelines_are_dropped),
		cmocka_unit_test(a_spare_node_takes_the_place),
		cmocka_unit_test(pipelines_join_what_they_have_left),
		cmocka_unit_test(layers_are_divided_among_fewer_stages),
		cmocka_unit_test(bad_plans_are_refused),
		cmocka_unit_test(too_few_nodes_for_copies_are_refused),
		cmocka_unit_test(what_does_not_fit_is_refused),
		cmocka_unit_test(repaired_plans_can_run),
		cmocka_unit_test(a_cancelled_search_gives_up),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
