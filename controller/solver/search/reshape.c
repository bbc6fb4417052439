/* SPDX-License-Identifier: Apache-2.0 */
/* Larger changes to the best plans, each refined before it is judged, in rounds as long as the best plan gets better:
 *
 * - a pipeline is removed
 * - a pipeline gets a micro-batch size of its own, with the same number of samples
 * - a spare device becomes a stage of a pipeline, or joins one
 * - two neighbouring stages, or two pipelines stage by stage, become tensor-parallel groups of unequal devices (shard_ratio.c)
 *
 * They matter if there are few devices, as each is then a large part of the whole; plans with many stages are not reshaped. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/search/search_internal.h"
#include "controller/solver/search/shard_ratio.h"

#define STAGES_FEW HSPMD_RESHAPED_STAGES
#define BASES 12      /* plans that are reshaped per round */
#define ROUNDS 4
#define WORK_MAX 60000 /* stages timed in total; a third of it if there are more devices than FEW */
#define FEW 16
#define WORK_EACH 60     /* plans timed per change */
#define PARTITIONS_MAX 3 /* ways to give a new stage its layers that are tried per change */

struct reshape {
	struct hspmd_search *s;
	const struct hspmd_plan *base;
	bool *used;  /* per device: the plan uses it */
	int *first;  /* per pipeline of the base: the first pipeline equal to it */
	long budget; /* stages that may still be timed */
};

static bool go_on(const struct reshape *r)
{
	return r->budget > 0 && !hspmd_search_is_over(r->s);
}

/* Refine a changed plan and offer it to the best plans; takes ownership of the plan. Returns 0, or -1 if memory runs out. */
static int judge(struct reshape *r, struct hspmd_plan *p)
{
	long most = (long)WORK_EACH * hspmd_stage_count(p), left = most;
	int rc = hspmd_local_search(r->s, p, &left);
	r->budget -= most - left;
	return rc;
}

/* ---- parts of plans */

static void clear_stage(struct hspmd_stage *s)
{
	free(s->devices);
	free(s->shard_ratio);
	free(s->context_ratio);
}

/* Remove pipeline i and its micro-batches from the plan. */
static void remove_pipeline(struct hspmd_plan *p, int i)
{
	for (int s = 0; s < p->pipelines[i].stage_count; s++)
		clear_stage(&p->pipelines[i].stages[s]);
	free(p->pipelines[i].stages);
	memmove(&p->pipelines[i], &p->pipelines[i + 1], (size_t)(--p->pipeline_count - i) * sizeof *p->pipelines);
	p->zero_stage = p->pipeline_count > 1 && p->zero_stage; /* more needs pipelines in step */
}

/* Distribute samples over the pipelines in proportion to their micro-batches' samples. Returns false if they do not divide evenly. */
static bool distribute_samples(struct hspmd_plan *p, int samples)
{
	int sum = 0;
	for (int i = 0; i < p->pipeline_count; i++)
		sum += p->pipelines[i].micro_batches * p->pipelines[i].micro_batch;
	for (int i = 0, left = samples; i < p->pipeline_count; i++) {
		struct hspmd_pipeline *pipe = &p->pipelines[i];
		int own = pipe->micro_batches * pipe->micro_batch, part = (int)((double)left * own / sum / pipe->micro_batch + 0.5);
		if (i == p->pipeline_count - 1)
			part = left % pipe->micro_batch ? 0 : left / pipe->micro_batch;
		if (part * pipe->micro_batch > left)
			part--;
		pipe->micro_batches += part;
		left -= part * pipe->micro_batch;
		sum -= own;
		if (i == p->pipeline_count - 1 && left)
			return false;
	}
	return true;
}

/* Insert a stage with these devices before stage s of pipeline i; its layers are not set. */
static int add_stage(struct hspmd_plan *p, int i, int s, const int *devices, int count)
{
	struct hspmd_pipeline *pipe = &p->pipelines[i];
	struct hspmd_stage *grown = realloc(pipe->stages, ((size_t)pipe->stage_count + 1) * sizeof *grown);
	int *own = hspmd_calloc((size_t)count, sizeof *own);
	if (grown)
		pipe->stages = grown;
	if (!grown || !own) {
		free(own);
		return -1;
	}
	memcpy(own, devices, (size_t)count * sizeof *own);
	memmove(&grown[s + 1], &grown[s], (size_t)(pipe->stage_count++ - s) * sizeof *grown);
	grown[s] = (struct hspmd_stage){ .device_count = count, .devices = own, .context = 1 };
	return 0;
}

/* Add devices to a stage, and divide its layers among all of them. Returns 0; 1 if that is not possible; -1 if memory runs out. */
static int join_stage(struct reshape *r, struct hspmd_plan *p, int i, int s, const int *devices, int count)
{
	struct hspmd_stage *st = &p->pipelines[i].stages[s];
	const struct hspmd_cluster *c = r->s->costs->cluster;
	if (!r->s->caps.mixed_stage || !r->s->caps.unequal_shards || st->context != 1 || st->device_count + count > r->s->caps.max_tp)
		return 1;
	for (int d = 0; d < count; d++) {
		const struct hspmd_cluster_device *a = &c->devices[st->devices[0]], *b = &c->devices[devices[d]];
		if ((a->node != b->node && !r->s->caps.tp_across_nodes) || c->types[a->type].kind != c->types[b->type].kind)
			return 1;
	}
	int *grown = realloc(st->devices, (size_t)(st->device_count + count) * sizeof *grown);
	if (!grown)
		return -1;
	memcpy(grown + st->device_count, devices, (size_t)count * sizeof *grown);
	st->devices = grown;
	st->device_count += count;
	free(st->shard_ratio);
	st->shard_ratio = NULL;
	for (int k = 0; k < HSPMD_RECOMPUTE_KINDS; k++) {
		st->recompute = (enum hspmd_recompute)k;
		int rc = r->s->caps.recompute & 1u << k ? hspmd_choose_shard_ratio(r->s->costs, p, i, s) : 1;
		if (rc <= 0)
			return rc;
	}
	return 1;
}

/* Judge a changed plan; rc is the result of the change (0; 1: not possible; -1: memory ran out). */
static int judge_if(struct reshape *r, struct hspmd_plan *p, int rc)
{
	if (!rc)
		return judge(r, p);
	hspmd_plan_destroy(p);
	return rc < 0 ? -1 : 0;
}

/* ---- the changes */

static int drop_pipeline(struct reshape *r, int i)
{
	struct hspmd_plan *p = r->base->pipeline_count > 1 ? hspmd_plan_copy(r->base) : NULL;
	if (!p)
		return r->base->pipeline_count > 1 ? -1 : 0;
	int samples = p->pipelines[i].micro_batches * p->pipelines[i].micro_batch;
	remove_pipeline(p, i);
	return judge_if(r, p, distribute_samples(p, samples) ? 0 : 1);
}

/* Give pipeline i, and those equal to it, micro-batches of `own` samples. */
static int resize_micro_batch(struct reshape *r, int i, int own)
{
	struct hspmd_plan *p = hspmd_plan_copy(r->base);
	int rc = p ? 0 : -1;
	for (int k = i; !rc && k < p->pipeline_count; k++) {
		struct hspmd_pipeline *pipe = &p->pipelines[k];
		int samples = pipe->micro_batches * pipe->micro_batch;
		if (r->first[k] != i)
			continue;
		rc = samples % own || pipe->micro_batch == own ? 1 : 0;
		pipe->micro_batch = own;
		pipe->micro_batches = samples / own;
	}
	return judge_if(r, p, rc);
}

/* Make the devices a stage before stage s, with half, a quarter or three quarters of the layers of one of its neighbours. */
static int insert(struct reshape *r, int i, int s, bool from_next, const int *devices, int count)
{
	const struct hspmd_pipeline *pipe = &r->base->pipelines[i];
	const int *layers = pipe->stages[from_next ? s : s - 1].layers;
	int available = layers[1] - layers[0];
	for (int k = 0, last = 0; k < PARTITIONS_MAX && go_on(r); k++) {
		static const double parts[PARTITIONS_MAX] = { 0.25, 0.5, 0.75 };
		int take = (int)(available * parts[k] + 0.5);
		if (take < 1 || take >= available || take == last)
			continue;
		struct hspmd_plan *p = hspmd_plan_copy(r->base);
		int rc = p ? add_stage(p, i, s, devices, count) : -1;
		last = take;
		if (!rc) {
			struct hspmd_stage *st = &p->pipelines[i].stages[s], *giver = from_next ? st + 1 : st - 1;
			int border = from_next ? giver->layers[0] + take : giver->layers[1] - take;
			st->layers[from_next ? 0 : 1] = giver->layers[from_next ? 0 : 1];
			st->layers[from_next ? 1 : 0] = giver->layers[from_next ? 0 : 1] = border;
		}
		if (judge_if(r, p, rc))
			return -1;
	}
	return 0;
}

static int join(struct reshape *r, int i, int s, const int *devices, int count)
{
	struct hspmd_plan *p = hspmd_plan_copy(r->base);
	return judge_if(r, p, p ? join_stage(r, p, i, s, devices, count) : -1);
}

/* Merge stages s and s + 1 of pipeline i. */
static int merge_stages(struct reshape *r, int i, int s)
{
	struct hspmd_plan *p = hspmd_plan_copy(r->base);
	if (!p)
		return -1;
	struct hspmd_pipeline *pipe = &p->pipelines[i];
	struct hspmd_stage gone = pipe->stages[s + 1];
	memmove(&pipe->stages[s + 1], &pipe->stages[s + 2], (size_t)(--pipe->stage_count - s - 1) * sizeof *pipe->stages);
	pipe->stages[s].layers[1] = gone.layers[1];
	int rc = join_stage(r, p, i, s, gone.devices, gone.device_count);
	clear_stage(&gone);
	return judge_if(r, p, rc);
}

/* Merge the stages of pipeline k into those of pipeline i, which has as many. */
static int merge_pipelines(struct reshape *r, int i, int k)
{
	const struct hspmd_pipeline *other = &r->base->pipelines[k];
	struct hspmd_plan *p = hspmd_plan_copy(r->base);
	int rc = p ? 0 : -1, samples = other->micro_batches * other->micro_batch;
	if (!rc && samples % p->pipelines[i].micro_batch)
		rc = 1;
	if (!rc)
		p->pipelines[i].micro_batches += samples / p->pipelines[i].micro_batch;
	for (int s = 0; !rc && s < other->stage_count; s++)
		rc = join_stage(r, p, i, s, other->stages[s].devices, other->stages[s].device_count);
	if (!rc)
		remove_pipeline(p, k);
	return judge_if(r, p, rc);
}

/* ---- choice of changes */

static int change_pipelines(struct reshape *r)
{
	for (int i = 0; i < r->base->pipeline_count && go_on(r); i++) {
		const struct hspmd_pipeline *pipe = &r->base->pipelines[i];
		if (r->first[i] != i)
			continue;
		if (drop_pipeline(r, i))
			return -1;
		for (int own = 1; r->s->caps.unequal_micro_batch && r->base->pipeline_count > 1 && own <= 4 * pipe->micro_batch && go_on(r);
		     own++)
			if (!r->s->request->micro_batch && own != pipe->micro_batch && resize_micro_batch(r, i, own))
				return -1;
		for (int s = 0; s + 1 < pipe->stage_count && go_on(r); s++)
			if (merge_stages(r, i, s))
				return -1;
		for (int k = i + 1; k < r->base->pipeline_count && go_on(r); k++)
			if (r->base->pipelines[k].stage_count == pipe->stage_count && merge_pipelines(r, i, k))
				return -1;
	}
	return 0;
}

/* Try `count` spare devices of one node and type in every place. */
static int place_spares(struct reshape *r, const int *devices, int count)
{
	for (int i = 0; i < r->base->pipeline_count && go_on(r); i++) {
		const struct hspmd_pipeline *pipe = &r->base->pipelines[i];
		for (int s = 0; s <= pipe->stage_count && r->first[i] == i && go_on(r); s++) {
			int rc = s > 0 ? insert(r, i, s, false, devices, count) : 0;
			rc = !rc && s < pipe->stage_count ? insert(r, i, s, true, devices, count) : rc;
			rc = !rc && s < pipe->stage_count ? join(r, i, s, devices, count) : rc;
			if (rc)
				return -1;
		}
	}
	return 0;
}

static bool width_is_allowed(const struct reshape *r, int width)
{
	const struct hspmd_model_facts *f = r->s->costs->facts;
	return width <= r->s->caps.max_tp && (width & (width - 1)) == 0 && (!f || hspmd_model_divides(f, width));
}

static int use_spares(struct reshape *r)
{
	const struct hspmd_cluster *c = r->s->costs->cluster;
	for (int n = 0; n < c->node_count && go_on(r); n++) {
		int spare[HSPMD_MAX_TP], count = 0, kind = -1;
		for (int d = c->nodes[n].first_device; d < c->nodes[n].first_device + c->nodes[n].device_count && count < HSPMD_MAX_TP;
		     d++) {
			int own = r->s->device_classes->class_of_device[d];
			if (r->used[d] || own < 0 || (kind >= 0 && own != kind))
				continue;
			kind = own;
			spare[count++] = d;
			if (width_is_allowed(r, count) && place_spares(r, spare, count))
				return -1;
		}
	}
	return 0;
}

static int reshape_plan(struct reshape *r)
{
	const struct hspmd_plan *p = r->base;
	const struct hspmd_cluster *c = r->s->costs->cluster;
	memset(r->used, 0, (size_t)c->device_count * sizeof *r->used);
	for (int i = 0; i < p->pipeline_count; i++) {
		r->first[i] = i;
		for (int k = 0; k < i && r->first[i] == i; k++)
			if (r->first[k] == k && hspmd_pipelines_alike(r->s, &p->pipelines[k], &p->pipelines[i]))
				r->first[i] = k;
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			for (int d = 0; d < p->pipelines[i].stages[s].device_count; d++)
				r->used[p->pipelines[i].stages[s].devices[d]] = true;
	}
	return change_pipelines(r) || use_spares(r) ? -1 : 0;
}

static int reshape_best(struct reshape *r)
{
	struct hspmd_plan *bases[BASES] = { NULL };
	int count = r->s->best_plans.count < BASES ? r->s->best_plans.count : BASES, rc = 0;
	for (int i = 0; i < count; i++)
		rc = (bases[i] = hspmd_plan_copy(r->s->best_plans.list[i].plan)) ? rc : -1;
	for (int i = 0; i < count && !rc && go_on(r); i++) {
		r->base = bases[i];
		if (hspmd_stage_count(bases[i]) <= STAGES_FEW && bases[i]->schedule != HSPMD_SCHEDULE_INTERLEAVED)
			rc = reshape_plan(r);
	}
	for (int i = 0; i < count; i++)
		hspmd_plan_destroy(bases[i]);
	return rc;
}

int hspmd_reshape(struct hspmd_search *s)
{
	struct reshape r = { .s = s, .budget = s->costs->cluster->device_count > FEW ? WORK_MAX / 3 : WORK_MAX };
	int rc = 0;
	r.used = hspmd_calloc((size_t)s->costs->cluster->device_count, sizeof *r.used);
	r.first = hspmd_calloc(STAGES_FEW, sizeof *r.first);
	if (!r.used || !r.first)
		rc = -1;
	for (int round = 0; round < ROUNDS && !rc && s->best_plans.count && go_on(&r); round++) {
		double before = s->best_plans.list[0].objective;
		rc = reshape_best(&r);
		if (!(s->best_plans.list[0].objective < before))
			break;
	}
	free(r.used);
	free(r.first);
	return rc;
}
