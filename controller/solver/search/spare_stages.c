/* SPDX-License-Identifier: Apache-2.0 */
/* Devices that the best plan leaves over become stages, each of a pipeline of its own. Candidates are made for equal parts of the devices
 * (candidates.c), so what does not divide evenly is left over: the pipelines that get it then run more micro-batches. For large plans;
 * reshape.c tries more with few devices. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/search/search_internal.h"

#define WORK_EACH 60 /* plans timed per class of spare devices */

/* A plan that is changed, and who uses what. */
struct spares {
	struct hspmd_search *s;
	struct hspmd_plan *p;
	bool *used;    /* per device */
	bool *changed; /* per pipeline */
};

static void mark_used(struct spares *x)
{
	memset(x->used, 0, (size_t)x->s->costs->cluster->device_count * sizeof *x->used);
	memset(x->changed, 0, (size_t)x->p->pipeline_count * sizeof *x->changed);
	for (int i = 0; i < x->p->pipeline_count; i++)
		for (int s = 0; s < x->p->pipelines[i].stage_count; s++)
			for (int d = 0; d < x->p->pipelines[i].stages[s].device_count; d++)
				x->used[x->p->pipelines[i].stages[s].devices[d]] = true;
}

/* The last stage of the pipeline whose devices are of this class; -1: none. */
static int stage_of_class(const struct spares *x, int pipeline, int device_class)
{
	const struct hspmd_pipeline *pipe = &x->p->pipelines[pipeline];
	for (int s = pipe->stage_count - 1; s >= 0; s--)
		if (x->s->device_classes->class_of_device[pipe->stages[s].devices[0]] == device_class)
			return s;
	return -1;
}

/* Give the layers to the stages in proportion to what these do per second, each at least one. Returns false if there are too few. */
static bool divide_layers(struct hspmd_search *s, struct hspmd_pipeline *pipe)
{
	double speed[HSPMD_STAGES_MAX], all = 0, sum = 0;
	int layers = s->costs->layer_count;
	if (pipe->stage_count > HSPMD_STAGES_MAX || pipe->stage_count > layers)
		return false;
	for (int k = 0; k < pipe->stage_count; k++) {
		const struct hspmd_stage *st = &pipe->stages[k];
		const struct hspmd_cluster_device *d = &s->costs->cluster->devices[st->devices[0]];
		const struct hspmd_layer_times *t = hspmd_costs_times(s->costs, d->type, hspmd_stage_share(st, 0), pipe->micro_batch, NULL);
		double seconds = t ? t->forward[layers] + t->backward[layers] : 0;
		if (!(seconds > 0))
			return false;
		speed[k] = 1 / (seconds * s->costs->cluster->nodes[d->node].slowdown);
		all += speed[k];
	}
	for (int k = 0, first = 0; k < pipe->stage_count; k++) {
		sum += speed[k];
		int end = (int)(layers * sum / all + 0.5), most = layers - (pipe->stage_count - 1 - k);
		end = end <= first ? first + 1 : end;
		pipe->stages[k].layers[0] = first;
		pipe->stages[k].layers[1] = first = end < most ? end : most;
	}
	return true;
}

/* Each stage of a pipeline recomputes as little as fits. Returns false if one does not fit. */
static bool choose_recompute(const struct spares *x, int pipeline)
{
	for (int k = 0; k < x->p->pipelines[pipeline].stage_count; k++) {
		struct hspmd_stage *st = &x->p->pipelines[pipeline].stages[k];
		int r = 0;
		for (; r < HSPMD_RECOMPUTE_KINDS; r++) {
			st->recompute = (enum hspmd_recompute)r;
			if ((x->s->caps.recompute & 1u << r) && hspmd_stage_fits(x->s->costs, x->p, pipeline, k))
				break;
		}
		if (r == HSPMD_RECOMPUTE_KINDS)
			return false;
	}
	return true;
}

/* Insert a stage after stage `after`, with as many devices as it has, from `devices` on. Returns 0, or -1 if memory runs out. */
static int insert_stage(struct hspmd_pipeline *pipe, int after, const int *devices)
{
	struct hspmd_stage *grown = realloc(pipe->stages, ((size_t)pipe->stage_count + 1) * sizeof *grown);
	int count = grown ? grown[after].device_count : 0, *own = grown ? hspmd_calloc((size_t)count, sizeof *own) : NULL;
	if (grown)
		pipe->stages = grown;
	if (!own)
		return -1;
	memcpy(own, devices, (size_t)count * sizeof *own);
	memmove(&grown[after + 1], &grown[after], (size_t)(pipe->stage_count++ - after) * sizeof *grown);
	grown[after + 1].devices = own;
	return 0;
}

/* A pipeline that has not been changed, with a stage of this class that `free` devices are enough for, in this node if there is one. -1:
 * none. */
static int find_pipeline(const struct spares *x, int device_class, int node, int free)
{
	int found = -1;
	for (int i = 0; i < x->p->pipeline_count; i++) {
		int s = x->changed[i] ? -1 : stage_of_class(x, i, device_class);
		const struct hspmd_stage *st = s < 0 ? NULL : &x->p->pipelines[i].stages[s];
		if (!st || st->device_count > free || st->shard_ratio || st->context != 1)
			continue;
		if (x->s->costs->cluster->devices[st->devices[0]].node == node)
			return i;
		found = found < 0 ? i : found;
	}
	return found;
}

/* Give all spare devices of a class to pipelines. Returns the number of stages added, or -1 if memory runs out. */
static int add_stages(struct spares *x, int device_class)
{
	const struct hspmd_cluster *c = x->s->costs->cluster;
	int added = 0;
	for (int n = 0; n < c->node_count; n++) {
		int spare[HSPMD_MAX_TP], count = 0, at = 0, pipeline;
		for (int d = c->nodes[n].first_device; d < c->nodes[n].first_device + c->nodes[n].device_count; d++)
			if (!x->used[d] && x->s->device_classes->class_of_device[d] == device_class && count < HSPMD_MAX_TP)
				spare[count++] = d;
		while (at < count && (pipeline = find_pipeline(x, device_class, n, count - at)) >= 0) {
			struct hspmd_pipeline *pipe = &x->p->pipelines[pipeline];
			int after = stage_of_class(x, pipeline, device_class), width = pipe->stages[after].device_count;
			x->changed[pipeline] = true;
			if (pipe->stage_count >= x->s->costs->layer_count || pipe->stage_count >= HSPMD_STAGES_MAX)
				continue;
			if (insert_stage(pipe, after, spare + at))
				return -1;
			if (!divide_layers(x->s, pipe) || !choose_recompute(x, pipeline))
				return 0;
			at += width;
			added++;
		}
	}
	return added;
}

/* Give the spare devices of a class to pipelines of a copy of the best plan, and refine it. */
static int try_class(struct spares *x, const struct hspmd_plan *best, int device_class)
{
	long budget = 0;
	if (best->virtual_stages > 1 || best->zero_stage > 1)
		return 0;
	for (int i = 0; i < best->pipeline_count; i++)
		budget += (long)WORK_EACH * best->pipelines[i].stage_count;
	x->p = hspmd_plan_copy(best);
	if (!x->p)
		return -1;
	mark_used(x);
	int added = add_stages(x, device_class);
	if (added > 0)
		return hspmd_local_search(x->s, x->p, &budget);
	hspmd_plan_destroy(x->p);
	return added;
}

int hspmd_use_spare_devices(struct hspmd_search *s)
{
	size_t devices = (size_t)s->costs->cluster->device_count; /* as many pipelines at most */
	struct spares x = { .s = s, .used = hspmd_calloc(devices, sizeof *x.used), .changed = hspmd_calloc(devices, sizeof *x.changed) };
	int status = x.used && x.changed ? 0 : -1;
	for (int k = 0; !status && k < s->device_classes->count && s->best_plans.count && !hspmd_search_is_over(s); k++)
		status = try_class(&x, s->best_plans.list[0].plan, k);
	free(x.used);
	free(x.changed);
	return status;
}
