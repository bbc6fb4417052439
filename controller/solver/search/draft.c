/* SPDX-License-Identifier: Apache-2.0 */
/* Micro-batches are distributed over groups of pipelines by the linear program of minmax.c: m of them take a pipeline of the group
 * (fill_drain_s - period_s) + m period_s.
 *
 * Placement is packing. Stages of one pipeline (or copies of one stage) use what is left of the current node; otherwise the node that has
 * the fewest free devices but at least as many as the following stages of their device class need together; otherwise at least as many as
 * the stage itself needs. Nodes with equally many free devices form a stack, so that finding a node takes as many steps as a node has
 * devices, for any number of nodes. The widest stages are placed first, while nodes are empty. */
#include "controller/solver/search/draft.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/search/minmax.h"

int hspmd_draft_pipelines(const struct hspmd_draft *d)
{
	int n = 0;
	for (int i = 0; i < d->group_count; i++)
		n += d->groups[i].copies;
	return n;
}

int hspmd_draft_assign_micro_batches(struct hspmd_draft *d, int total)
{
	struct hspmd_minmax_worker workers[HSPMD_PIPELINE_GROUPS_MAX];
	int parts[HSPMD_PIPELINE_GROUPS_MAX], extra[HSPMD_PIPELINE_GROUPS_MAX];
	for (int i = 0; i < d->group_count; i++) {
		const struct hspmd_pipeline_group *g = &d->groups[i];
		workers[i] = (struct hspmd_minmax_worker){ g->partition.fill_drain_s - g->partition.period_s, g->partition.period_s,
			                                   g->copies, g->partition.max_micro_batches };
	}
	int rc = hspmd_minmax_divide(workers, d->group_count, total, parts, extra);
	d->seconds = 0;
	for (int i = 0; !rc && i < d->group_count; i++) {
		d->groups[i].parts = parts[i];
		d->groups[i].extra = extra[i];
		d->seconds = fmax(d->seconds, workers[i].fixed + workers[i].each * (parts[i] + (extra[i] > 0)));
	}
	return rc;
}

/* ---- placement */

/* Free devices per device class: nodes in stacks by how many devices of the class they have free. */
struct free_devices {
	int *count; /* per device class and node: number of free devices */
	int *next;  /* the next node in its stack; -1: none */
	int *top;   /* per device class and number of free devices: the top of the stack; -1: empty */
	int *first; /* per device class: index of its first node in free and next */
	int widest;
};

static void push(struct free_devices *r, int device_class, int node)
{
	int *top = &r->top[device_class * (r->widest + 1) + r->count[r->first[device_class] + node]];
	r->next[r->first[device_class] + node] = *top;
	*top = node;
}

/* Remove a node from its stack, at any position in it. */
static void unlink_node(struct free_devices *r, int device_class, int node)
{
	int *at = &r->top[device_class * (r->widest + 1) + r->count[r->first[device_class] + node]];
	while (*at != node)
		at = &r->next[r->first[device_class] + *at];
	*at = r->next[r->first[device_class] + node];
}

static int free_devices_new(struct free_devices *r, const struct hspmd_device_classes *device_classes)
{
	int nodes = 0;
	*r = (struct free_devices){ 0 };
	for (int k = 0; k < device_classes->count; k++) {
		nodes += device_classes->list[k].node_count;
		r->widest = device_classes->list[k].per_node > r->widest ? device_classes->list[k].per_node : r->widest;
	}
	r->count = hspmd_calloc((size_t)nodes, sizeof *r->count);
	r->next = hspmd_calloc((size_t)nodes, sizeof *r->next);
	r->top = hspmd_calloc((size_t)(device_classes->count * (r->widest + 1)), sizeof *r->top);
	r->first = hspmd_calloc((size_t)device_classes->count, sizeof *r->first);
	if (!r->count || !r->next || !r->top || !r->first)
		return -1;
	for (int i = 0; i < device_classes->count * (r->widest + 1); i++)
		r->top[i] = -1;
	for (int k = 0, at = 0; k < device_classes->count; at += device_classes->list[k++].node_count) {
		r->first[k] = at;
		for (int n = device_classes->list[k].node_count - 1; n >= 0; n--) {
			r->count[at + n] = device_classes->list[k].per_node;
			push(r, k, n);
		}
	}
	return 0;
}

static void free_devices_clear(struct free_devices *r)
{
	free(r->count);
	free(r->next);
	free(r->top);
	free(r->first);
}

/* The node with the fewest free devices that has at least `preferred` of them, otherwise at least `need`; -1: none. */
static int find_node(const struct free_devices *r, int device_class, int need, int preferred)
{
	for (int pass = 0; pass < 2; pass++)
		for (int n = pass || preferred < need ? need : preferred; n <= r->widest; n++)
			if (r->top[device_class * (r->widest + 1) + n] >= 0)
				return r->top[device_class * (r->widest + 1) + n];
	return -1;
}

struct placing {
	const struct hspmd_submesh_tables *t;
	const struct hspmd_draft *d;
	struct free_devices free;
	struct hspmd_plan *plan;
	bool full, short_of_memory;
};

/* Number of devices of consecutive stages of one device class, from stage s on. */
static int run_of(const struct placing *p, const struct hspmd_stage_sequence *sequence, int s)
{
	int device_class = p->t->submeshes[sequence->submesh[s]].device_class, devices = 0;
	for (; s < sequence->stages && p->t->submeshes[sequence->submesh[s]].device_class == device_class; s++)
		devices += p->t->submeshes[sequence->submesh[s]].tp;
	return devices;
}

/* Choose a stage's devices, in `preferred_node` (index in the cluster; -1: none) if it has enough free devices. */
static void place_stage(struct placing *p, const struct hspmd_stage_sequence *sequence, int s, int preferred_node, int preferred,
                        struct hspmd_stage *out)
{
	const struct hspmd_submesh *u = &p->t->submeshes[sequence->submesh[s]];
	const struct hspmd_device_class *device_class = &p->t->device_classes->list[u->device_class];
	int node = -1;
	if (preferred_node >= 0 && p->t->device_classes->node_class_of[preferred_node] == device_class->node_class &&
	    p->free.count[p->free.first[u->device_class] + p->t->device_classes->index_in_node_class[preferred_node]] >= u->tp)
		node = p->t->device_classes->index_in_node_class[preferred_node];
	if (node < 0)
		node = find_node(&p->free, u->device_class, u->tp, preferred < device_class->per_node ? preferred : device_class->per_node);
	out->devices = node < 0 ? NULL : hspmd_calloc((size_t)u->tp, sizeof *out->devices);
	p->full = p->full || node < 0;
	p->short_of_memory = p->short_of_memory || (node >= 0 && !out->devices);
	if (!out->devices)
		return;
	int *left = &p->free.count[p->free.first[u->device_class] + node];
	for (int i = 0; i < u->tp; i++)
		out->devices[i] = hspmd_device_class_device(p->t->costs->cluster, device_class, node, device_class->per_node - *left + i);
	unlink_node(&p->free, u->device_class, node);
	*left -= u->tp;
	push(&p->free, u->device_class, node);
}

static void place_pipelines(struct placing *p, int group, int first)
{
	const struct hspmd_pipeline_group *g = &p->d->groups[group];
	const struct hspmd_cluster *c = p->t->costs->cluster;
	for (int i = 0; i < g->copies && !p->full && !p->short_of_memory; i++) {
		struct hspmd_stage *stages = p->plan->pipelines[first + i].stages;
		for (int s = 0; s < g->partition.sequence.stages && !p->full && !p->short_of_memory; s++) {
			int preferred_node = s ? c->devices[stages[s - 1].devices[0]].node : -1;
			place_stage(p, &g->partition.sequence, s, preferred_node, run_of(p, &g->partition.sequence, s), &stages[s]);
		}
	}
}

static void place_stages(struct placing *p, int group, int first)
{
	const struct hspmd_pipeline_group *g = &p->d->groups[group];
	for (int s = 0; s < g->partition.sequence.stages; s++)
		for (int i = 0; i < g->copies && !p->full && !p->short_of_memory; i++)
			place_stage(p, &g->partition.sequence, s, -1, 0, &p->plan->pipelines[first + i].stages[s]);
}

enum hspmd_draft_offload hspmd_draft_offload_of(const struct hspmd_plan *p)
{
	return hspmd_plan_offloads(p)    ? HSPMD_DRAFT_OFFLOADS_ALL
	       : hspmd_plan_uses_host(p) ? HSPMD_DRAFT_OFFLOADS_ACTIVATIONS
	                                 : HSPMD_DRAFT_OFFLOADS_NOTHING;
}

void hspmd_draft_set_saving(const struct hspmd_submesh_tables *t, const struct hspmd_pipeline_partition *of, int s,
                            struct hspmd_stage *stage)
{
	bool offload = t->offload == HSPMD_DRAFT_OFFLOADS_ALL && t->submeshes[of->sequence.submesh[s]].host_bytes > 0;
	stage->recompute = hspmd_way_recompute(of->way[s]);
	stage->sequence_parallel = t->submeshes[of->sequence.submesh[s]].sequence[stage->recompute];
	stage->offload_activations = hspmd_way_offloads(of->way[s]) ? HSPMD_OFFLOAD_ALL : 0;
	stage->offload = offload ? HSPMD_OFFLOAD_OPTIMIZER : HSPMD_OFFLOAD_NONE;
}

static int make_pipelines(const struct hspmd_submesh_tables *t, const struct hspmd_draft *d, struct hspmd_plan *plan)
{
	for (int i = 0; i < d->group_count; i++) {
		const struct hspmd_pipeline_group *g = &d->groups[i];
		for (int c = 0; c < g->copies; c++) {
			struct hspmd_pipeline *pipe = &plan->pipelines[plan->pipeline_count];
			pipe->micro_batches = g->parts + (c < g->extra);
			pipe->micro_batch = t->micro_batch;
			pipe->stages = hspmd_calloc((size_t)g->partition.sequence.stages, sizeof *pipe->stages);
			if (!pipe->stages)
				return -1;
			pipe->stage_count = g->partition.sequence.stages;
			plan->pipeline_count++;
			for (int s = 0; s < pipe->stage_count; s++)
				pipe->stages[s] = (struct hspmd_stage){
					.layers = { s ? g->partition.ends[s - 1] : 0, g->partition.ends[s] },
					.device_count = t->submeshes[g->partition.sequence.submesh[s]].tp,
					.context = 1,
				};
			for (int s = 0; s < pipe->stage_count; s++)
				hspmd_draft_set_saving(t, &g->partition, s, &pipe->stages[s]);
		}
	}
	return 0;
}

static int widest_submesh(const struct hspmd_submesh_tables *t, const struct hspmd_pipeline_group *g)
{
	int widest = 0;
	for (int s = 0; s < g->partition.sequence.stages; s++)
		if (t->submeshes[g->partition.sequence.submesh[s]].tp > widest)
			widest = t->submeshes[g->partition.sequence.submesh[s]].tp;
	return widest;
}

struct hspmd_plan *hspmd_draft_place(const struct hspmd_submesh_tables *t, const struct hspmd_draft *d, enum hspmd_placement how, bool zero,
                                     bool *full)
{
	struct placing p = { .t = t, .d = d };
	int pipelines = hspmd_draft_pipelines(d);
	*full = false;
	p.plan = hspmd_calloc(1, sizeof *p.plan);
	if (!p.plan || !(p.plan->pipelines = hspmd_calloc((size_t)pipelines, sizeof *p.plan->pipelines))) {
		free(p.plan);
		return NULL;
	}
	p.plan->micro_batch = t->micro_batch;
	p.plan->seq_len = t->costs->seq_len;
	p.plan->schedule = t->schedule;
	p.plan->virtual_stages = 1;
	p.plan->zero_stage = zero && pipelines > 1;
	p.short_of_memory = make_pipelines(t, d, p.plan) || free_devices_new(&p.free, t->device_classes);
	for (int i = 0; i < pipelines && !p.short_of_memory; i++)
		p.plan->global_batch += p.plan->pipelines[i].micro_batches * t->micro_batch;
	/* Wide submeshes first, while nodes are empty. */
	for (int width = HSPMD_MAX_TP; width > 0 && !p.full && !p.short_of_memory; width--)
		for (int i = 0, first = 0; i < d->group_count; first += d->groups[i++].copies) {
			if (widest_submesh(t, &d->groups[i]) != width)
				continue;
			if (how == HSPMD_PLACE_STAGES)
				place_stages(&p, i, first);
			else
				place_pipelines(&p, i, first);
		}
	free_devices_clear(&p.free);
	if (p.full || p.short_of_memory) {
		hspmd_plan_destroy(p.plan);
		*full = p.full;
		return NULL;
	}
	return p.plan;
}
