/* SPDX-License-Identifier: Apache-2.0 */
/* Repair: what can be made of the current plan after a loss, without a search. Offered are
 *
 * - the current plan without the pipelines that lack a device
 * - the same, after lost stages were replaced, as long as there are any, by spare devices of the same type in one node, or by a stage of
 *   another pipeline that lacks something: if possible one of the same layers, so that no state moves
 * - the latter, with the pipelines that still lack something on the stages that they have left, among which their layers are divided anew
 *
 * each with its micro-batches divided by how long those of each pipeline take. That a pipeline takes over what it lacks from another one is
 * from Oobleck (SOSP'23). Each plan is timed a few times, however many devices there are. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/search/beam_search_internal.h"

#define LEVELLED 2     /* rounds of dividing micro-batches: the time of one depends a little on how many there are */
#define PRECISION 1e-3 /* relative precision of a partition */

struct repair {
	struct hspmd_search *s;
	struct hspmd_plan *plan; /* the current one, as far as it is repaired; a device that is gone or may not be used is -1 */
	bool *used;              /* per device: by a stage that lacks none */
};

static bool is_whole(const struct hspmd_stage *st)
{
	for (int d = 0; d < st->device_count; d++)
		if (st->devices[d] < 0)
			return false;
	return true;
}

static bool lacks_stage(const struct hspmd_pipeline *pipe)
{
	for (int s = 0; s < pipe->stage_count; s++)
		if (!is_whole(&pipe->stages[s]))
			return true;
	return false;
}

/* The plan's micro-batches divided by time; takes ownership of the plan. NULL is fine. Returns 0, or -1 if memory runs out. */
static int offer(struct hspmd_search *s, struct hspmd_plan *plan)
{
	double objective;
	for (int i = 0; plan && i < LEVELLED; i++)
		if (hspmd_best_plans_level(s, plan, INFINITY, &objective)) {
			hspmd_plan_destroy(plan);
			return -1;
		}
	return plan ? hspmd_best_plans_offer(s, plan, NULL) : 0;
}

/* ---- lost stages replaced */

static void find_used(struct repair *r)
{
	for (int i = 0; i < r->plan->pipeline_count; i++)
		for (int s = 0; s < r->plan->pipelines[i].stage_count; s++) {
			struct hspmd_stage *st = &r->plan->pipelines[i].stages[s];
			for (int d = 0; d < st->device_count; d++)
				if (st->devices[d] >= 0 && r->s->device_classes->class_of_device[st->devices[d]] < 0)
					st->devices[d] = -1;
			for (int d = 0; is_whole(st) && d < st->device_count; d++)
				r->used[st->devices[d]] = true;
		}
}

/* The type of the devices that the stage had; -1: several, or there are no more of it. */
static int type_of_stage(const struct repair *r, int pipeline, int stage)
{
	const struct hspmd_cluster *of = r->s->request->current_cluster ? r->s->request->current_cluster : r->s->costs->cluster;
	const struct hspmd_stage *st = &r->s->request->current->pipelines[pipeline].stages[stage];
	for (int d = 1; d < st->device_count; d++)
		if (of->devices[st->devices[d]].type != of->devices[st->devices[0]].type)
			return -1;
	return hspmd_cluster_find_type(r->s->costs->cluster, of->types[of->devices[st->devices[0]].type].name);
}

static bool is_spare(const struct repair *r, int device, int type)
{
	return !r->used[device] && r->s->costs->cluster->devices[device].type == type && r->s->device_classes->class_of_device[device] >= 0;
}

/* Devices of the node with the fewest spare ones that has enough. */
static bool take_spares(struct repair *r, struct hspmd_stage *st, int type)
{
	const struct hspmd_cluster *c = r->s->costs->cluster;
	int best = -1, fewest = 0;
	for (int n = 0; n < c->node_count; n++) {
		int count = 0;
		for (int d = c->nodes[n].first_device; d < c->nodes[n].first_device + c->nodes[n].device_count; d++)
			count += is_spare(r, d, type);
		if (count >= st->device_count && (best < 0 || count < fewest)) {
			best = n;
			fewest = count;
		}
	}
	for (int d = best < 0 ? 0 : c->nodes[best].first_device, k = 0; best >= 0 && k < st->device_count; d++)
		if (is_spare(r, d, type)) {
			st->devices[k++] = d;
			r->used[d] = true;
		}
	return best >= 0;
}

static bool may_take_over(const struct repair *r, const struct hspmd_stage *st, const struct hspmd_stage *other, int type)
{
	return is_whole(other) && hspmd_stage_same_splits(st, other) && r->s->costs->cluster->devices[other->devices[0]].type == type &&
	       r->s->device_classes->class_of_device[other->devices[0]] ==
	               r->s->device_classes->class_of_device[other->devices[other->device_count - 1]];
}

/* A stage of a later pipeline that lacks another one, which then lacks this one, too. Best is one of the same layers, so that no state
 * moves; else the one nearest to it in the pipeline, as that is often on a node with which its neighbours exchange messages anyway. */
static void take_stage(struct repair *r, int pipeline, int stage, int type)
{
	struct hspmd_stage *st = &r->plan->pipelines[pipeline].stages[stage], *best = NULL;
	int nearest = INT_MAX;
	for (int i = r->plan->pipeline_count - 1; i > pipeline; i--) {
		struct hspmd_pipeline *other = &r->plan->pipelines[i];
		for (int s = 0; lacks_stage(other) && s < other->stage_count; s++) {
			struct hspmd_stage *from = &other->stages[s];
			bool alike = from->layers[0] == st->layers[0] && from->layers[1] == st->layers[1];
			int distance = alike ? 0 : 1 + abs(s - stage);
			if (distance < nearest && may_take_over(r, st, from, type)) {
				nearest = distance;
				best = from;
			}
		}
	}
	if (!best)
		return;
	int *devices = st->devices;
	st->devices = best->devices;
	best->devices = devices;
}

/* Replaces what can be replaced. Returns true if that makes a pipeline whole. */
static bool replace_stages(struct repair *r)
{
	bool any = false;
	for (int i = 0; i < r->plan->pipeline_count; i++) {
		struct hspmd_pipeline *pipe = &r->plan->pipelines[i];
		bool lacked = lacks_stage(pipe);
		for (int s = 0; lacked && s < pipe->stage_count; s++) {
			struct hspmd_stage *st = &pipe->stages[s];
			int type = is_whole(st) ? -1 : type_of_stage(r, i, s);
			if (type >= 0 && !take_spares(r, st, type))
				take_stage(r, i, s, type);
		}
		any = any || (lacked && !lacks_stage(pipe));
	}
	return any;
}

/* ---- pipelines of fewer stages */

/* The stages that are left, as submeshes. Returns false if there are none, or one is no submesh. */
static bool sequence_of(const struct repair *r, const struct hspmd_submesh_tables *t, const struct hspmd_pipeline *pipe,
                        struct hspmd_stage_sequence *x)
{
	const int *class_of = r->s->device_classes->class_of_device;
	x->stages = 0;
	for (int s = 0; s < pipe->stage_count; s++) {
		const struct hspmd_stage *st = &pipe->stages[s];
		if (!is_whole(st))
			continue;
		int u = st->shard_ratio || st->context != 1 || x->stages == HSPMD_STAGES_MAX
		                ? -1
		                : hspmd_beam_submesh(t, class_of[st->devices[0]], st->device_count);
		for (int d = 1; d < st->device_count; d++)
			u = class_of[st->devices[d]] == class_of[st->devices[0]] ? u : -1;
		if (u < 0)
			return false;
		x->submesh[x->stages++] = (unsigned char)u;
	}
	return x->stages > 0;
}

static void keep_whole_stages(const struct hspmd_submesh_tables *t, struct hspmd_pipeline *pipe, const struct hspmd_pipeline_partition *of)
{
	int kept = 0, before = pipe->stage_count;
	for (int s = 0; s < before; s++) {
		struct hspmd_stage st = pipe->stages[s];
		if (!is_whole(&st)) {
			free(st.devices);
			free(st.shard_ratio);
			free(st.context_ratio);
			continue;
		}
		st.layers[0] = kept ? of->ends[kept - 1] : 0;
		st.layers[1] = of->ends[kept];
		hspmd_draft_set_saving(t, of, kept, &st);
		pipe->stages[kept++] = st;
	}
	pipe->stage_count = kept;
	pipe->micro_batches = pipe->micro_batches * kept / before > 0 ? pipe->micro_batches * kept / before : 1;
}

/* Returns 1 if there is a pipeline that now has fewer stages, 0 if not, -1 if memory runs out. */
static int shorten(struct repair *r)
{
	struct hspmd_plan *p = r->plan;
	const struct hspmd_layer_copies copies = { .pipelines = p->pipeline_count, .zero = p->zero_stage };
	enum hspmd_draft_offload offload = hspmd_draft_offload_of(p);
	struct hspmd_submesh_tables *t =
	        hspmd_submesh_tables_new(r->s->costs, r->s->device_classes, &r->s->caps, p->micro_batch, offload, NULL);
	struct hspmd_pipeline_partition last = { .max_micro_batches = 0 };
	bool any = false;
	if (!t)
		return -1;
	t->schedule = p->schedule;
	for (int i = 0; i < p->pipeline_count; i++) {
		struct hspmd_stage_sequence x;
		if (!lacks_stage(&p->pipelines[i]) || p->pipelines[i].micro_batch != p->micro_batch ||
		    !sequence_of(r, t, &p->pipelines[i], &x))
			continue;
		if (x.stages != last.sequence.stages || memcmp(x.submesh, last.sequence.submesh, (size_t)x.stages) != 0) {
			last = (struct hspmd_pipeline_partition){ .sequence = x };
			if (!hspmd_partition_layers(t, &x, &copies, p->global_batch / p->micro_batch, PRECISION, &last))
				last = (struct hspmd_pipeline_partition){ .sequence = x, .max_micro_batches = 0 };
		}
		if (last.max_micro_batches > 0) {
			keep_whole_stages(t, &p->pipelines[i], &last);
			any = true;
		}
	}
	hspmd_submesh_tables_destroy(t);
	return any;
}

static struct hspmd_plan *whole_pipelines(const struct repair *r)
{
	return hspmd_migration_whole(r->s->migration, r->plan, r->s->request, &r->s->caps);
}

int hspmd_repair(struct hspmd_search *s)
{
	if (!s->migration)
		return 0;
	struct repair r = { .s = s,
		            .plan = hspmd_plan_copy(hspmd_migration_current(s->migration)),
		            .used = hspmd_calloc((size_t)s->costs->cluster->device_count, sizeof *r.used) };
	struct hspmd_plan *dropped = s->start ? hspmd_plan_copy(s->start) : NULL;
	int rc = r.plan && r.used && (!s->start || dropped) ? offer(s, dropped) : -1;
	/* Chunks of an interleaved plan share their devices, and pipelines that are in step must stay so. */
	bool apart = !rc && r.plan->virtual_stages == 1, lacks = false;
	if (apart) {
		find_used(&r);
		if (replace_stages(&r))
			rc = offer(s, whole_pipelines(&r));
		for (int i = 0; i < r.plan->pipeline_count; i++)
			lacks = lacks || lacks_stage(&r.plan->pipelines[i]);
	}
	int shortened = !rc && lacks && r.plan->zero_stage < 2 ? shorten(&r) : 0;
	struct hspmd_plan *shorter = shortened > 0 ? whole_pipelines(&r) : NULL;
	if (shorter)
		hspmd_plan_offload_least(s, shorter);
	rc = rc || shortened < 0 ? -1 : shortened ? offer(s, shorter) : 0;
	hspmd_plan_destroy(r.plan);
	free(r.used);
	return rc;
}
