/* SPDX-License-Identifier: Apache-2.0 */
/* The predicted schedule as a trace: every event is of a kind that the Trace Event Format defines, with all keys that it requires;
 * nothing overlaps within a thread; all threads and processes have names; every flow has both ends, each within an event; every pass
 * occurs once, and the last event ends with the step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/solver_inputs.h"

#define LAYERS 10
#define CLOSE 1e-3 /* microseconds */

static const struct {
	const char *schedule, *stages;
	int chunks;
} plans[] = {
	{ "\"1f1b\"", "{\"layers\":[0,4],\"devices\":[\"n:%d\"]},{\"layers\":[4,10],\"devices\":[\"n:%d\"]}", 1 },
	{ "\"gpipe\"", "{\"layers\":[0,4],\"devices\":[\"n:%d\"]},{\"layers\":[4,10],\"devices\":[\"n:%d\"]}", 1 },
	{ "\"zb-h1\",\"zero_stage\":1", "{\"layers\":[0,6],\"devices\":[\"n:%d\"]},{\"layers\":[6,10],\"devices\":[\"n:%d\"]}", 1 },
	{ "\"interleaved\",\"virtual_stages\":2",
	  "{\"layers\":[0,2],\"devices\":[\"n:%1$d\"]},{\"layers\":[2,5],\"devices\":[\"n:%2$d\"]},"
	  "{\"layers\":[5,7],\"devices\":[\"n:%1$d\"]},{\"layers\":[7,10],\"devices\":[\"n:%2$d\"]}",
	  2 },
};

struct span {
	int pid, tid;
	double start, end;
};

static int by_place(const void *a, const void *b)
{
	const struct span *x = a, *y = b;
	if (x->pid != y->pid || x->tid != y->tid)
		return x->pid != y->pid ? x->pid - y->pid : x->tid - y->tid;
	return (x->start > y->start) - (x->start < y->start);
}

static const char *word(const json_t *event, const char *key)
{
	const char *w = json_string_value(json_object_get(event, key));
	assert_non_null(w);
	assert_true(*w);
	return w;
}

static int whole(const json_t *event, const char *key)
{
	assert_true(json_is_integer(json_object_get(event, key)));
	assert_true(json_integer_value(json_object_get(event, key)) >= 0);
	return (int)json_integer_value(json_object_get(event, key));
}

static double number(const json_t *event, const char *key)
{
	assert_true(json_is_number(json_object_get(event, key)));
	double x = json_number_value(json_object_get(event, key));
	assert_true(isfinite(x) && x >= 0);
	return x;
}

static struct span span_of(const json_t *event)
{
	double start = number(event, "ts"), length = number(event, "dur");
	assert_true(length > 0);
	return (struct span){ whole(event, "pid"), whole(event, "tid"), start, start + length };
}

static bool is(const json_t *event, const char *phase)
{
	return !strcmp(word(event, "ph"), phase);
}

static bool has_name(const json_t *events, const char *kind, int pid, int tid)
{
	size_t i;
	json_t *e;
	json_array_foreach(events, i, e)
		if (is(e, "M") && !strcmp(word(e, "name"), kind) && whole(e, "pid") == pid && (tid < 0 || whole(e, "tid") == tid))
			return json_string_value(json_object_get(json_object_get(e, "args"), "name")) != NULL;
	return false;
}

static void check_names(const json_t *e)
{
	static const char *const known[] = { "process_name", "thread_name", "thread_sort_index" };
	bool any = false;
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		any = any || !strcmp(word(e, "name"), known[i]);
	assert_true(any);
	whole(e, "pid");
	whole(e, "tid");
	assert_true(json_is_object(json_object_get(e, "args")));
}

/* Returns true if the thread of this end of a flow has an event at its time. */
static bool is_within(const json_t *events, const json_t *end)
{
	size_t i;
	json_t *e;
	json_array_foreach(events, i, e) {
		if (!is(e, "X"))
			continue;
		struct span x = span_of(e);
		if (x.pid == whole(end, "pid") && x.tid == whole(end, "tid") && x.start <= number(end, "ts") + CLOSE &&
		    number(end, "ts") < x.end)
			return true;
	}
	return false;
}

/* Fail unless every flow begins once and ends once, later. Returns the number of flows. */
static int check_flows(const json_t *events)
{
	size_t i, k;
	json_t *from, *to;
	int flows = 0, ends = 0;
	json_array_foreach(events, i, from) {
		int taken = 0;
		ends += is(from, "f");
		if (!is(from, "s"))
			continue;
		flows++;
		json_array_foreach(events, k, to) {
			if (i == k || (!is(to, "s") && !is(to, "f")) || whole(to, "id") != whole(from, "id"))
				continue;
			taken++;
			assert_true(is(to, "f"));
			assert_string_equal(word(to, "bp"), "e");
			assert_string_equal(word(to, "name"), word(from, "name"));
			assert_string_equal(word(to, "cat"), word(from, "cat"));
			assert_true(number(to, "ts") >= number(from, "ts"));
			assert_true(is_within(events, to));
		}
		assert_int_equal(taken, 1);
		assert_true(is_within(events, from));
	}
	assert_int_equal(flows, ends);
	return flows;
}

/* Fail if two events overlap on one thread. Returns the end of the last event. */
static double check_threads(const json_t *events, struct span *spans, int count)
{
	double last = 0;
	qsort(spans, (size_t)count, sizeof *spans, by_place);
	for (int i = 0; i < count; i++) {
		last = fmax(last, spans[i].end);
		if (i > 0 && spans[i].pid == spans[i - 1].pid && spans[i].tid == spans[i - 1].tid)
			assert_true(spans[i].start >= spans[i - 1].end - CLOSE);
		assert_true(has_name(events, "process_name", spans[i].pid, -1));
		assert_true(has_name(events, "thread_name", spans[i].pid, spans[i].tid));
	}
	return last;
}

static void check_trace(const json_t *trace, const struct hspmd_plan *p, int chunks)
{
	const json_t *events = json_object_get(trace, "traceEvents");
	assert_true(json_is_array(events));
	struct span *spans = calloc(json_array_size(events), sizeof *spans);
	int count = 0, forward = 0, backward = 0, weights = 0, messages = 0, passes = 0;
	size_t i;
	json_t *e;
	assert_non_null(spans);
	json_array_foreach(events, i, e) {
		if (is(e, "M")) {
			check_names(e);
			continue;
		}
		assert_true(is(e, "X") || is(e, "s") || is(e, "f"));
		const char *category = word(e, "cat");
		word(e, "name");
		number(e, "ts");
		if (!is(e, "X"))
			continue;
		spans[count++] = span_of(e);
		forward += !strcmp(category, "forward");
		backward += !strcmp(category, "backward");
		weights += !strcmp(category, "weights");
		messages += !strcmp(category, "communication");
	}
	for (int k = 0; k < p->pipeline_count; k++)
		passes += p->pipelines[k].micro_batches * 2 * chunks;
	assert_int_equal(forward, passes);
	assert_int_equal(backward, passes);
	assert_int_equal(weights, p->schedule == HSPMD_SCHEDULE_ZB_H1 ? passes : 0);
	/* One message in each direction across each boundary. */
	assert_int_equal(messages, 2 * (passes - passes / (2 * chunks)));
	assert_int_equal(check_flows(events), messages);
	assert_true(fabs(check_threads(events, spans, count) - 1e6 * p->predicted.step_s) < 1e-6 * 1e6 * p->predicted.step_s);
	free(spans);
}

static void traces_are_well_formed(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct hspmd_cluster *c =
	        cluster_from("{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"cpu\":{\"kind\":\"cpu\",\"memory_bytes\":68719476736,"
	                     "\"gbytes_per_s\":20,\"peak_tflops\":{\"fp32\":0.1}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":"
	                     "\"cpu\",\"count\":4}]}],\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-5,\"gbytes_per_s\":1}]}");
	struct hspmd_model_facts *m = small_gpt2(LAYERS - 2, 128);
	for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
		char stages[2][512], text[2048];
		for (int k = 0; k < 2; k++)
			snprintf(stages[k], sizeof stages[k], plans[i].stages, 2 * k, 2 * k + 1);
		snprintf(
		        text, sizeof text,
		        "{\"format\":\"hspmd-plan-1\",\"global_batch\":16,\"micro_batch\":2,\"seq_len\":128,\"schedule\":%s,\"pipelines\":["
		        "{\"micro_batches\":5,\"stages\":[%s]},{\"micro_batches\":3,\"stages\":[%s]}]}",
		        plans[i].schedule, stages[0], stages[1]);
		json_t *value = json_loads(text, 0, NULL);
		assert_non_null(value);
		struct hspmd_plan *p = hspmd_plan_from_json(value, "plan", c, LAYERS, &err);
		json_decref(value);
		if (!p || hspmd_evaluate(c, m, NULL, HSPMD_PRECISION_FP32, p, NULL, &err))
			fail_msg("%s", err.text);
		json_t *trace = hspmd_plan_trace(c, m, NULL, HSPMD_PRECISION_FP32, p, &err);
		assert_non_null(trace);
		check_trace(trace, p, plans[i].chunks);
		json_decref(trace);
		hspmd_plan_destroy(p);
	}
	hspmd_model_facts_destroy(m);
	hspmd_cluster_destroy(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(traces_are_well_formed) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
