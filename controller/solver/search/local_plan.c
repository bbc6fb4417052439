/* SPDX-License-Identifier: Apache-2.0 */
/* The plan that a local search refines: which of its pipelines are equal, whether it fits, and what its step takes. */
#include <math.h>

#include "controller/solver/search/local_search_internal.h"

#define EPSILON 1e-9 /* least relative gain that counts */

int hspmd_stage_count(const struct hspmd_plan *p)
{
	int stages = 0;
	for (int i = 0; i < p->pipeline_count; i++)
		stages += p->pipelines[i].stage_count;
	return stages;
}

bool hspmd_pipelines_alike(const struct hspmd_search *s, const struct hspmd_pipeline *a, const struct hspmd_pipeline *b)
{
	if (a->stage_count != b->stage_count || a->micro_batch != b->micro_batch)
		return false;
	for (int i = 0; i < a->stage_count; i++) {
		const struct hspmd_stage *x = &a->stages[i], *y = &b->stages[i];
		if (x->layers[1] != y->layers[1] || x->device_count != y->device_count || x->shard_ratio || y->shard_ratio ||
		    x->offload != y->offload || x->offload_activations != y->offload_activations ||
		    x->sequence_parallel != y->sequence_parallel)
			return false;
		for (int d = 0; d < x->device_count; d++)
			if (s->device_classes->class_of_device[x->devices[d]] != s->device_classes->class_of_device[y->devices[d]])
				return false;
	}
	return true;
}

void hspmd_local_find_groups(struct local_search *r)
{
	for (int i = 0; i < r->p->pipeline_count; i++) {
		r->group[i] = i;
		for (int k = 0; k < i && r->group[i] == i; k++)
			if (r->group[k] == k && hspmd_pipelines_alike(r->s, &r->p->pipelines[k], &r->p->pipelines[i]))
				r->group[i] = k;
	}
}

double hspmd_local_time_fitting(struct local_search *r, double below)
{
	struct hspmd_timing t;
	int status = hspmd_timing_compute_below(r->s->costs, r->p, r->s->known, below, &t, NULL);
	if (status < 0)
		return INFINITY;
	r->s->evaluated++;
	for (int i = 0; i < r->p->pipeline_count; i++)
		r->budget -= r->p->pipelines[i].stage_count;
	if (status)
		return INFINITY;
	for (int i = 0; i < r->p->pipeline_count; i++)
		r->ends[i] = t.stages[t.first_stage[i]].end;
	double seconds = t.step_s;
	hspmd_timing_clear(&t);
	return seconds;
}

double hspmd_local_time_below(struct local_search *r, double below)
{
	return hspmd_plan_fits(r->s->costs, r->p) ? hspmd_local_time_fitting(r, below) : INFINITY;
}

bool hspmd_local_better(const struct local_search *r, double seconds)
{
	return seconds < r->seconds * (1 - EPSILON);
}

bool hspmd_local_go_on(struct local_search *r)
{
	return r->budget > 0 && !hspmd_search_is_over(r->s);
}

bool hspmd_local_fits_as(const struct local_search *r, int i, int k)
{
	return r->group[i] == r->group[k] && !r->p->has_zero_shares && r->p->pipelines[i].micro_batches == r->p->pipelines[k].micro_batches;
}
