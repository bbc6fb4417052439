/* SPDX-License-Identifier: Apache-2.0 */
/* The predicted schedule in Chrome's Trace Event Format ("X" complete events, "M" names; times in microseconds), which Perfetto opens. One process a
 * pipeline, one thread a stage. */
#include <stdlib.h>

#include "common/alloc.h"
#include "controller/solver/evaluate.h"
#include "controller/solver/solver.h"

#define MICROSECONDS 1e6

static int add(json_t *events, json_t *event)
{
	return json_array_append_new(events, event);
}

static int add_span(json_t *events, int pipeline, int stage, const char *name, const char *category, double start, double end)
{
	if (end <= start)
		return 0;
	return add(events, json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:f}", "ph", "X", "name", name, "cat", category, "pid", pipeline, "tid", stage,
				     "ts", start * MICROSECONDS, "dur", (end - start) * MICROSECONDS));
}

static int add_name(json_t *events, const char *kind, int pipeline, int stage, const char *text)
{
	return add(events, json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "ph", "M", "name", kind, "pid", pipeline, "tid", stage, "args", "name", text));
}

static int add_ops(json_t *events, int pipeline, const struct hspmd_sim_op *ops, int count)
{
	static const char *const letter[] = { "F", "B", "send", "send", "W" };
	static const char *const category[] = { "forward", "backward", "communication", "communication", "backward" };
	for (int i = 0; i < count; i++) {
		char name[32];
		snprintf(name, sizeof name, "%s %d", letter[ops[i].kind], ops[i].micro_batch);
		if (add_span(events, pipeline, ops[i].stage, name, category[ops[i].kind], ops[i].start, ops[i].end))
			return -1;
	}
	return 0;
}

static int add_pipeline(json_t *events, const struct hspmd_cluster *c, const struct hspmd_plan *p, int pipeline, const struct hspmd_timing *t)
{
	const struct hspmd_pipeline *pipe = &p->pipelines[pipeline];
	const struct hspmd_stage_timing *st = &t->stages[t->first_stage[pipeline]];
	size_t n = (size_t)pipe->stage_count;
	int count = hspmd_sim_op_count(pipe->stage_count, pipe->micro_batches, p->schedule);
	struct hspmd_sim_op *ops = hspmd_calloc((size_t)count, sizeof *ops);
	struct hspmd_sim_stage *sim = hspmd_calloc(n, sizeof *sim);
	struct hspmd_sim_result result = { .ops = ops };
	int rc = -1;
	char text[512], at[256];
	if (!ops || !sim)
		goto out;
	for (size_t s = 0; s < n; s++)
		sim[s] = hspmd_sim_stage_of(&st[s]);
	if (hspmd_simulate_pipeline(p, pipeline, sim, &result))
		goto out;
	snprintf(text, sizeof text, "pipeline %d: %d micro-batches of %d", pipeline, pipe->micro_batches, pipe->micro_batch);
	if (add_name(events, "process_name", pipeline, 0, text))
		goto out;
	for (int s = 0; s < pipe->stage_count; s++) {
		const struct hspmd_stage *stage = &pipe->stages[s];
		snprintf(text, sizeof text, "stage %d: layers %d-%d on %d from %s", s, stage->layers[0], stage->layers[1] - 1, stage->device_count,
			 hspmd_cluster_address(c, stage->devices[0], at, sizeof at));
		if (add_name(events, "thread_name", pipeline, s, text) ||
		    add_span(events, pipeline, s, "gradients", "synchronisation", st[s].sync_start, st[s].sync_end) ||
		    add_span(events, pipeline, s, "optimizer", "optimizer", t->sync_end, t->sync_end + st[s].cost.optimizer))
			goto out;
	}
	rc = add_ops(events, pipeline, ops, count);
out:
	free(ops);
	free(sim);
	return rc;
}

json_t *hspmd_plan_trace(const struct hspmd_cluster *cluster, const struct hspmd_model *model, const struct hspmd_profile *profile,
			 enum hspmd_precision precision, const struct hspmd_plan *plan, struct hspmd_error *err)
{
	struct hspmd_costs *c = hspmd_costs_new(cluster, model, profile, precision, plan->seq_len, err);
	json_t *events = json_array(), *root = NULL;
	struct hspmd_timing t = { 0 };
	if (!c || hspmd_timing_of(c, plan, &t, err))
		goto out;
	int rc = events ? 0 : -1;
	for (int i = 0; !rc && i < plan->pipeline_count; i++)
		rc = add_pipeline(events, cluster, plan, i, &t);
	if (!rc)
		root = json_pack("{s:s, s:O}", "displayTimeUnit", "ms", "traceEvents", events);
	if (!root)
		hspmd_fail_memory(err, "writing the trace");
out:
	json_decref(events);
	hspmd_timing_clear(&t);
	hspmd_costs_destroy(c);
	return root;
}
