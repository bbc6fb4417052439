/* SPDX-License-Identifier: Apache-2.0 */
/* Every move of the search mends a plan that lacks nothing else. A whole search hides a move that does not work: it begins with several
 * plans, and other moves reach most of what one leaves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/alloc.h"
#include "controller/solver/search/beam_search_internal.h"
#include "tests/unit/solver_inputs.h"

#define ENOUGH 1000000 /* stages timed */

/* A search over GPUs that only one kind of move is left to, unless a test allows more. */
static int readings_left = -1; /* how often the clock is still read before second 1; -1: it is the system's */

/* Takes the place of the C library's. */
int clock_gettime(clockid_t clock, struct timespec *t)
{
	if (readings_left < 0)
		return (int)syscall(SYS_clock_gettime, clock, t);
	*t = (struct timespec){ readings_left ? 0 : 2, 0 };
	readings_left -= readings_left > 0;
	return 0;
}

struct scene {
	struct hspmd_cluster *cluster;
	struct hspmd_model_facts *facts;
	struct hspmd_solve_request request;
	struct hspmd_search search;
};

/* `nodes`: text of the cluster's nodes, of GPUs "a" and "b"; b is half as fast. 14 layers, 8 heads. */
static void scene_new(struct scene *s, const char *nodes, int batch)
{
	struct hspmd_error err = { "" };
	const bool allowed[2] = { true, true };
	char *text = hspmd_asprintf(
	        "{\"format\": \"hspmd-cluster-1\", \"device_types\": {"
	        "\"a\": {\"kind\": \"cuda\", \"memory_bytes\": 40000000000, \"gbytes_per_s\": 2000, \"peak_tflops\": {\"bf16\": 300}},"
	        "\"b\": {\"kind\": \"cuda\", \"memory_bytes\": 40000000000, \"gbytes_per_s\": 1000, \"peak_tflops\": {\"bf16\": 150}}},"
	        "\"nodes\": %s, \"links\": [{\"scope\": \"node\", \"alpha_s\": 5e-6, \"gbytes_per_s\": 200},"
	        "{\"scope\": \"cluster\", \"alpha_s\": 1e-5, \"gbytes_per_s\": 20}]}",
	        nodes);
	struct hspmd_model *model = model_from(
	        "{\"model_type\": \"llama\", \"hidden_size\": 1024, \"intermediate_size\": 2816, \"num_hidden_layers\": 12,"
	        "\"num_attention_heads\": 8, \"num_key_value_heads\": 8, \"vocab_size\": 8000, \"max_position_embeddings\": 1024}");
	assert_non_null(text);
	*s = (struct scene){ .cluster = cluster_from(text), .facts = facts_of(model, 1024) };
	free(text);
	hspmd_model_destroy(model);
	s->request =
	        (struct hspmd_solve_request){ .global_batch = batch, .micro_batch = 1, .seq_len = 1024, .precision = HSPMD_PRECISION_BF16 };
	s->search = (struct hspmd_search){ .request = &s->request, .best_s = INFINITY, .caps = hspmd_runtime_caps_default() };
	s->search.best_plans.max_count = HSPMD_BEST_PLANS;
	s->search.caps.schedules = 1u << HSPMD_SCHEDULE_1F1B;
	s->search.caps.max_zero_stage = 0;
	s->search.costs = hspmd_costs_new(s->cluster, s->facts, NULL, s->request.precision, 1024, &err);
	s->search.device_classes = s->search.costs ? hspmd_device_classes_new(s->cluster, allowed, &err) : NULL;
	if (!s->search.device_classes)
		fail_msg("%s", err.text);
	for (int k = 0; k < s->search.device_classes->count; k++)
		s->search.available[k] = s->search.device_classes->list[k].count;
}

static void scene_free(struct scene *s)
{
	hspmd_best_plans_clear(&s->search.best_plans);
	hspmd_beam_grounds_clear(&s->search);
	hspmd_search_workers_destroy(s->search.workers);
	hspmd_device_classes_destroy(s->search.device_classes);
	hspmd_costs_destroy(s->search.costs);
	hspmd_model_facts_destroy(s->facts);
	hspmd_cluster_destroy(s->cluster);
}

static struct hspmd_plan *plan_from(const struct scene *s, int micro_batch, const char *pipelines)
{
	struct hspmd_error err = { "" };
	json_error_t e;
	char *text = hspmd_asprintf("{\"format\": \"hspmd-plan-1\", \"global_batch\": %d, \"micro_batch\": %d, \"seq_len\": 1024,"
	                            "\"schedule\": \"1f1b\", \"zero_stage\": 0, \"pipelines\": %s}",
	                            s->request.global_batch, micro_batch, pipelines);
	json_t *value = text ? json_loads(text, 0, &e) : NULL;
	if (!value)
		fail_msg("%s", text ? e.text : "memory");
	struct hspmd_plan *p = hspmd_plan_from_json(value, "plan", s->cluster, 14, &err);
	if (!p)
		fail_msg("%s", err.text);
	json_decref(value);
	free(text);
	return p;
}

static const struct hspmd_plan *best(const struct scene *s)
{
	assert_true(s->search.best_plans.count > 0);
	return s->search.best_plans.list[0].plan;
}

/* The plan as local search leaves it. */
static const struct hspmd_plan *refined(struct scene *s, int micro_batch, const char *pipelines)
{
	long budget = ENOUGH;
	struct hspmd_plan *p = plan_from(s, micro_batch, pipelines);
	assert_true(hspmd_best_plans_time(&s->search, p, NULL) < INFINITY);
	assert_int_equal(hspmd_local_search(&s->search, p, &budget), 0);
	assert_true(budget > 0);
	return best(s);
}

#define ONE_NODE "[{\"name\": \"n\", \"devices\": [{\"type\": \"a\", \"count\": 4}]}]"
#define STAGE(first, end, devices) "{\"layers\": [" first ", " end "], \"devices\": [\"" devices "\"]}"
#define PIPELINE(micro_batches, stages) "{\"micro_batches\": " micro_batches ", \"stages\": [" stages "]}"
#define FOUR_STAGES STAGE("0", "4", "n:0") "," STAGE("4", "8", "n:1") "," STAGE("8", "11", "n:2") "," STAGE("11", "14", "n:3")

/* ---- local search */

static void borders_move(void **state)
{
	(void)state;
	struct scene s;
	scene_new(&s, ONE_NODE, 8);
	const struct hspmd_plan *p = refined(&s, 1, "[" PIPELINE("8", STAGE("0", "2", "n:0") "," STAGE("2", "14", "n:1")) "]");
	assert_in_range(p->pipelines[0].stages[0].layers[1], 6, 9);
	scene_free(&s);
}

static void micro_batches_move(void **state)
{
	(void)state;
	struct scene s;
	scene_new(&s, ONE_NODE, 8);
	const struct hspmd_plan *p =
	        refined(&s, 1, "[" PIPELINE("6", STAGE("0", "14", "n:0")) "," PIPELINE("2", STAGE("0", "14", "n:1")) "]");
	assert_int_equal(p->pipelines[0].micro_batches, 4);
	scene_free(&s);
}

static void the_optimizer_state_is_divided(void **state)
{
	(void)state;
	struct scene s;
	scene_new(&s, ONE_NODE, 8);
	s.search.caps.max_zero_stage = 1;
	const struct hspmd_plan *p =
	        refined(&s, 1, "[" PIPELINE("4", STAGE("0", "14", "n:0")) "," PIPELINE("4", STAGE("0", "14", "n:1")) "]");
	assert_int_equal(p->zero_stage, 1);
	scene_free(&s);
}

static void the_order_of_passes_changes(void **state)
{
	(void)state;
	struct scene s;
	scene_new(&s, ONE_NODE, 8);
	s.search.caps.schedules |= 1u << HSPMD_SCHEDULE_ZB_H1;
	const struct hspmd_plan *p = refined(&s, 1, "[" PIPELINE("8", FOUR_STAGES) "]");
	assert_int_equal(p->schedule, HSPMD_SCHEDULE_ZB_H1);
	scene_free(&s);
}

/* One device launches kernels for each micro-batch; of one in four stages, three devices always wait. */
static void micro_batches_become_larger_and_smaller(void **state)
{
	(void)state;
	struct scene s;
	scene_new(&s, ONE_NODE, 16);
	s.request.micro_batch = 0;
	const struct hspmd_plan *p = refined(&s, 1, "[" PIPELINE("16", STAGE("0", "14", "n:0")) "]");
	assert_true(p->micro_batch > 1);
	assert_int_equal(p->micro_batch * p->pipelines[0].micro_batches, 16);
	assert_int_equal(p->micro_batch, p->pipelines[0].micro_batch);
	hspmd_best_plans_clear(&s.search.best_plans);
	p = refined(&s, 16, "[" PIPELINE("1", FOUR_STAGES) "]");
	assert_true(p->micro_batch < 16);
	assert_int_equal(p->micro_batch * p->pipelines[0].micro_batches, 16);
	scene_free(&s);
}

/* A size that was asked for stays. */
static void asked_micro_batches_stay(void **state)
{
	(void)state;
	struct scene s;
	scene_new(&s, ONE_NODE, 16);
	const struct hspmd_plan *p = refined(&s, 1, "[" PIPELINE("16", STAGE("0", "14", "n:0")) "]");
	assert_int_equal(p->micro_batch, 1);
	scene_free(&s);
}

/* Devices alike in two nodes: activations leave a node twice, or once. */
static void stages_are_swapped(void **state)
{
	(void)state;
	struct scene s;
	scene_new(&s,
	          "[{\"name\": \"n\", \"devices\": [{\"type\": \"a\", \"count\": 2}]},"
	          "{\"name\": \"m\", \"devices\": [{\"type\": \"a\", \"count\": 1}]}]",
	          8);
	const struct hspmd_plan *p =
	        refined(&s, 1, "[" PIPELINE("8", STAGE("0", "5", "n:0") "," STAGE("5", "10", "m:0") "," STAGE("10", "14", "n:1")) "]");
	assert_int_not_equal(p->pipelines[0].stages[1].devices[0], 2);
	scene_free(&s);
}

/* ---- beam search */

/* The best plan after beam search from this one. */
static const struct hspmd_plan *searched(struct scene *s, const char *pipelines)
{
	struct hspmd_plan *p = plan_from(s, 1, pipelines);
	const struct hspmd_beginning none = { .schedules = s->search.caps.schedules };
	assert_int_equal(hspmd_best_plans_offer(&s->search, p, NULL), 0);
	assert_int_equal(hspmd_beam_search(&s->search, &none, 1), 0);
	return best(s);
}

static int widest(const struct hspmd_plan *p)
{
	int most = 0;
	for (int i = 0; i < p->pipeline_count; i++)
		for (int k = 0; k < p->pipelines[i].stage_count; k++)
			most = p->pipelines[i].stages[k].device_count > most ? p->pipelines[i].stages[k].device_count : most;
	return most;
}

#define GROUP STAGE("0", "14", "n:0-3")

/* Sums within a group of four take longer than anything else here. */
static void stages_become_narrower(void **state)
{
	(void)state;
	struct scene s;
	scene_new(&s, ONE_NODE, 32);
	assert_int_equal(widest(searched(&s, "[" PIPELINE("32", GROUP) "]")), 1);
	scene_free(&s);
}

/* Of two micro-batches, a pipeline of four stages leaves more than half of the time unused. */
static void stages_become_wider(void **state)
{
	(void)state;
	struct scene s;
	scene_new(&s, ONE_NODE, 1);
	assert_true(widest(searched(&s, "[" PIPELINE("1", FOUR_STAGES) "]")) > 1);
	scene_free(&s);
}

static void spare_devices_are_used(void **state)
{
	(void)state;
	struct scene s;
	scene_new(&s, ONE_NODE, 32);
	assert_int_equal(hspmd_plan_device_count(searched(&s, "[" PIPELINE("32", STAGE("0", "14", "n:0")) "]")), 4);
	scene_free(&s);
}

/* The more stages a pipeline has, the longer it fills and drains. */
static void pipelines_are_added(void **state)
{
	(void)state;
	struct scene s;
	scene_new(&s, ONE_NODE, 16);
	assert_true(searched(&s, "[" PIPELINE("16", STAGE("0", "14", "n:0")) "]")->pipeline_count > 1);
	scene_free(&s);
}

/* The slow devices of the second node hold up all others. */
static void what_slows_down_is_dropped(void **state)
{
	(void)state;
	struct scene s;
	scene_new(&s,
	          "[{\"name\": \"n\", \"devices\": [{\"type\": \"a\", \"count\": 2}]},"
	          "{\"name\": \"m\", \"devices\": [{\"type\": \"b\", \"count\": 1}], \"slowdown\": 20}]",
	          2);
	const struct hspmd_plan *p =
	        searched(&s, "[" PIPELINE("2", STAGE("0", "6", "n:0") "," STAGE("6", "13", "n:1") "," STAGE("13", "14", "m:0")) "]");
	assert_int_equal(hspmd_plan_device_count(p), 2);
	scene_free(&s);
}

/* A pipeline whose stages are apart takes as long for a few micro-batches as others for many. */
static void micro_batches_are_levelled(void **state)
{
	(void)state;
	struct scene s;
	double objective;
	scene_new(&s,
	          "[{\"name\": \"n\", \"devices\": [{\"type\": \"a\", \"count\": 1}]},"
	          "{\"name\": \"m\", \"devices\": [{\"type\": \"b\", \"count\": 1}]}]",
	          30);
	struct hspmd_plan *p =
	        plan_from(&s, 1, "[" PIPELINE("15", STAGE("0", "14", "n:0")) "," PIPELINE("15", STAGE("0", "14", "m:0")) "]");
	double before = hspmd_best_plans_time(&s.search, p, NULL);
	assert_int_equal(hspmd_best_plans_level(&s.search, p, INFINITY, &objective), 0);
	assert_int_equal(p->pipelines[0].micro_batches + p->pipelines[1].micro_batches, 30);
	assert_in_range(p->pipelines[0].micro_batches, 19, 21);
	assert_true(objective < 0.75 * before && objective == hspmd_best_plans_time(&s.search, p, NULL));
	hspmd_plan_destroy(p);
	scene_free(&s);
}

/* ---- steps of the beam search, whether they are faster or not */

#define EIGHT "[{\"name\": \"n-[0-1]\", \"devices\": [{\"type\": \"a\", \"count\": 4}]}]"
#define SUCCESSORS 10

/* A beam that has looked at nothing yet. */
static void beam_new(struct beam *b, struct scene *s)
{
	struct hspmd_error err = { "" };
	struct hspmd_beam_ground *g = hspmd_calloc(1, sizeof *g);
	*b = (struct beam){ .s = &s->search, .ground = g, .total = s->request.global_batch, .search = 1 };
	assert_non_null(g);
	b->t = g->t =
	        hspmd_submesh_tables_new(s->search.costs, s->search.device_classes, &s->search.caps, 1, HSPMD_DRAFT_OFFLOADS_NOTHING, &err);
	b->memos = g->memos;
	for (int how = 0; how < HSPMD_PLACEMENT_COUNT; how++)
		g->memos[how] = hspmd_partition_memo_new();
	g->known = hspmd_calloc(2 * HSPMD_BEAM_KNOWN_MAX, sizeof *g->known);
	g->views = hspmd_search_tables_views(&s->search, g->t);
	b->batch = hspmd_calloc(HSPMD_BEAM_BATCH, sizeof *b->batch);
	b->judging = hspmd_beam_judging_new();
	assert_true(g->views && b->batch && b->judging);
	b->successors = (struct beam_list){ .most = SUCCESSORS, .drafts = hspmd_calloc(SUCCESSORS, sizeof *b->successors.drafts) };
	s->search.beam_grounds[s->search.beam_ground_count++] = g; /* destroyed with the scene */
}

static void beam_clear(struct beam *b)
{
	free(b->successors.drafts);
	free(b->batch);
	free(b->judging);
}

/* Pipelines as "2*44+3*1": two of two stages of four devices, three of one stage of one. */
static void draft_from(const struct beam *b, const char *text, struct beam_draft *d)
{
	*d = (struct beam_draft){ 0 };
	while (*text) {
		char *end;
		int copies = (int)strtol(text, &end, 10);
		struct hspmd_stage_sequence x = { 0 };
		for (text = end + 1; *text && *text != '+'; text++)
			x.submesh[x.stages++] = (unsigned char)hspmd_beam_submesh(b->t, 0, *text - '0');
		assert_true(hspmd_beam_add_copies(d, &x, copies));
		text += *text == '+';
	}
}

static bool same_drafts(const struct beam_draft *a, const struct beam_draft *b)
{
	bool same = a->count == b->count;
	for (int g = 0; same && g < a->count; g++) {
		bool found = false;
		for (int k = 0; k < b->count; k++)
			found = found || (a->copies[g] == b->copies[k] && a->sequence[g].stages == b->sequence[k].stages &&
			                  !memcmp(a->sequence[g].submesh, b->sequence[k].submesh, (size_t)a->sequence[g].stages));
		same = found;
	}
	return same;
}

static bool is_among(const struct beam *b, const struct beam_list *l, const char *text)
{
	struct beam_draft d;
	bool found = false;
	draft_from(b, text, &d);
	for (int i = 0; i < l->count; i++)
		found = found || same_drafts(&l->drafts[i], &d);
	return found;
}

static void successors_differ_in_one_step(void **state)
{
	(void)state;
	static const struct {
		const char *what, *from, *to;
	} steps[] = {
		{ "pipelines of half the depth", "2*1111", "4*11" },
		{ "of twice the depth", "4*11", "2*1111" },
		{ "stages distributed among one pipeline less", "4*11", "2*111+1*11" },
		{ "... and one more", "2*111", "3*11" },
		{ "a pipeline that is cut", "1*112", "1*11+1*2" },
		{ "pipelines that are joined", "2*2+2*11", "2*211" },
		{ "half of a stage in another pipeline", "2*12+2*1", "2*11+2*11" },
		{ "part of a run at half the width", "1*2222", "1*221111" },
		{ "... and at twice the width", "1*11111111", "1*221111" },
	};
	for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
		struct scene s;
		struct beam b;
		struct beam_draft base, next;
		scene_new(&s, EIGHT, 32);
		beam_new(&b, &s);
		draft_from(&b, steps[i].from, &base);
		hspmd_beam_expand(&b, &base);
		draft_from(&b, steps[i].to, &next);
		if (hspmd_beam_known(&b, &next)->search != b.search)
			fail_msg("%s: %s does not lead to %s", steps[i].what, steps[i].from, steps[i].to);
		beam_clear(&b);
		scene_free(&s);
	}
}

/* One of eight pipelines would run five micro-batches, as each of seven does; these have a device left over. */
static void beginnings_divide_micro_batches(void **state)
{
	(void)state;
	struct scene s;
	struct beam b;
	struct beam_draft known;
	struct beam_list found = { .drafts = hspmd_calloc(HSPMD_BEAM_ORIGINS_MAX, sizeof *found.drafts) };
	scene_new(&s, EIGHT, 33);
	beam_new(&b, &s);
	draft_from(&b, "1*1", &known);
	struct hspmd_warm_start start = { .sequence = known.sequence[0] };
	const struct hspmd_beginning from = { .starts = &start, .count = 1 };
	found.count = hspmd_beam_origins(&b, &from, HSPMD_BEAM_ORIGINS_ALIKE, found.drafts);
	assert_true(found.count == 1 && is_among(&b, &found, "8*1"));
	found.count = hspmd_beam_origins(&b, &from, HSPMD_BEAM_ORIGINS_COMPLETED, found.drafts);
	assert_true(is_among(&b, &found, "6*1+1*11"));
	free(found.drafts);
	beam_clear(&b);
	scene_free(&s);
}

/* A new scene, and the sequence of one stage on one of its devices. */
static struct hspmd_warm_start scene_of_single_devices(struct scene *s)
{
	struct beam b;
	struct beam_draft known;
	scene_new(s, EIGHT, 33);
	beam_new(&b, s);
	draft_from(&b, "1*1", &known);
	beam_clear(&b);
	return (struct hspmd_warm_start){ .sequence = known.sequence[0] };
}

/* What is searched for until the clock has been read so many times. */
static void search_until(struct scene *s, const struct hspmd_beginning *from, int readings)
{
	s->request.threads = 1; /* several would read it in any order */
	s->search.deadline = 1;
	readings_left = readings;
	assert_int_equal(hspmd_beam_search(&s->search, from, 1), 0);
	readings_left = -1;
}

/* A search that ends in the middle of a beam search has not refined yet what this has found. */
static void what_is_placed_counts_when_time_is_over(void **state)
{
	(void)state;
	bool any = false;
	for (int readings = 0; !any; readings++) {
		struct scene s;
		struct hspmd_warm_start start = scene_of_single_devices(&s);
		const struct hspmd_beginning from = { .starts = &start, .count = 1, .schedules = s.search.caps.schedules };
		assert_int_equal(
		        hspmd_best_plans_offer(&s.search, plan_from(&s, 1, "[" PIPELINE("33", STAGE("0", "14", "n-0:0")) "]"), NULL), 0);
		double before = s.search.best_plans.list[0].objective;
		search_until(&s, &from, readings);
		any = s.search.evaluated > 1;
		assert_true(s.search.timed_out);
		if (any) /* eight devices instead of one */
			assert_true(s.search.best_plans.list[0].objective < before / 2);
		scene_free(&s);
	}
}

/* Drafts that were judged when the search has begun again. */
static int64_t judged_after(struct scene *s, int64_t before)
{
	s->search.judged = before;
	assert_int_equal(hspmd_begin_again(&s->search), 0);
	return s->search.judged;
}

/* The first beginning is that of the search before. */
static void the_search_begins_again_while_there_is_time(void **state)
{
	(void)state;
	struct scene s;
	struct hspmd_warm_start start = scene_of_single_devices(&s);
	const struct hspmd_beginning own = { .starts = &start, .count = 1, .schedules = s.search.caps.schedules };
	searched(&s, "[" PIPELINE("33", STAGE("0", "14", "n-0:0")) "]");
	s.search.beginnings[0] = s.search.beginnings[1] = own;
	s.search.beginning_count = 1;
	assert_int_equal(judged_after(&s, 0), 0);
	s.search.beginning_count = 2;
	assert_true(judged_after(&s, 0) > 0);
	assert_int_equal(judged_after(&s, INT32_MAX), INT32_MAX);
	scene_free(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(borders_move),
		cmocka_unit_test(micro_batches_move),
		cmocka_unit_test(the_optimizer_state_is_divided),
		cmocka_unit_test(the_order_of_passes_changes),
		cmocka_unit_test(micro_batches_become_larger_and_smaller),
		cmocka_unit_test(asked_micro_batches_stay),
		cmocka_unit_test(stages_are_swapped),
		cmocka_unit_test(stages_become_narrower),
		cmocka_unit_test(stages_become_wider),
		cmocka_unit_test(spare_devices_are_used),
		cmocka_unit_test(pipelines_are_added),
		cmocka_unit_test(what_slows_down_is_dropped),
		cmocka_unit_test(micro_batches_are_levelled),
		cmocka_unit_test(successors_differ_in_one_step),
		cmocka_unit_test(beginnings_divide_micro_batches),
		cmocka_unit_test(what_is_placed_counts_when_time_is_over),
		cmocka_unit_test(the_search_begins_again_while_there_is_time),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
