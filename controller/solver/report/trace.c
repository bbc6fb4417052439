/* SPDX-License-Identifier: Apache-2.0 */
/* The predicted schedule in Chrome's Trace Event Format, which Perfetto opens; times in microseconds, from the step's beginning. Processes
 * and threads are those of a measured trace (common/format/trace_lanes.h). A stage's devices compute together; flows are drawn between the
 * first devices of two stages.
 *
 * - M: names of processes and threads, and their order
 * - X: complete events, which do not overlap within a thread
 * - s, f: flows from a message to the pass that needs it */
#include "controller/solver/report/explain.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "common/format/trace_lanes.h"
#include "controller/solver/sim/evaluate.h"

#define MICROSECONDS 1e6

struct writer {
	json_t *events;
	const struct hspmd_plan *p;
	const struct hspmd_cluster *cluster;
	int pipeline, ranks; /* current pipeline; number of its ranks */
	long long flows;     /* number of flows written */
};

/* A lane of a device of a stage; interleaved: of the same devices' stages of all chunks. */
static int thread_of(const struct writer *w, int stage, int member, enum hspmd_lane lane)
{
	return hspmd_trace_place_of(w->p, w->cluster, w->pipeline, stage % w->ranks, member).thread + (int)lane;
}

static int members_of(const struct writer *w, int stage)
{
	return w->p->pipelines[w->pipeline].stages[stage % w->ranks].device_count;
}

/* A span on all devices of a stage. */
static int add_span(struct writer *w, int stage, enum hspmd_lane lane, const char *name, const char *category, double start, double end)
{
	int rc = 0;
	for (int d = 0; end > start && !rc && d < members_of(w, stage); d++)
		rc = json_array_append_new(w->events, json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:f}", "ph", "X", "name", name, "cat",
		                                                category, "pid", w->pipeline, "tid", thread_of(w, stage, d, lane), "ts",
		                                                start * MICROSECONDS, "dur", (end - start) * MICROSECONDS));
	return rc;
}

static int add_name(struct writer *w, const char *kind, int thread, const char *text)
{
	return json_array_append_new(w->events, json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "ph", "M", "name", kind, "pid", w->pipeline,
	                                                  "tid", thread, "args", "name", text));
}

static int add_order(struct writer *w, int thread)
{
	return json_array_append_new(w->events, json_pack("{s:s, s:s, s:i, s:i, s:{s:i}}", "ph", "M", "name", "thread_sort_index", "pid",
	                                                  w->pipeline, "tid", thread, "args", "sort_index", thread));
}

/* Add an arrow from within a message to the beginning of a pass. */
static int add_flow(struct writer *w, int from, double sent, int to, double taken)
{
	long long id = w->flows++;
	return json_array_append_new(w->events,
	                             json_pack("{s:s, s:s, s:s, s:I, s:i, s:i, s:f}", "ph", "s", "name", "message", "cat", "communication",
	                                       "id", (json_int_t)id, "pid", w->pipeline, "tid", from, "ts", sent * MICROSECONDS)) ||
	       json_array_append_new(w->events, json_pack("{s:s, s:s, s:s, s:s, s:I, s:i, s:i, s:f}", "ph", "f", "bp", "e", "name",
	                                                  "message", "cat", "communication", "id", (json_int_t)id, "pid", w->pipeline,
	                                                  "tid", to, "ts", taken * MICROSECONDS));
}

/* The pass that a message is for: the next stage's forward pass, or the previous stage's backward pass. */
static const struct hspmd_sim_op *needs(const struct hspmd_sim_op *ops, const struct hspmd_sim_op *message, const int *at,
                                        int micro_batches)
{
	bool back = message->kind == HSPMD_SIM_SEND_BACKWARD;
	int stage = message->stage + (back ? -1 : 1);
	return &ops[at[(2 * stage + back) * micro_batches + message->micro_batch]];
}

static int add_ops(struct writer *w, const struct hspmd_sim_op *ops, int count, int micro_batches, int *at)
{
	static const char *const letter[] = { "F", "B", "activation", "gradient", "W" };
	static const char *const category[] = { "forward", "backward", "communication", "communication", "weights" };
	for (int i = 0; i < count; i++)
		if (ops[i].kind == HSPMD_SIM_FORWARD || ops[i].kind == HSPMD_SIM_BACKWARD)
			at[(2 * ops[i].stage + (ops[i].kind == HSPMD_SIM_BACKWARD)) * micro_batches + ops[i].micro_batch] = i;
	for (int i = 0; i < count; i++) {
		const struct hspmd_sim_op *op = &ops[i];
		bool message = op->kind == HSPMD_SIM_SEND_FORWARD || op->kind == HSPMD_SIM_SEND_BACKWARD;
		enum hspmd_lane lane = message ? HSPMD_LANE_TRANSFERS : HSPMD_LANE_COMPUTE;
		char name[48];
		snprintf(name, sizeof name, w->p->virtual_stages > 1 ? "%s %d, chunk %d" : "%s %d", letter[op->kind], op->micro_batch,
		         op->stage / w->ranks);
		if (add_span(w, op->stage, lane, name, category[op->kind], op->start, op->end))
			return -1;
		const struct hspmd_sim_op *next = message && op->end > op->start ? needs(ops, op, at, micro_batches) : NULL;
		if (next && next->end > next->start &&
		    add_flow(w, thread_of(w, op->stage, 0, lane), op->start, thread_of(w, next->stage, 0, HSPMD_LANE_COMPUTE), next->start))
			return -1;
	}
	return 0;
}

/* Add the names of the threads of stage s, and gradients and optimizer after its passes. */
static int add_stage(struct writer *w, const struct hspmd_timing *t, int s)
{
	struct hspmd_stage_timing all = hspmd_timing_all_chunks(w->p, t, w->pipeline, s);
	double start = 0, end = 0;
	char text[200];
	for (int k = s; k < w->p->pipelines[w->pipeline].stage_count; k += w->ranks) {
		const struct hspmd_stage_timing *x = &t->stages[t->first_stage[w->pipeline] + k];
		start = x->end > start ? x->end : start;
		end = x->sync_end > end ? x->sync_end : end;
	}
	for (int d = 0; d < members_of(w, s); d++) {
		struct hspmd_trace_place at = hspmd_trace_place_of(w->p, w->cluster, w->pipeline, s, d);
		for (enum hspmd_lane lane = 0; lane < HSPMD_LANE_CHANGES; lane++)
			if (add_name(w, "thread_name", at.thread + (int)lane, hspmd_trace_lane_name(&at, lane, text, sizeof text)) ||
			    add_order(w, at.thread + (int)lane))
				return -1;
	}
	return add_span(w, s, HSPMD_LANE_SUMS, "gradients", "synchronisation", start, end) ||
	       add_span(w, s, HSPMD_LANE_COMPUTE, "optimizer", "optimizer", t->sync_end, t->sync_end + all.cost.optimizer);
}

static int add_pipeline(struct writer *w, const struct hspmd_timing *t)
{
	const struct hspmd_pipeline *pipe = &w->p->pipelines[w->pipeline];
	const struct hspmd_stage_timing *st = &t->stages[t->first_stage[w->pipeline]];
	size_t n = (size_t)pipe->stage_count;
	int count = hspmd_sim_op_count(pipe->stage_count, pipe->micro_batches, w->p->schedule), rc = -1;
	struct hspmd_sim_op *ops = hspmd_calloc((size_t)count, sizeof *ops);
	struct hspmd_sim_stage *sim = hspmd_calloc(n, sizeof *sim);
	int *at = hspmd_calloc(2 * n * (size_t)pipe->micro_batches, sizeof *at);
	struct hspmd_pipeline_sim result = { .ops = ops };
	w->ranks = pipe->stage_count / w->p->virtual_stages;
	if (!ops || !sim || !at)
		goto out;
	for (size_t s = 0; s < n; s++)
		sim[s] = hspmd_sim_stage_of(&st[s]);
	if (hspmd_simulate_pipeline(w->p, w->pipeline, sim, &result))
		goto out;
	if (add_name(w, "process_name", 0, hspmd_trace_place_of(w->p, w->cluster, w->pipeline, 0, 0).process_name))
		goto out;
	for (int s = 0; s < w->ranks; s++)
		if (add_stage(w, t, s))
			goto out;
	rc = add_ops(w, ops, count, pipe->micro_batches, at);
out:
	free(at);
	free(ops);
	free(sim);
	return rc;
}

json_t *hspmd_plan_trace(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts, const struct hspmd_profile *profile,
                         enum hspmd_precision precision, const struct hspmd_plan *plan, struct hspmd_error *err)
{
	struct hspmd_costs *c = hspmd_costs_of_plan(cluster, facts, profile, precision, plan, err);
	struct writer w = { .events = json_array(), .p = plan, .cluster = cluster };
	struct hspmd_timing t = { 0 };
	json_t *root = NULL;
	if (!c || hspmd_timing_compute(c, plan, &t, err))
		goto out;
	int rc = w.events ? 0 : -1;
	for (; !rc && w.pipeline < plan->pipeline_count; w.pipeline++)
		rc = add_pipeline(&w, &t);
	if (!rc)
		root = json_pack("{s:s, s:O}", "displayTimeUnit", "ms", "traceEvents", w.events);
	if (!root)
		hspmd_fail_memory(err, "writing the trace");
out:
	json_decref(w.events);
	hspmd_timing_clear(&t);
	hspmd_costs_destroy(c);
	return root;
}
