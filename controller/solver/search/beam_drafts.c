/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "common/fnv.h"
#include "controller/solver/search/beam_search_internal.h"

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

void hspmd_beam_consider(struct beam *b, const struct beam_draft *d)
{
	struct beam_known *known = NULL;
	if (d->count && b->seen_count < HSPMD_BEAM_SEEN_MAX && within_inventory(b, d))
		known = hspmd_beam_known(b, d);
	if (!known || known->search == b->search)
		return;
	struct beam_draft *own = &b->batch[b->batch_count++];
	*own = *d;
	own->known = known;
	own->judged = known->search != 0;
	own->seconds = known->seconds;
	own->how = known->how;
	own->expanded = false;
	own->plan = NULL;
	known->search = b->search;
	b->seen_count++;
	if (b->batch_count == HSPMD_BEAM_BATCH && hspmd_beam_judge_considered(b))
		b->short_of_memory = true;
}

int hspmd_beam_judge_considered(struct beam *b)
{
	struct beam_draft *fresh[HSPMD_BEAM_BATCH] = { NULL };
	int count = 0, considered = b->batch_count;
	b->batch_count = 0;
	for (int i = 0; i < considered; i++)
		if (!b->batch[i].judged)
			fresh[count++] = &b->batch[i];
	b->s->judged += count;
	if (hspmd_beam_judge(b, fresh, count))
		return -1;
	for (int i = 0; i < considered; i++) {
		b->batch[i].known->seconds = b->batch[i].seconds;
		b->batch[i].known->how = b->batch[i].how;
		if (!isinf(b->batch[i].seconds))
			hspmd_beam_insert(&b->successors, &b->batch[i], false);
	}
	return 0;
}
