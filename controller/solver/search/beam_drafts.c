/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "common/fnv.h"
#include "controller/solver/search/beam_search_internal.h"
#include "controller/solver/search/estimate.h"

#define ROUGHLY 2e-3 /* relative precision of a pipeline's period */

/* ---- sequences */

int hspmd_beam_submesh(const struct hspmd_submesh_tables *t, int device_class, int tp)
{
	for (int u = 0; u < t->submesh_count; u++)
		if (t->submeshes[u].device_class == device_class && t->submeshes[u].tp == tp)
			return u;
	return -1;
}

static bool equal(const struct hspmd_stage_sequence *a, const struct hspmd_stage_sequence *b)
{
	return a->stages == b->stages && !memcmp(a->submesh, b->submesh, (size_t)a->stages);
}

void hspmd_beam_add_use(const struct beam *b, const struct hspmd_stage_sequence *x, int times, int *use)
{
	for (int s = 0; s < x->stages; s++)
		use[b->t->submeshes[x->submesh[s]].device_class] += times * b->t->submeshes[x->submesh[s]].tp;
}

/* ---- drafts */

/* Equal for the same pipelines in any order. */
static uint64_t fingerprint(const struct beam_draft *d)
{
	uint64_t sum = 1;
	for (int g = 0; g < d->count; g++)
		sum += hspmd_fnv1a(d->sequence[g].submesh, (size_t)d->sequence[g].stages) * (2 * (uint64_t)d->copies[g] + 1);
	return sum ? sum : 1;
}

struct beam_known *hspmd_beam_known(struct beam *b, const struct beam_draft *d)
{
	struct hspmd_beam_ground *g = b->ground;
	uint64_t what = fingerprint(d);
	size_t at = (size_t)what % (2 * HSPMD_BEAM_KNOWN_MAX);
	while (g->known[at].what && g->known[at].what != what)
		at = (at + 1) % (2 * HSPMD_BEAM_KNOWN_MAX);
	if (!g->known[at].what && g->known_count == HSPMD_BEAM_KNOWN_MAX)
		return NULL;
	g->known_count += !g->known[at].what;
	g->known[at].what = what;
	return &g->known[at];
}

bool hspmd_beam_add_copies(struct beam_draft *d, const struct hspmd_stage_sequence *x, int copies)
{
	int g = 0;
	if (!copies)
		return true;
	while (g < d->count && !equal(&d->sequence[g], x))
		g++;
	if (g == HSPMD_PIPELINE_GROUPS_MAX)
		return false;
	if (g == d->count) {
		d->sequence[d->count] = *x;
		d->copies[d->count++] = 0;
	}
	d->copies[g] += copies;
	return true;
}

void hspmd_beam_remove_copies(struct beam_draft *d, int group, int copies)
{
	d->copies[group] -= copies;
	if (d->copies[group])
		return;
	d->count--;
	memmove(&d->sequence[group], &d->sequence[group + 1], (size_t)(d->count - group) * sizeof *d->sequence);
	memmove(&d->copies[group], &d->copies[group + 1], (size_t)(d->count - group) * sizeof *d->copies);
}

bool hspmd_beam_draft_of(const struct beam *b, const struct hspmd_plan *p, struct beam_draft *d)
{
	const int *class_of = b->s->device_classes->class_of_device;
	d->count = 0;
	for (int i = 0; i < p->pipeline_count; i++) {
		struct hspmd_stage_sequence x = { .stages = p->pipelines[i].stage_count };
		if (x.stages > HSPMD_STAGES_MAX || p->pipelines[i].micro_batch != b->t->micro_batch)
			return false;
		for (int s = 0; s < x.stages; s++) {
			const struct hspmd_stage *st = &p->pipelines[i].stages[s];
			int u = hspmd_beam_submesh(b->t, class_of[st->devices[0]], st->device_count);
			for (int k = 1; k < st->device_count; k++)
				u = class_of[st->devices[k]] == class_of[st->devices[0]] ? u : -1;
			if (u < 0 || st->shard_ratio || st->context != 1)
				return false;
			x.submesh[s] = (unsigned char)u;
		}
		if (!hspmd_beam_add_copies(d, &x, 1))
			return false;
	}
	return true;
}

static bool within_inventory(const struct beam *b, const struct beam_draft *d)
{
	int use[HSPMD_DEVICE_CLASSES_MAX] = { 0 };
	for (int g = 0; g < d->count; g++)
		hspmd_beam_add_use(b, &d->sequence[g], d->copies[g], use);
	for (int k = 0; k < b->t->device_classes->count; k++)
		if (use[k] > b->s->available[k])
			return false;
	return true;
}

/* The partition of a sequence, if it is known, in a draft of so many pipelines; NULL: it is not. */
static const struct hspmd_pipeline_partition *known_partition(const struct beam *b, const struct hspmd_stage_sequence *x, int pipelines,
                                                              enum hspmd_placement how)
{
	int count;
	const struct hspmd_pipeline_partition *known = hspmd_partition_memo_last(b->memos[how], x, pipelines);
	return known ? known : hspmd_partition_memo_find(b->memos[how], x, pipelines, &count);
}

/* The best partition of a sequence in a draft of so many pipelines: under ZeRO each needs the more memory the fewer there are. Returns
 * false if it cannot hold the model. */
static bool partition_of(struct beam *b, const struct hspmd_stage_sequence *x, int pipelines, enum hspmd_placement how,
                         struct hspmd_pipeline_partition *out)
{
	const struct hspmd_layer_copies copies = { .pipelines = pipelines, .zero = b->zero };
	const struct hspmd_pipeline_partition *known = known_partition(b, x, pipelines, how);
	if (known) {
		*out = *known;
		return out->max_micro_batches > 0;
	}
	out->sequence = *x;
	b->t->placement = how;
	if (!hspmd_partition_layers(b->t, x, &copies, b->total, ROUGHLY, out))
		out->max_micro_batches = 0;
	b->short_of_memory = hspmd_partition_memo_add_last(b->memos[how], out, pipelines) || b->short_of_memory;
	return out->max_micro_batches > 0;
}

bool hspmd_beam_partition(struct beam *b, const struct beam_draft *d, enum hspmd_placement how, struct hspmd_draft *out)
{
	int pipelines = 0;
	for (int g = 0; g < d->count; g++)
		pipelines += d->copies[g];
	out->group_count = d->count;
	for (int g = 0; g < d->count; g++) {
		out->groups[g].copies = d->copies[g];
		if (!partition_of(b, &d->sequence[g], pipelines, how, &out->groups[g].partition))
			return false;
	}
	return true;
}

void hspmd_beam_insert(struct beam_list *l, const struct beam_draft *d, bool by_objective)
{
	int at = l->count;
	while (at > 0 && (by_objective ? l->drafts[at - 1].objective > d->objective : l->drafts[at - 1].seconds > d->seconds))
		at--;
	/* Mostly a change of what does not matter, which would fill the list. */
	if (at > 0 && (by_objective ? l->drafts[at - 1].objective == d->objective : l->drafts[at - 1].seconds == d->seconds)) {
		hspmd_plan_destroy(d->plan);
		return;
	}
	if (l->count == l->most)
		hspmd_plan_destroy(at == l->most ? d->plan : l->drafts[--l->count].plan);
	if (at == l->most)
		return;
	memmove(&l->drafts[at + 1], &l->drafts[at], (size_t)(l->count++ - at) * sizeof *l->drafts);
	l->drafts[at] = *d;
}

/* Seconds of the draft if it is placed in this way, by the estimate. */
static double estimate(struct beam *b, const struct beam_draft *d, enum hspmd_placement how)
{
	struct hspmd_draft draft;
	struct hspmd_pipeline_mix mix = { .count = d->count };
	if (!hspmd_beam_partition(b, d, how, &draft))
		return INFINITY;
	for (int g = 0; g < d->count; g++) {
		mix.partition[g] = &draft.groups[g].partition;
		mix.copies[g] = d->copies[g];
	}
	return hspmd_estimate_passes(&mix, b->total) + hspmd_estimate_summing(b->t, &mix, how, b->zero);
}

void hspmd_beam_judge(struct beam *b, struct beam_draft *d)
{
	d->expanded = false;
	d->plan = NULL;
	d->seconds = INFINITY;
	for (int how = 0; how < HSPMD_PLACEMENT_COUNT; how++) {
		double seconds = estimate(b, d, (enum hspmd_placement)how);
		if (seconds < d->seconds) {
			d->seconds = seconds;
			d->how = (enum hspmd_placement)how;
		}
	}
}

void hspmd_beam_consider(struct beam *b, struct beam_draft *d)
{
	struct beam_known *known = NULL;
	if (d->count && b->seen_count < HSPMD_BEAM_SEEN_MAX && within_inventory(b, d))
		known = hspmd_beam_known(b, d);
	if (!known || known->search == b->search)
		return;
	b->seen_count++;
	if (known->search) {
		d->seconds = known->seconds;
		d->how = known->how;
		d->expanded = false;
		d->plan = NULL;
	} else {
		hspmd_beam_judge(b, d);
		known->seconds = d->seconds;
		known->how = d->how;
	}
	known->search = b->search;
	if (!isinf(d->seconds))
		hspmd_beam_insert(&b->successors, d, false);
}
