/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of one stage whose operators are divided by a search of their own (HAP, arXiv 2401.05965). The caller gives the search
 * (struct hspmd_program_search); here it is asked what the devices of the best plan, or all devices that are allowed, would take with their
 * best program, for the least number of micro-batches that fits. */
#include "controller/solver/search/program_plans.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "controller/solver/search/search_internal.h"
#include "controller/solver/sim/predict.h"

#define LIMIT_S 10.0    /* of all searches for programs, if the request has no limit */
#define MAX_TRIALS 4    /* numbers of micro-batches */
#define MOST_DEVICES 64 /* of a stage: with more a search takes longer than that */
#define GAIN 0.97       /* a program must be faster by this than a plan whose gradients are summed while it still computes */
#define COPIES_GAIN 0.9 /* the same, if that plan has several copies of the state, of which a lost node leaves some */

static int by_number(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

/* The devices of the plan, in the cluster's order. Returns their number. */
static int devices_of(const struct hspmd_plan *best, int *devices)
{
	int count = 0;
	for (int i = 0; i < best->pipeline_count; i++)
		for (int k = 0; k < best->pipelines[i].stage_count / best->virtual_stages; k++) {
			const struct hspmd_stage *s = &best->pipelines[i].stages[k];
			memcpy(devices + count, s->devices, (size_t)s->device_count * sizeof *devices);
			count += s->device_count;
		}
	qsort(devices, (size_t)count, sizeof *devices, by_number);
	return count;
}

/* A plan of one stage on the devices of `best`. NULL: memory. */
static struct hspmd_plan *one_stage(const struct hspmd_plan *best, int micro_batches)
{
	struct hspmd_plan *p = calloc(1, sizeof *p);
	const struct hspmd_pipeline *first = &best->pipelines[0];
	if (!p)
		return NULL;
	*p = (struct hspmd_plan){ .global_batch = best->global_batch,
		                  .micro_batch = best->global_batch / micro_batches,
		                  .seq_len = best->seq_len,
		                  .virtual_stages = 1,
		                  .synthesis = true };
	p->pipelines = hspmd_calloc(1, sizeof *p->pipelines);
	struct hspmd_stage *stage = p->pipelines ? hspmd_calloc(1, sizeof *stage) : NULL;
	if (stage) {
		p->pipeline_count = 1;
		p->pipelines[0] = (struct hspmd_pipeline){
			.micro_batches = micro_batches, .micro_batch = p->micro_batch, .stage_count = 1, .stages = stage
		};
		stage->layers[1] = first->stages[first->stage_count - 1].layers[1];
		stage->context = 1;
		stage->devices = hspmd_calloc((size_t)hspmd_plan_device_count(best), sizeof *stage->devices);
	}
	if (!stage || !stage->devices) {
		hspmd_plan_destroy(p);
		return NULL;
	}
	stage->device_count = devices_of(best, stage->devices);
	return p;
}

/* The next number of micro-batches after n that divides the batch; 0: none. */
static int next_divisor(int batch, int n)
{
	for (n++; n <= batch; n++)
		if (batch % n == 0)
			return n;
	return 0;
}

/* What a search is about. */
struct question {
	const struct hspmd_cluster *cluster;
	const struct hspmd_model_facts *facts;
	const struct hspmd_solve_request *request;
	double until;
};

/* Predicts the plan, which gets a program if it has none. below_s: of a step; one that takes as long is not wanted (0: any is). Returns 0;
 * 1: none is wanted; -1: there is none. *fits: into memory. */
static int price(const struct question *q, struct hspmd_plan *p, double below_s, bool *fits)
{
	const struct hspmd_solve_request *r = q->request;
	struct hspmd_solve_report report = { 0 };
	struct hspmd_error why;
	const struct hspmd_program_limits limits = { .seconds = fmax(q->until - hspmd_now(), 1e-3), .step_s = below_s }; /* 0: no limit */
	int status = hspmd_evaluate_program(q->cluster, q->facts, r->programs, r->precision, p, &limits, &report, &why);
	*fits = !status && !report.shortage_count;
	hspmd_solve_report_clear(&report);
	return status;
}

/* The plan that runs now, if it has a program and its devices are still there. */
static struct hspmd_plan *current_plan(const struct question *q)
{
	const struct hspmd_solve_request *r = q->request;
	const struct hspmd_cluster *of = r->current_cluster ? r->current_cluster : q->cluster;
	struct hspmd_error why;
	bool fits;
	json_t *json = r->current && r->current->synthesis && r->current->program ? hspmd_plan_to_json(r->current, of) : NULL;
	struct hspmd_plan *p = json ? hspmd_plan_from_json(json, "plan", q->cluster, -1, &why) : NULL;
	json_decref(json);
	if (p && !price(q, p, 0, &fits) && fits)
		return p;
	hspmd_plan_destroy(p);
	return NULL;
}

/* A plan with a new program that is faster than `best`; NULL: there is none. */
static struct hspmd_plan *new_plan(const struct question *q, const struct hspmd_plan *best, double *found_s)
{
	double gain = best->pipeline_count > 1 && !best->zero_stage ? COPIES_GAIN : GAIN;
	int batch = q->request->global_batch, micro_batch = q->request->micro_batch, n = micro_batch ? batch / micro_batch : 1;
	for (int trial = 0; trial < MAX_TRIALS && n && hspmd_now() < q->until; trial++) {
		struct hspmd_plan *p = one_stage(best, n);
		bool fits = false;
		int status = p ? price(q, p, gain * best->predicted.step_s, &fits) : -1;
		*found_s = fits ? p->predicted.step_s : status > 0 ? INFINITY : 0;
		if (fits && p->predicted.step_s < gain * best->predicted.step_s)
			return p;
		hspmd_plan_destroy(p);
		n = !status && !fits && !micro_batch ? next_divisor(batch, n) : 0;
	}
	return NULL;
}

struct hspmd_plan *hspmd_search_program_plan(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                                             const struct hspmd_solve_request *request, const struct hspmd_plan *best, double *found_s)
{
	double limit = request->time_limit_s > 0 ? fmin(request->time_limit_s, LIMIT_S) : LIMIT_S;
	const struct question q = { cluster, facts, request, hspmd_now() + limit };
	int devices = hspmd_plan_device_count(best);
	struct hspmd_plan *kept = current_plan(&q), *fresh = devices > 1 && devices <= MOST_DEVICES ? new_plan(&q, best, found_s) : NULL;
	double least = fresh ? fresh->predicted.step_s : best->predicted.step_s;
	bool keep = kept && kept->predicted.step_s <= least * HSPMD_NEAR_ENOUGH;
	hspmd_plan_destroy(keep ? fresh : kept);
	return keep ? kept : fresh;
}
