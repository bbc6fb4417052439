/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/solver/search/estimate.h"

#include <math.h>

int hspmd_estimate_capacity(const struct hspmd_pipeline_partition *x, double seconds)
{
	if (seconds < x->fill_drain_s)
		return 0;
	double parts = 1 + floor((seconds - x->fill_drain_s) / x->period_s + 1e-9);
	return parts < x->max_micro_batches ? (int)parts : x->max_micro_batches;
}

double hspmd_estimate_passes(const struct hspmd_pipeline_mix *m, int total)
{
	double rate = 0, ahead = 0, longest = 0;
	long long pipelines = 0, most = 0;
	for (int i = 0; i < m->count; i++) {
		const struct hspmd_pipeline_partition *x = m->partition[i];
		rate += m->copies[i] / x->period_s;
		ahead += m->copies[i] * (x->fill_drain_s / x->period_s - 1);
		longest = fmax(longest, x->fill_drain_s);
		pipelines += m->copies[i];
		most += (long long)m->copies[i] * x->max_micro_batches;
	}
	if (pipelines > total || most < total)
		return INFINITY;
	double seconds = fmax(longest, (total + ahead) / rate);
	for (int i = 0; i < 4; i++) {
		/* Micro-batches are whole: the least time in which enough of them are run. */
		long long done = 0;
		double next = INFINITY;
		for (int g = 0; g < m->count; g++) {
			const struct hspmd_pipeline_partition *x = m->partition[g];
			int parts = hspmd_estimate_capacity(x, seconds);
			done += (long long)m->copies[g] * parts;
			if (parts < x->max_micro_batches)
				next = fmin(next, x->fill_drain_s + parts * x->period_s);
		}
		if (done >= total)
			break;
		seconds = next;
	}
	return seconds;
}

/* Bytes per second between nodes, or within the node if there is only one, of the slowest device class that is used; 0: nodes are needed
 * that have no link. */
static double slowest_link(const struct hspmd_submesh_tables *t, const struct hspmd_pipeline_mix *m)
{
	double slowest = INFINITY;
	int most[HSPMD_DEVICE_CLASSES_MAX] = { 0 }; /* devices that the copies of one partition use */
	for (int i = 0; i < m->count; i++) {
		int use[HSPMD_DEVICE_CLASSES_MAX] = { 0 };
		for (int s = 0; s < m->partition[i]->sequence.stages; s++) {
			const struct hspmd_submesh *u = &t->submeshes[m->partition[i]->sequence.submesh[s]];
			use[u->device_class] += m->copies[i] * u->tp;
		}
		for (int k = 0; k < t->device_classes->count; k++)
			most[k] = use[k] > most[k] ? use[k] : most[k];
	}
	for (int k = 0; k < t->device_classes->count; k++) {
		if (most[k] && t->link_rate[k] > 0)
			slowest = fmin(slowest, t->link_rate[k]);
		else if (most[k] > t->device_classes->list[k].per_node)
			return 0;
	}
	return slowest;
}

/* Most weights of the stages that one pipeline has in one node, if its stages are placed together. */
static double most_in_node(const struct hspmd_submesh_tables *t, const struct hspmd_pipeline_partition *x)
{
	double most = 0, here = 0;
	for (int s = 0, first = 0, used = 0, last = -1; s < x->sequence.stages; first = x->ends[s++]) {
		const struct hspmd_submesh *u = &t->submeshes[x->sequence.submesh[s]];
		if (u->device_class != last || used + u->tp > t->device_classes->list[last].per_node)
			here = used = 0;
		last = u->device_class;
		used += u->tp;
		here += hspmd_stage_params(t->costs, first, x->ends[s]);
		most = fmax(most, here);
	}
	return most;
}

static double most_in_stage(const struct hspmd_submesh_tables *t, const struct hspmd_pipeline_partition *x)
{
	double most = 0;
	for (int s = 0, first = 0; s < x->sequence.stages; first = x->ends[s++])
		most = fmax(most, hspmd_stage_params(t->costs, first, x->ends[s]));
	return most;
}

double hspmd_estimate_summing(const struct hspmd_submesh_tables *t, const struct hspmd_pipeline_mix *m, enum hspmd_placement how, bool zero)
{
	int pipelines = 0;
	double largest = 0, rate = slowest_link(t, m);
	for (int i = 0; i < m->count; i++) {
		pipelines += m->copies[i];
		largest = fmax(largest, how == HSPMD_PLACE_STAGES ? most_in_stage(t, m->partition[i]) : most_in_node(t, m->partition[i]));
	}
	if (pipelines < 2 || isinf(rate))
		return 0;
	double bytes = t->costs->grad_bytes + (zero ? t->costs->param_bytes : t->costs->grad_bytes);
	return (pipelines - 1.0) / pipelines * largest * bytes / rate;
}
