/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts that beam searches begin with: pipelines that are alike, of a sequence that did well (candidates.c), as many as the inventory
 * allows. They leave devices over, or one runs a micro-batch more than the others, which wait for it. So fewer are tried, too, among which
 * micro-batches divide well; each then gets its part of what is left over as further stages. And the pipelines of the best plans, which may
 * differ, under either schedule. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "controller/solver/search/beam_search_internal.h"

#define FEWER 3     /* numbers of pipelines among which micro-batches divide well, for each sequence */
#define TOGETHER 64 /* drafts that several threads judge together */

/* The stages of one device class in a pipeline. */
struct block {
	int used, end, width; /* devices; the place after its last stage, and the width of that; 0: it has none */
};

static struct block block_of(const struct beam *b, const struct hspmd_stage_sequence *x, int device_class)
{
	struct block found = { 0 };
	for (int s = 0; s < x->stages; s++)
		if (b->t->submeshes[x->submesh[s]].device_class == device_class) {
			found.width = b->t->submeshes[x->submesh[s]].tp;
			found.used += found.width;
			found.end = s + 1;
		}
	return found;
}

static bool insert_stage(struct hspmd_stage_sequence *x, int at, int submesh)
{
	if (submesh < 0 || x->stages == HSPMD_STAGES_MAX)
		return false;
	memmove(x->submesh + at + 1, x->submesh + at, (size_t)(x->stages++ - at));
	x->submesh[at] = (unsigned char)submesh;
	return true;
}

/* Add to a pipeline what each of so many copies can have of the devices that they leave over: for each device class stages as wide as its
 * last one, then narrower ones. */
static void complete(const struct beam *b, int copies, struct hspmd_stage_sequence *x)
{
	for (int k = 0; k < b->t->device_classes->count; k++) {
		struct block own = block_of(b, x, k);
		int left = b->s->available[k] / copies - own.used;
		for (int width = own.width; width > 0; width--)
			while (left >= width && insert_stage(x, own.end, hspmd_beam_submesh(b->t, k, width)))
				left -= width;
	}
}

/* Copies of a pipeline. As many of them as possible get one more stage, of the device class that has most left over. */
static bool spread(const struct beam *b, int copies, const struct hspmd_stage_sequence *x, struct beam_draft *d)
{
	struct hspmd_stage_sequence longer = *x;
	int more = 0, at = 0;
	double most = 0;
	for (int k = 0; k < b->t->device_classes->count; k++) {
		struct block own = block_of(b, x, k);
		int stages = own.width ? (b->s->available[k] - copies * own.used) / own.width : 0;
		stages = stages < copies ? stages : copies;
		double rate = stages > 0 ? stages * b->t->submeshes[x->submesh[own.end - 1]].rate : 0;
		if (rate > most) {
			most = rate;
			more = stages;
			at = own.end;
		}
	}
	d->count = 0;
	if (more && !insert_stage(&longer, at, longer.submesh[at - 1]))
		return false;
	return hspmd_beam_add_copies(d, x, copies - more) && hspmd_beam_add_copies(d, &longer, more);
}

/* As many copies as the inventory allows. */
static int most_copies(const struct beam *b, const struct hspmd_stage_sequence *x)
{
	int use[HSPMD_DEVICE_CLASSES_MAX] = { 0 }, most = b->total;
	hspmd_beam_add_use(b, x, 1, use);
	for (int k = 0; k < b->t->device_classes->count; k++)
		if (use[k] && b->s->available[k] / use[k] < most)
			most = b->s->available[k] / use[k];
	return most;
}

/* The largest number of pipelines below this one of which each runs fewer micro-batches than if there were one pipeline less; 0: none. */
static int next_fewer(int total, int pipelines)
{
	int each = pipelines > 1 ? (total + pipelines - 2) / (pipelines - 1) : 0;
	return each ? (total + each - 1) / each : 0;
}

struct origins {
	struct beam *b;
	int count;
	double least; /* seconds of the best one */
	struct beam_draft *drafts;
	int waiting, together; /* drafts in the beam's batch that are not judged yet, and how many of them are judged together */
	bool short_of_memory;
};

/* The draft's step is not shorter. */
static double least_seconds(const struct beam *b, const struct beam_draft *d)
{
	double rate = 0;
	for (int g = 0; g < d->count; g++)
		for (int s = 0; s < d->sequence[g].stages; s++)
			rate += d->copies[g] * b->t->submeshes[d->sequence[g].submesh[s]].rate;
	return b->total / rate;
}

/* The place of the draft among those of so many pipelines; -1: it will not be the best of them, or is far behind. */
static int place_of(const struct origins *o, const struct beam_draft *d)
{
	int at = 0;
	while (at < o->count && hspmd_beam_pipelines(&o->drafts[at]) != hspmd_beam_pipelines(d))
		at++;
	double enough = at < o->count ? o->drafts[at].seconds : HSPMD_BEAM_FAR_BEHIND * o->least;
	return at == HSPMD_BEAM_ORIGINS_MAX || least_seconds(o->b, d) >= enough ? -1 : at;
}

/* Keep those of the drafts that wait that are the best ones of so many pipelines, by the estimate. */
static void keep_waiting(struct origins *o)
{
	struct beam_draft *drafts[TOGETHER];
	for (int i = 0; i < o->waiting; i++)
		drafts[i] = &o->b->batch[i];
	if (hspmd_beam_judge(o->b, drafts, o->waiting))
		o->short_of_memory = true;
	for (int i = 0; i < o->waiting && !o->short_of_memory; i++) {
		int at = place_of(o, drafts[i]);
		if (at < 0 || isinf(drafts[i]->seconds) || (at < o->count && drafts[i]->seconds >= o->drafts[at].seconds))
			continue;
		o->count += at == o->count;
		o->drafts[at] = *drafts[i];
		o->least = fmin(o->least, drafts[i]->seconds);
	}
	o->waiting = 0;
}

static void keep(struct origins *o, const struct beam_draft *d)
{
	if (o->short_of_memory || place_of(o, d) < 0)
		return;
	o->b->batch[o->waiting++] = *d;
	if (o->waiting == o->together)
		keep_waiting(o);
}

static int by_seconds(const void *x, const void *y)
{
	const struct beam_draft *a = x, *b = y;
	return a->seconds < b->seconds ? -1 : a->seconds > b->seconds;
}

static void keep_alike(struct origins *o, const struct hspmd_stage_sequence *x)
{
	struct beam_draft d = { .count = 1, .sequence = { *x }, .copies = { most_copies(o->b, x) } };
	if (d.copies[0] > 0)
		keep(o, &d);
}

static void keep_completed(struct origins *o, const struct hspmd_stage_sequence *x)
{
	int copies = most_copies(o->b, x) + 1;
	for (int n = 0; n < FEWER && (copies = next_fewer(o->b->total, copies)) > 0; n++) {
		struct hspmd_stage_sequence longer = *x;
		struct beam_draft d;
		complete(o->b, copies, &longer);
		if (spread(o->b, copies, &longer, &d))
			keep(o, &d);
	}
}

int hspmd_beam_origins(struct beam *b, const struct hspmd_beginning *from, enum beam_origins which, struct beam_draft *origins)
{
	/* One thread judges them one by one, as each that is kept excludes others. */
	struct origins o = { .b = b, .least = INFINITY, .drafts = origins, .together = hspmd_search_threads(b->s) > 1 ? TOGETHER : 1 };
	for (int i = 0; i < from->count; i++) {
		if (which == HSPMD_BEAM_ORIGINS_ALIKE)
			keep_alike(&o, &from->starts[i].sequence);
		else if (which == HSPMD_BEAM_ORIGINS_COMPLETED)
			keep_completed(&o, &from->starts[i].sequence);
	}
	for (int i = 0; which == HSPMD_BEAM_ORIGINS_PLANS && i < b->s->best_plans.count; i++) {
		struct beam_draft d;
		if (hspmd_beam_draft_of(b, b->s->best_plans.list[i].plan, &d))
			keep(&o, &d);
	}
	keep_waiting(&o);
	if (o.count)
		qsort(o.drafts, (size_t)o.count, sizeof *o.drafts, by_seconds);
	return o.short_of_memory ? -1 : o.count;
}
