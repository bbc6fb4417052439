/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/solver/search/length_plans.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/recompute_sets.h"
#include "controller/solver/cost/costs.h"
#include "controller/solver/search/search_plan.h"
#include "controller/solver/sim/predict.h"

#define WORTH 0.01      /* of the expected step time: what a further plan must save */
#define MERGE_MOST 4096 /* micro-batches that become one */

/* A plan for steps up to the length with its number. */
struct candidate {
	struct hspmd_plan *plan; /* NULL: none was found */
	bool at_home;            /* parameters and gradients are where the state is */
	bool alone;              /* it runs all steps, and has a state of its own */
	double *step_s;          /* at each length up to its own */
};

struct lengths {
	const struct hspmd_cluster *cluster;
	const struct hspmd_solve_request *request;
	const struct hspmd_step_share *shares;
	int count;
	const struct hspmd_plan *home;
	double *state_bytes;          /* per device of the cluster: what the home's state takes; -1: the home does not have the device */
	struct candidate *candidates; /* by length; the last is the home itself */
};

/* ---- evaluating */

/* Like the plan with another length, as the cost model sees it: without its shorter plans, and with `zero`. NULL: memory. */
static struct hspmd_plan *variant(const struct hspmd_plan *plan, int seq_len, int zero)
{
	struct hspmd_plan *v = hspmd_plan_copy(plan);
	if (!v)
		return NULL;
	hspmd_plan_drop_shorter(v);
	v->seq_len = seq_len;
	v->zero_stage = zero;
	return v;
}

static int zero_of(const struct lengths *w, const struct candidate *c)
{
	if (c->alone)
		return w->request->caps && w->request->caps->max_zero_stage < 1 ? 0 : 1;
	if (!c->at_home)
		return 1;
	return c->plan == w->home ? w->home->zero_stage : w->home->zero_stage > 0;
}

/* The plan predicted at length number `at`. The caller destroys it. NULL: it cannot be. */
static struct hspmd_plan *predict_at(const struct lengths *w, const struct candidate *c, int at)
{
	struct hspmd_error why;
	struct hspmd_plan *v = variant(c->plan, w->shares[at].seq_len, zero_of(w, c));
	if (v && !hspmd_evaluate(w->cluster, w->shares[at].facts, NULL, w->request->precision, v, NULL, &why))
		return v;
	hspmd_plan_destroy(v);
	return NULL;
}

/* Seconds of a step of length number `at`; INFINITY: it cannot be predicted, or does not fit, beside the home's state. */
static double step_s(const struct lengths *w, const struct candidate *c, int at)
{
	struct hspmd_plan *v = predict_at(w, c, at);
	double s = v ? v->predicted.step_s : INFINITY;
	for (int d = 0; v && d < v->predicted.device_count; d++) {
		int device = v->predicted.devices[d];
		double more = c->at_home || c->alone ? 0 : w->state_bytes[device];
		if (more < 0 ||
		    v->predicted.memory_bytes[d] + more > (double)w->cluster->types[w->cluster->devices[device].type].memory_bytes)
			s = INFINITY;
	}
	hspmd_plan_destroy(v);
	return s;
}

/* Expected seconds of a step if the candidate runs all. */
static double alone_s(const struct lengths *w, const struct candidate *c)
{
	const struct candidate alone = { .plan = c->plan, .alone = true };
	double s = c->plan ? 0 : INFINITY;
	for (int i = 0; c->plan && i < w->count; i++)
		s += w->shares[i].share * step_s(w, &alone, i);
	return s;
}

/* ---- the home's state */

static int measure_state(struct lengths *w, struct hspmd_error *err)
{
	const struct hspmd_plan *p = w->home;
	struct hspmd_costs *c = hspmd_costs_of_plan(w->cluster, w->shares[w->count - 1].facts, NULL, w->request->precision, p, err);
	double per_weight = c ? (c->master_bytes + c->param_bytes + c->moment_bytes + c->grad_bytes) : 0,
	       optimizer = c ? c->master_bytes + c->moment_bytes : 0;
	w->state_bytes = c ? hspmd_calloc((size_t)w->cluster->device_count, sizeof *w->state_bytes) : NULL;
	if (c && !w->state_bytes)
		hspmd_fail_memory(err, "planning for shorter steps");
	for (int d = 0; w->state_bytes && d < w->cluster->device_count; d++)
		w->state_bytes[d] = -1;
	for (int i = 0; w->state_bytes && i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++) {
			const struct hspmd_stage *stage = &p->pipelines[i].stages[s];
			const struct hspmd_layer_copies copies = hspmd_costs_copies(c, p, i, s);
			for (int d = 0; d < stage->device_count; d++) {
				double *bytes = &w->state_bytes[stage->devices[d]];
				const struct hspmd_device_type *type = &w->cluster->types[w->cluster->devices[stage->devices[d]].type];
				double params = hspmd_device_params(c, stage->layers[0], stage->layers[1], hspmd_stage_share(stage, d));
				double each =
				        (per_weight - (copies.offload ? optimizer : 0)) * (!p->zero_stage    ? 1
				                                                           : copies.part > 0 ? copies.part
				                                                                             : 1.0 / p->pipeline_count) +
				        hspmd_image_bytes(c, type, &copies);
				*bytes = fmax(*bytes, 0) + params * each;
			}
		}
	hspmd_costs_destroy(c);
	return w->state_bytes ? 0 : -1;
}

/* The cluster, with as much less memory as the state takes at most on a device of the type. The caller destroys it. NULL: memory. */
static struct hspmd_cluster *beside_state(const struct lengths *w)
{
	json_t *json = hspmd_cluster_to_json(w->cluster);
	struct hspmd_cluster *c = json ? hspmd_cluster_from_json(json, "the cluster beside the state", NULL) : NULL;
	for (int t = 0; c && t < c->type_count; t++) {
		double most = 0;
		for (int d = 0; d < w->cluster->device_count; d++)
			if (w->cluster->devices[d].type == t)
				most = fmax(most, w->state_bytes[d]);
		c->types[t].memory_bytes = (int64_t)fmax(1, (double)c->types[t].memory_bytes - most);
	}
	json_decref(json);
	return c;
}

/* ---- candidates */

/* Keeps the faster of two candidates for length number `at`. Takes the plan over. */
static void offer(struct lengths *w, int at, struct hspmd_plan *plan, bool at_home)
{
	struct candidate *c = &w->candidates[at], other = { .plan = plan, .at_home = at_home, .step_s = c->step_s };
	double s = plan ? step_s(w, &other, at) : INFINITY;
	if (!(s < c->step_s[at])) {
		hspmd_plan_destroy(plan);
		return;
	}
	hspmd_plan_destroy(c->plan);
	*c = other;
	c->step_s[at] = s;
}

/* The home with every `merge` micro-batches in one, at most this recomputation, and its activations offloaded as they are or not at all.
 * NULL: not possible, or memory. */
static struct hspmd_plan *larger_micro_batches(const struct lengths *w, int at, int merge, enum hspmd_recompute most, bool offload)
{
	struct hspmd_plan *v = variant(w->home, w->shares[at].seq_len, 0);
	bool possible = v && (merge == 1 || v->virtual_stages == 1);
	for (int i = 0; possible && i < v->pipeline_count; i++) {
		struct hspmd_pipeline *pipe = &v->pipelines[i];
		possible = pipe->micro_batches % merge == 0;
		pipe->micro_batches /= merge;
		pipe->micro_batch *= merge;
		for (int s = 0; s < pipe->stage_count; s++) {
			pipe->stages[s].recompute = pipe->stages[s].recompute < most ? pipe->stages[s].recompute : most;
			pipe->stages[s].offload_activations = offload ? pipe->stages[s].offload_activations : 0;
		}
	}
	if (possible) {
		v->micro_batch *= merge;
		return v;
	}
	hspmd_plan_destroy(v);
	return NULL;
}

static void offer_home(struct lengths *w, int at)
{
	for (int merge = 1; merge <= MERGE_MOST; merge *= 2)
		for (int r = HSPMD_RECOMPUTE_NONE; r <= HSPMD_RECOMPUTE_FULL; r++)
			for (int offload = 0; offload <= hspmd_plan_uses_host(w->home); offload++)
				if (hspmd_recompute_kinds(w->home->recompute_sets) & 1u << r)
					offer(w, at, larger_micro_batches(w, at, merge, (enum hspmd_recompute)r, offload), true);
}

static void offer_search(struct lengths *w, const struct hspmd_cluster *beside, int at)
{
	struct hspmd_solve_request r = hspmd_request_of_length(w->request, w->shares[at].seq_len);
	struct hspmd_runtime_caps caps = r.caps ? *r.caps : hspmd_runtime_caps_default();
	struct hspmd_error why;
	caps.max_zero_stage = 1; /* the state is divided elsewhere */
	caps.offload = false;
	r.caps = &caps;
	r.time_limit_s = r.time_limit_s / w->count;
	offer(w, at, hspmd_search_plan(beside, w->shares[at].facts, NULL, &r, NULL, NULL, &why), false);
}

static int make_candidates(struct lengths *w, struct hspmd_error *err)
{
	int longest = w->count - 1;
	struct hspmd_cluster *beside = beside_state(w);
	w->candidates = beside ? hspmd_calloc((size_t)w->count, sizeof *w->candidates) : NULL;
	int status = w->candidates ? 0 : -1;
	for (int j = 0; !status && j < w->count; j++) {
		struct candidate *c = &w->candidates[j];
		status = (c->step_s = hspmd_calloc((size_t)w->count, sizeof *c->step_s)) ? 0 : -1;
		for (int i = 0; !status && i < w->count; i++)
			c->step_s[i] = INFINITY;
		if (!status && j < longest) {
			offer_home(w, j);
			offer_search(w, beside, j);
		} else if (!status) {
			c->plan = (struct hspmd_plan *)w->home;
			c->at_home = true;
		}
		for (int i = 0; !status && c->plan && i <= j; i++)
			c->step_s[i] = step_s(w, c, i);
	}
	hspmd_cluster_destroy(beside);
	if (status)
		return hspmd_fail_memory(err, "planning for shorter steps");
	return isfinite(w->candidates[longest].step_s[longest]) ? 0 : hspmd_fail(err, "the plan for the longest steps cannot be predicted");
}

/* ---- choosing */

/* Expected seconds of the steps longer than number `below` and up to number j, by the candidate of j. */
static double served_s(const struct lengths *w, int below, int j)
{
	double s = 0;
	for (int i = below + 1; i <= j; i++)
		s += w->shares[i].share * w->candidates[j].step_s[i];
	return s;
}

/* Sets runs[i]: which candidate serves length i. By dynamic programming over the lengths: a candidate serves its own and all shorter ones
 * down to that of the next candidate. 0, or -1: memory. */
static int choose(const struct lengths *w, double without_s, int *runs)
{
	double *best = hspmd_calloc((size_t)w->count, sizeof *best); /* of all lengths up to j, if j has a plan of its own */
	int *before = hspmd_calloc((size_t)w->count, sizeof *before);
	for (int j = 0; best && before && j < w->count; j++) {
		best[j] = served_s(w, -1, j);
		before[j] = -1;
		for (int i = 0; i < j; i++) {
			double s = best[i] + served_s(w, i, j) + WORTH * without_s;
			if (s < best[j]) {
				best[j] = s;
				before[j] = i;
			}
		}
	}
	for (int j = w->count - 1; best && before && j >= 0; j = before[j])
		for (int i = j; i > before[j]; i--)
			runs[i] = j;
	int status = best && before ? 0 : -1;
	free(best);
	free(before);
	return status;
}

/* Adds the plan of candidate j to the shorter plans. -1: memory. */
static int attach(const struct lengths *w, int j, struct hspmd_plan *plan)
{
	struct hspmd_plan *v = predict_at(w, &w->candidates[j], j);
	if (!v)
		return -1;
	v->zero_stage = 0;
	for (int i = 0; i < v->pipeline_count; i++)
		for (int s = 0; s < v->pipelines[i].stage_count; s++)
			v->pipelines[i].stages[s].offload = HSPMD_OFFLOAD_NONE;
	for (int d = 0; d < v->predicted.device_count && !w->candidates[j].at_home; d++)
		v->predicted.memory_bytes[d] += w->state_bytes[v->predicted.devices[d]];
	plan->shorter[plan->shorter_count++] = v;
	return 0;
}

static int finish(const struct lengths *w, const int *runs, struct hspmd_plan *plan, struct hspmd_length_report *report)
{
	const struct candidate *home = &w->candidates[w->count - 1];
	plan->shorter = hspmd_calloc((size_t)w->count, sizeof(*plan->shorter));
	report->uses = hspmd_calloc((size_t)w->count, sizeof *report->uses);
	if (!plan->shorter || !report->uses)
		return -1;
	report->count = w->count;
	for (int i = 0; i < w->count; i++) {
		if (runs[i] == i && i < w->count - 1 && attach(w, i, plan))
			return -1;
		report->uses[i] = (struct hspmd_length_use){ .seq_len = w->shares[i].seq_len,
			                                     .share = w->shares[i].share,
			                                     .step_s = w->candidates[runs[i]].step_s[i],
			                                     .without_s = home->step_s[i] };
		report->set_s += report->uses[i].share * report->uses[i].step_s;
		report->without_s += report->uses[i].share * report->uses[i].without_s;
	}
	for (int i = 0; i < w->count; i++)
		report->uses[i].which = hspmd_plan_for_length(plan, report->uses[i].seq_len);
	report->single_s = report->without_s;
	for (int j = 0; j < w->count - 1; j++)
		report->single_s = fmin(report->single_s, alone_s(w, &w->candidates[j]));
	return 0;
}

void hspmd_length_report_clear(struct hspmd_length_report *r)
{
	free(r->uses);
	*r = (struct hspmd_length_report){ 0 };
}

static void clear(struct lengths *w)
{
	for (int j = 0; w->candidates && j < w->count; j++) {
		free(w->candidates[j].step_s);
		if (j < w->count - 1)
			hspmd_plan_destroy(w->candidates[j].plan);
	}
	free(w->candidates);
	free(w->state_bytes);
	w->candidates = NULL;
	w->state_bytes = NULL;
}

/* A candidate that alone is expected to be faster than the home alone, with the longest steps; NULL: none is. The caller destroys it. */
static struct hspmd_plan *better_home(const struct lengths *w)
{
	int best = -1;
	double least = (1 - WORTH) * served_s(w, -1, w->count - 1);
	for (int j = 0; j < w->count - 1; j++) {
		double s = alone_s(w, &w->candidates[j]);
		if (s < least) {
			least = s;
			best = j;
		}
	}
	const struct candidate alone = { .plan = best < 0 ? NULL : w->candidates[best].plan, .alone = true };
	return best < 0 ? NULL : predict_at(w, &alone, w->count - 1);
}

/* shares add up to 1. again: another plan may take the place of *plan. */
static int search(struct lengths *w, bool again, struct hspmd_plan **plan, struct hspmd_length_report *report, struct hspmd_error *err)
{
	int *runs = hspmd_calloc((size_t)w->count, sizeof *runs);
	int status = runs ? 0 : hspmd_fail_memory(err, "planning for shorter steps");
	w->home = *plan;
	if (!status && (measure_state(w, err) || make_candidates(w, err)))
		status = -1;
	struct hspmd_plan *better = !status && again ? better_home(w) : NULL;
	if (!status && !better && (choose(w, served_s(w, -1, w->count - 1), runs) || finish(w, runs, *plan, report)))
		status = hspmd_fail_memory(err, "planning for shorter steps");
	clear(w);
	free(runs);
	if (!better)
		return status;
	hspmd_plan_destroy(*plan);
	*plan = better;
	return search(w, false, plan, report, err);
}

int hspmd_search_shorter_plans(const struct hspmd_cluster *cluster, const struct hspmd_solve_request *request,
                               const struct hspmd_step_share *shares, int count, struct hspmd_plan **plan,
                               struct hspmd_length_report *report, struct hspmd_error *err)
{
	*report = (struct hspmd_length_report){ 0 };
	hspmd_plan_drop_shorter(*plan);
	if ((*plan)->synthesis || count < 2)
		return 0;
	struct hspmd_step_share *of_one = hspmd_calloc((size_t)count, sizeof *of_one);
	if (!of_one)
		return hspmd_fail_memory(err, "planning for shorter steps");
	double all = 0;
	for (int i = 0; i < count; i++)
		all += shares[i].share;
	for (int i = 0; i < count; i++) {
		of_one[i] = shares[i];
		of_one[i].share = all > 0 ? shares[i].share / all : 1.0 / count;
	}
	struct lengths w = { .cluster = cluster, .request = request, .shares = of_one, .count = count };
	int status = search(&w, true, plan, report, err);
	free(of_one);
	return status;
}
