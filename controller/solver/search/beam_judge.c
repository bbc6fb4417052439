/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts judged by the estimate, many at a time, on all threads. A draft that lacks a partition waits for it: the partitions that drafts
 * lack are searched together, one per sequence at first, as it may be the same for other numbers of pipelines (partition_range.c); then the
 * drafts that waited are judged again. What is known of partitions is written between these calls only. */
#include <math.h>
#include <string.h>

#include "common/alloc.h"
#include "common/fnv.h"
#include "controller/solver/search/beam_search_internal.h"
#include "controller/solver/search/estimate.h"

#define ROUGHLY 2e-3     /* relative precision of a pipeline's period */
#define PARTITION_NS 8e3 /* about what a partition takes, */
#define JUDGE_NS 2e3     /* ... and a draft whose partitions are known */
#define TOGETHER 8       /* drafts that one item judges */
#define LACKED_MOST 1024 /* partitions that are searched together */
#define PLACES (4 * LACKED_MOST)

/* ---- partitions */

/* The partition of a sequence, if it is known, in a draft of so many pipelines; NULL: it is not. */
static const struct hspmd_pipeline_partition *known_partition(const struct beam *b, const struct hspmd_stage_sequence *x, int pipelines,
                                                              enum hspmd_placement how)
{
	return hspmd_partition_memo_of(b->memos[how], x, pipelines);
}

/* Search the best partition of a sequence in a draft of so many pipelines: under ZeRO each needs the more memory the fewer there are.
 * max_micro_batches 0: it cannot hold the model. */
static void search_partition(const struct beam *b, int thread, const struct hspmd_stage_sequence *x, int pipelines,
                             enum hspmd_placement how, struct hspmd_pipeline_partition *out)
{
	const struct hspmd_layer_copies copies = { .pipelines = pipelines, .zero = b->zero };
	struct hspmd_submesh_tables *t = b->ground->views[thread];
	out->sequence = *x;
	t->placement = how;
	if (!hspmd_partition_layers(t, x, &copies, b->total, ROUGHLY, out))
		out->max_micro_batches = 0;
}

bool hspmd_beam_partition(const struct beam *b, int thread, const struct beam_draft *d, struct hspmd_draft *out)
{
	int pipelines = hspmd_beam_pipelines(d);
	out->group_count = d->count;
	for (int g = 0; g < d->count; g++) {
		struct hspmd_pipeline_partition *own = &out->groups[g].partition;
		const struct hspmd_pipeline_partition *known = known_partition(b, &d->sequence[g], pipelines, d->how);
		if (known)
			*own = *known;
		else
			search_partition(b, thread, &d->sequence[g], pipelines, d->how, own);
		out->groups[g].copies = d->copies[g];
		if (own->max_micro_batches <= 0)
			return false;
	}
	return true;
}

/* A partition that drafts lack. */
struct lacked {
	enum hspmd_placement how;
	int pipelines;
	struct hspmd_pipeline_partition partition;
};

/* Drafts that are judged together. */
struct hspmd_beam_judging {
	struct beam *b;
	int count; /* drafts that are not judged yet */
	struct beam_draft *drafts[HSPMD_BEAM_BATCH];
	bool waits[HSPMD_BEAM_BATCH]; /* for partitions */
	int lacked_count;
	struct lacked lacked[LACKED_MOST];
	short place[PLACES]; /* by sequence and placement: index of what is lacked, and 1; 0: free */
};

struct hspmd_beam_judging *hspmd_beam_judging_new(void)
{
	return hspmd_calloc(1, sizeof(struct hspmd_beam_judging));
}

/* Note that a partition is lacked, unless one of the sequence is already. */
static void note_lacked(struct hspmd_beam_judging *j, const struct hspmd_stage_sequence *x, int pipelines, enum hspmd_placement how)
{
	size_t stages = (size_t)x->stages, at = ((size_t)hspmd_fnv1a(x->submesh, stages) * HSPMD_PLACEMENT_COUNT + how) % PLACES;
	for (; j->place[at]; at = (at + 1) % PLACES) {
		const struct lacked *l = &j->lacked[j->place[at] - 1];
		if (l->how == how && l->partition.sequence.stages == x->stages &&
		    !memcmp(l->partition.sequence.submesh, x->submesh, stages))
			return;
	}
	if (j->lacked_count == LACKED_MOST)
		return;
	struct lacked *l = &j->lacked[j->lacked_count++];
	j->place[at] = (short)j->lacked_count;
	l->how = how;
	l->pipelines = pipelines;
	l->partition.sequence = *x;
}

static void note_all_lacked(struct hspmd_beam_judging *j, const struct beam_draft *d)
{
	int pipelines = hspmd_beam_pipelines(d);
	for (int how = 0; how < HSPMD_PLACEMENT_COUNT; how++)
		for (int g = 0; g < d->count; g++)
			if (!known_partition(j->b, &d->sequence[g], pipelines, (enum hspmd_placement)how))
				note_lacked(j, &d->sequence[g], pipelines, (enum hspmd_placement)how);
}

static void search_lacked(void *context, struct hspmd_search *view, int64_t item)
{
	struct hspmd_beam_judging *j = context;
	struct lacked *l = &j->lacked[item];
	const struct hspmd_stage_sequence sequence = l->partition.sequence;
	search_partition(j->b, view->thread, &sequence, l->pipelines, l->how, &l->partition);
}

/* Search the partitions that drafts wait for. Returns 0, or -1 if memory runs out. */
static int search_all_lacked(struct hspmd_beam_judging *j)
{
	j->lacked_count = 0;
	memset(j->place, 0, sizeof j->place);
	for (int i = 0; i < j->count; i++)
		note_all_lacked(j, j->drafts[i]);
	if (hspmd_search_share(j->b->s, j->lacked_count, PARTITION_NS, search_lacked, j))
		return -1;
	for (int i = 0; i < j->lacked_count; i++)
		if (hspmd_partition_memo_add_last(j->b->memos[j->lacked[i].how], &j->lacked[i].partition, j->lacked[i].pipelines))
			return -1;
	return 0;
}

/* ---- drafts */

/* Seconds of the draft if it is placed in this way, by the estimate; NAN: it waits for partitions. */
static double estimate(const struct beam *b, int thread, const struct beam_draft *d, enum hspmd_placement how)
{
	struct hspmd_pipeline_partition own[HSPMD_PIPELINE_GROUPS_MAX];
	struct hspmd_pipeline_mix mix = { .count = d->count };
	bool keeps = !hspmd_partition_memo_is_full(b->memos[how]), waits = false;
	int pipelines = hspmd_beam_pipelines(d);
	for (int g = 0; g < d->count; g++) {
		const struct hspmd_pipeline_partition *x = known_partition(b, &d->sequence[g], pipelines, how);
		if (!x && !keeps) {
			search_partition(b, thread, &d->sequence[g], pipelines, how, &own[g]);
			x = &own[g];
		}
		if (x && x->max_micro_batches <= 0)
			return INFINITY;
		waits = waits || !x;
		mix.partition[g] = x;
		mix.copies[g] = d->copies[g];
	}
	return waits ? NAN : hspmd_estimate_passes(&mix, b->total) + hspmd_estimate_summing(b->t, &mix, how, b->zero);
}

/* Set the draft's estimate, and how it is placed. Returns false if it waits for partitions. */
static bool judge(const struct beam *b, int thread, struct beam_draft *d)
{
	bool waits = false;
	d->expanded = false;
	d->plan = NULL;
	d->seconds = INFINITY;
	for (int how = 0; how < HSPMD_PLACEMENT_COUNT; how++) {
		double seconds = estimate(b, thread, d, (enum hspmd_placement)how);
		waits = waits || isnan(seconds);
		if (seconds < d->seconds) {
			d->seconds = seconds;
			d->how = (enum hspmd_placement)how;
		}
	}
	return !waits;
}

static void judge_some(void *context, struct hspmd_search *view, int64_t item)
{
	struct hspmd_beam_judging *j = context;
	for (int i = (int)item * TOGETHER; i < j->count && i < ((int)item + 1) * TOGETHER; i++)
		j->waits[i] = !judge(j->b, view->thread, j->drafts[i]);
}

int hspmd_beam_judge(struct beam *b, struct beam_draft *const *drafts, int count)
{
	struct hspmd_beam_judging *j = b->judging;
	j->b = b;
	j->count = count;
	memcpy(j->drafts, drafts, (size_t)count * sizeof *drafts);
	while (j->count) {
		int waiting = 0;
		if (hspmd_search_share(b->s, (j->count + TOGETHER - 1) / TOGETHER, TOGETHER * JUDGE_NS, judge_some, j))
			return -1;
		for (int i = 0; i < j->count; i++)
			if (j->waits[i])
				j->drafts[waiting++] = j->drafts[i];
		j->count = waiting;
		if (waiting && search_all_lacked(j))
			return -1;
	}
	return 0;
}
