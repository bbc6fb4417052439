/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/solver/search/estimate.h"

#include <math.h>

#include "controller/solver/search/stage_order.h"

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

/* The layers that one node's stages hold. */
struct node_layers {
	int left, first, end; /* devices that are free; the layers of the stages placed last, as far as they are without a gap */
	double params;
};

static void add_layers(const struct hspmd_submesh_tables *t, struct node_layers *n, int first, int end)
{
	if (n->end <= n->first || first > n->end || end < n->first) {
		n->params += hspmd_stage_params(t->costs, first, end);
		n->first = first;
		n->end = end;
		return;
	}
	int from = first < n->first ? first : n->first, to = end > n->end ? end : n->end;
	n->params += hspmd_stage_params(t->costs, from, to) - hspmd_stage_params(t->costs, n->first, n->end);
	n->first = from;
	n->end = to;
}

/* Most weights of the layers that one node's stages hold, if the copies of each stage are placed together. Widths divide each other, so
 * that a node is filled before the next one is begun. */
static double most_in_shared_node(const struct hspmd_submesh_tables *t, const struct hspmd_pipeline_mix *m)
{
	struct hspmd_stage_copies list[HSPMD_STAGE_COPIES_MAX];
	int count = hspmd_stage_order(t, m, list), last = -1;
	struct node_layers node = { 0 };
	double most = 0;
	for (int k = 0; k < count; k++) {
		const struct hspmd_submesh *u = &t->submeshes[m->partition[list[k].partition]->sequence.submesh[list[k].s]];
		int per_node = t->device_classes->list[u->device_class].per_node, devices = m->copies[list[k].partition] * u->tp;
		bool fresh = u->device_class != last || node.left < u->tp;
		last = u->device_class;
		if (fresh)
			node = (struct node_layers){ .left = per_node };
		add_layers(t, &node, list[k].first, list[k].end);
		most = fmax(most, node.params);
		if (devices > node.left) { /* more nodes, with this stage alone */
			int rest = (devices - node.left) % per_node;
			node = (struct node_layers){ .left = rest ? per_node - rest : 0 };
			add_layers(t, &node, list[k].first, list[k].end);
			most = fmax(most, node.params);
		} else {
			node.left -= devices;
		}
	}
	return most;
}

double hspmd_estimate_summing(const struct hspmd_submesh_tables *t, const struct hspmd_pipeline_mix *m, enum hspmd_placement how, bool zero)
{
	int pipelines = 0;
	double largest = 0, rate = slowest_link(t, m);
	for (int i = 0; i < m->count; i++) {
		pipelines += m->copies[i];
		if (how == HSPMD_PLACE_PIPELINES)
			largest = fmax(largest, most_in_node(t, m->partition[i]));
	}
	if (pipelines < 2 || isinf(rate))
		return 0;
	if (how == HSPMD_PLACE_STAGES)
		largest = most_in_shared_node(t, m);
	double bytes = t->costs->grad_bytes + (zero ? t->costs->param_bytes : t->costs->grad_bytes);
	return (pipelines - 1.0) / pipelines * largest * bytes / rate;
}
