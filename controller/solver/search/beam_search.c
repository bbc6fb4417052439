/* SPDX-License-Identifier: Apache-2.0 */
/* Plans with many stages: a beam search (Lowerre 1976) over drafts, which begins with those of the best plans.
 *
 * Candidates have stages of one width per device class, and equal parts of the devices (candidates.c). A draft's successors differ from it
 * in one place: in all copies of a pipeline, or in one or some of them,
 *
 * - two equal stages become one of twice the width, a stage becomes two of half the width, or its width is halved or doubled
 * - a stage is dropped or added, or goes to another pipeline
 * - two device classes that follow one another change places
 * - a pipeline is dropped or added, becomes two of half the width, or two become one
 *
 * so that stages of one class differ in width, and what does not divide evenly is used too. A successor's layers and micro-batches are
 * divided anew, and it is judged by the estimate (estimate.h), which takes a small part of the time of a simulation. The best ones are
 * simulated, and the best of those refined. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/fnv.h"
#include "controller/solver/search/estimate.h"
#include "controller/solver/search/search_internal.h"

#define ROUNDS 3       /* each begins with the best plans of the round before */
#define BASES 4        /* plans that a round begins with */
#define BEAM 24        /* drafts that are kept */
#define SUCCESSORS 16  /* of a draft: those that are placed and timed */
#define EXPANDED 16    /* drafts whose successors are made, per round */
#define BEHIND 1.02    /* not of drafts that are slower than the best one by this factor */
#define REFINED 4      /* plans refined per round */
#define WORK_EACH 60   /* plans timed per plan that is refined */
#define NEAR 1.02      /* of plans slower than the best one by this factor none is refined */
#define GAIN 1e-3      /* least relative gain for another round */
#define SEEN_MAX 16384 /* drafts that are looked at, per round */
#define ROUGHLY 2e-3   /* relative precision of a pipeline's period */

struct beam_draft {
	int count;
	struct hspmd_stage_sequence sequence[HSPMD_PIPELINE_GROUPS_MAX];
	int copies[HSPMD_PIPELINE_GROUPS_MAX];
	double seconds;   /* estimate */
	double objective; /* of the plan, which is the better one of those that it can be placed as */
	struct hspmd_plan *plan;
	bool expanded;
};

/* The best drafts, ascending by what they are judged by. */
struct beam_list {
	int count, most;
	struct beam_draft *drafts;
};

struct beam {
	struct hspmd_search *s;
	struct hspmd_submesh_tables *t;
	struct hspmd_layer_copies copies;
	struct hspmd_partition_memo *memo;
	int total;                   /* micro-batches */
	struct beam_list successors; /* of one draft, by the estimate */
	struct beam_list placed;     /* by the objective */
	uint64_t *seen;              /* fingerprints of drafts, open addressing; 0: free */
	int seen_count;
	bool short_of_memory;
};

/* ---- sequences */

static int submesh_of(const struct hspmd_submesh_tables *t, int device_class, int tp)
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

/* Number of stages from `at` on that are equal. */
static int run_length(const struct hspmd_stage_sequence *x, int at)
{
	int end = at + 1;
	while (end < x->stages && x->submesh[end] == x->submesh[at])
		end++;
	return end - at;
}

/* Replace `cut` stages from `at` on by `count` of a submesh. Returns false if that is no pipeline. */
static bool splice(const struct hspmd_stage_sequence *x, int at, int cut, int count, int submesh, struct hspmd_stage_sequence *out)
{
	int stages = x->stages - cut + count;
	if (stages < 1 || stages > HSPMD_STAGES_MAX || (count && submesh < 0))
		return false;
	*out = *x;
	out->stages = stages;
	memset(out->submesh + at, submesh, (size_t)count);
	memcpy(out->submesh + at + count, x->submesh + at + cut, (size_t)(x->stages - at - cut));
	return true;
}

/* All stages at `twice` or half their width. Returns false if one cannot be. */
static bool scale(const struct hspmd_submesh_tables *t, const struct hspmd_stage_sequence *x, bool twice, struct hspmd_stage_sequence *out)
{
	*out = *x;
	for (int s = 0; s < x->stages; s++) {
		const struct hspmd_submesh *u = &t->submeshes[x->submesh[s]];
		int to = !twice && u->tp % 2 ? -1 : submesh_of(t, u->device_class, twice ? 2 * u->tp : u->tp / 2);
		if (to < 0)
			return false;
		out->submesh[s] = (unsigned char)to;
	}
	return true;
}

static void add_use(const struct beam *b, const struct hspmd_stage_sequence *x, int times, int *use)
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

/* Returns true if the draft has been looked at before, or too many have been; marks it as looked at. */
static bool is_known(struct beam *b, const struct beam_draft *d)
{
	uint64_t what = fingerprint(d);
	size_t at = (size_t)what % (2 * SEEN_MAX);
	while (b->seen[at] && b->seen[at] != what)
		at = (at + 1) % (2 * SEEN_MAX);
	if (b->seen[at] || b->seen_count == SEEN_MAX)
		return true;
	b->seen[at] = what;
	b->seen_count++;
	return false;
}

static bool add_copies(struct beam_draft *d, const struct hspmd_stage_sequence *x, int copies)
{
	int g = 0;
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

static void remove_copies(struct beam_draft *d, int group, int copies)
{
	d->copies[group] -= copies;
	if (d->copies[group])
		return;
	d->count--;
	memmove(&d->sequence[group], &d->sequence[group + 1], (size_t)(d->count - group) * sizeof *d->sequence);
	memmove(&d->copies[group], &d->copies[group + 1], (size_t)(d->count - group) * sizeof *d->copies);
}

static bool within_inventory(const struct beam *b, const struct beam_draft *d)
{
	int use[HSPMD_DEVICE_CLASSES_MAX] = { 0 };
	for (int g = 0; g < d->count; g++)
		add_use(b, &d->sequence[g], d->copies[g], use);
	for (int k = 0; k < b->t->device_classes->count; k++)
		if (use[k] > b->s->available[k])
			return false;
	return true;
}

/* The best partition of a sequence. Returns false if it cannot hold the model. */
static bool partition_of(struct beam *b, const struct hspmd_stage_sequence *x, struct hspmd_pipeline_partition *out)
{
	int count;
	const struct hspmd_pipeline_partition *known = hspmd_partition_memo_find(b->memo, x, &count);
	if (known) {
		*out = *known;
	} else {
		out->sequence = *x;
		if (!hspmd_partition_layers(b->t, x, &b->copies, b->total, ROUGHLY, out))
			out->max_micro_batches = 0;
		b->short_of_memory = hspmd_partition_memo_add(b->memo, out, 1) || b->short_of_memory;
	}
	return out->max_micro_batches > 0;
}

/* Fill the partitions of the draft's pipelines. Returns false if one cannot hold the model. */
static bool partition_all(struct beam *b, const struct beam_draft *d, struct hspmd_draft *out)
{
	out->group_count = d->count;
	for (int g = 0; g < d->count; g++) {
		out->groups[g].copies = d->copies[g];
		if (!partition_of(b, &d->sequence[g], &out->groups[g].partition))
			return false;
	}
	return true;
}

/* Insert a draft after those that are not worse. A list that is full loses its last one. */
static void insert(struct beam_list *l, const struct beam_draft *d, bool by_objective)
{
	int at = l->count;
	while (at > 0 && (by_objective ? l->drafts[at - 1].objective > d->objective : l->drafts[at - 1].seconds > d->seconds))
		at--;
	if (l->count == l->most)
		hspmd_plan_destroy(at == l->most ? d->plan : l->drafts[--l->count].plan);
	if (at == l->most)
		return;
	memmove(&l->drafts[at + 1], &l->drafts[at], (size_t)(l->count++ - at) * sizeof *l->drafts);
	l->drafts[at] = *d;
}

/* Estimate a draft that has not been looked at yet, and keep it if it is among the best. */
static void consider(struct beam *b, struct beam_draft *d)
{
	struct hspmd_draft draft;
	struct hspmd_pipeline_mix mix = { .count = d->count };
	const struct beam_list *l = &b->successors;
	if (!d->count || !within_inventory(b, d) || is_known(b, d) || !partition_all(b, d, &draft))
		return;
	for (int g = 0; g < d->count; g++) {
		mix.partition[g] = &draft.groups[g].partition;
		mix.copies[g] = d->copies[g];
	}
	d->expanded = false;
	d->plan = NULL;
	d->seconds = hspmd_estimate_passes(&mix, b->total);
	if (l->count == l->most && d->seconds >= l->drafts[l->count - 1].seconds)
		return;
	d->seconds += hspmd_estimate_summing(b->t, &mix);
	if (!isinf(d->seconds))
		insert(&b->successors, d, false);
}

/* ---- successors */

/* Replace `from` copies of a group by `to` of another sequence. */
static void replace(struct beam *b, const struct beam_draft *base, int group, int from, int to, const struct hspmd_stage_sequence *x)
{
	struct beam_draft d = *base;
	remove_copies(&d, group, from);
	if (add_copies(&d, x, to))
		consider(b, &d);
}

/* Replace all copies of a group, one of them, and as many as spare devices are enough for. */
static void replace_some(struct beam *b, const struct beam_draft *base, int group, const struct hspmd_stage_sequence *x)
{
	int copies = base->copies[group], most = copies, left[HSPMD_DEVICE_CLASSES_MAX] = { 0 }, more[HSPMD_DEVICE_CLASSES_MAX] = { 0 };
	for (int g = 0; g < base->count; g++)
		add_use(b, &base->sequence[g], -base->copies[g], left);
	add_use(b, x, 1, more);
	add_use(b, &base->sequence[group], -1, more);
	for (int k = 0; k < b->t->device_classes->count; k++)
		if (more[k] > 0 && (left[k] + b->s->available[k]) / more[k] < most)
			most = (left[k] + b->s->available[k]) / more[k];
	if (most > 0)
		replace(b, base, group, most, most, x);
	if (most > 1)
		replace(b, base, group, 1, 1, x);
	if (most > 3)
		replace(b, base, group, most / 2, most / 2, x);
}

static void splice_some(struct beam *b, const struct beam_draft *base, int group, int at, int cut, int count, int submesh)
{
	struct hspmd_stage_sequence x;
	if (splice(&base->sequence[group], at, cut, count, submesh, &x))
		replace_some(b, base, group, &x);
}

/* Changes of a run of equal stages. */
static void change_run(struct beam *b, const struct beam_draft *base, int group, int at)
{
	const struct hspmd_stage_sequence *x = &base->sequence[group];
	int own = x->submesh[at], length = run_length(x, at), last = at + length - 1;
	const struct hspmd_submesh *u = &b->t->submeshes[own];
	int half = u->tp % 2 ? -1 : submesh_of(b->t, u->device_class, u->tp / 2), twice = submesh_of(b->t, u->device_class, 2 * u->tp);
	splice_some(b, base, group, last, 1, 0, own);
	splice_some(b, base, group, at, 0, 1, own);
	splice_some(b, base, group, last, 1, 2, half);
	splice_some(b, base, group, at, length, 2 * length, half);
	splice_some(b, base, group, last, 1, 1, half);
	splice_some(b, base, group, at, length, length, half);
	splice_some(b, base, group, at + length, 0, 1, half);
	splice_some(b, base, group, at, 1, 1, twice);
	splice_some(b, base, group, at, length, length, twice);
	if (length < 2)
		return;
	splice_some(b, base, group, at, 2, 1, twice);
	splice_some(b, base, group, at, length / 2 * 2, length / 2, twice);
}

/* Two runs of equal stages that follow one another change places. */
static void swap_runs(struct beam *b, const struct beam_draft *base, int group, int at)
{
	struct hspmd_stage_sequence x = base->sequence[group];
	int first = run_length(&x, at), second = at + first < x.stages ? run_length(&x, at + first) : 0;
	if (!second)
		return;
	memset(x.submesh + at, base->sequence[group].submesh[at + first], (size_t)second);
	memset(x.submesh + at + second, base->sequence[group].submesh[at], (size_t)first);
	replace(b, base, group, base->copies[group], base->copies[group], &x);
}

/* Stages of device classes that the pipeline does not have, at both ends. */
static void add_classes(struct beam *b, const struct beam_draft *base, int group)
{
	const struct hspmd_stage_sequence *x = &base->sequence[group];
	int own[HSPMD_DEVICE_CLASSES_MAX] = { 0 };
	add_use(b, x, 1, own);
	for (int u = 0; u < b->t->submesh_count; u++)
		if (!own[b->t->submeshes[u].device_class]) {
			splice_some(b, base, group, 0, 0, 1, u);
			splice_some(b, base, group, x->stages, 0, 1, u);
		}
}

/* A stage goes from one pipeline to another, next to those of its class, or to the end: in one copy of both, or as many as both have. */
static void move_stage(struct beam *b, const struct beam_draft *base, int from, int to, int at)
{
	const struct hspmd_stage_sequence *x = &base->sequence[from], *y = &base->sequence[to];
	int own = x->submesh[at], place = y->stages;
	struct hspmd_stage_sequence less, more;
	for (int s = 0; s < y->stages; s++)
		if (b->t->submeshes[y->submesh[s]].device_class == b->t->submeshes[own].device_class)
			place = s + 1;
	if (!splice(x, at, 1, 0, own, &less) || !splice(y, place, 0, 1, own, &more))
		return;
	int both = base->copies[from] < base->copies[to] ? base->copies[from] : base->copies[to];
	for (int n = both; n > 0; n = n > 1 ? 1 : 0) {
		struct beam_draft d = *base;
		/* The group with the higher number first, as removal moves those after it. */
		remove_copies(&d, from > to ? from : to, n);
		remove_copies(&d, from > to ? to : from, n);
		if (add_copies(&d, &less, n) && add_copies(&d, &more, n))
			consider(b, &d);
	}
}

static void change_pipelines(struct beam *b, const struct beam_draft *base, int group)
{
	struct hspmd_stage_sequence x;
	const struct hspmd_stage_sequence *own = &base->sequence[group];
	int copies = base->copies[group];
	replace(b, base, group, 1, 0, own);
	replace(b, base, group, 1, 2, own);
	if (scale(b->t, own, false, &x)) {
		replace(b, base, group, 1, 2, &x);
		replace(b, base, group, copies, 2 * copies, &x);
	}
	if (copies > 1 && scale(b->t, own, true, &x)) {
		replace(b, base, group, 2, 1, &x);
		replace(b, base, group, copies / 2 * 2, copies / 2, &x);
	}
}

static void expand(struct beam *b, const struct beam_draft *base)
{
	for (int g = 0; g < base->count && !b->short_of_memory && !hspmd_search_is_over(b->s); g++) {
		change_pipelines(b, base, g);
		add_classes(b, base, g);
		for (int at = 0; at < base->sequence[g].stages; at += run_length(&base->sequence[g], at)) {
			change_run(b, base, g, at);
			swap_runs(b, base, g, at);
			for (int other = 0; other < base->count; other++)
				if (other != g)
					move_stage(b, base, g, other, at);
		}
	}
}

/* ---- plans */

/* Returns false if a stage is no submesh, or pipelines of too many kinds. */
static bool draft_of_plan(const struct beam *b, const struct hspmd_plan *p, struct beam_draft *d)
{
	const int *class_of = b->s->device_classes->class_of_device;
	d->count = 0;
	for (int i = 0; i < p->pipeline_count; i++) {
		struct hspmd_stage_sequence x = { .stages = p->pipelines[i].stage_count };
		if (x.stages > HSPMD_STAGES_MAX || p->pipelines[i].micro_batch != b->t->micro_batch)
			return false;
		for (int s = 0; s < x.stages; s++) {
			const struct hspmd_stage *st = &p->pipelines[i].stages[s];
			int u = submesh_of(b->t, class_of[st->devices[0]], st->device_count);
			for (int k = 1; k < st->device_count; k++)
				u = class_of[st->devices[k]] == class_of[st->devices[0]] ? u : -1;
			if (u < 0 || st->shard_ratio || st->context != 1)
				return false;
			x.submesh[s] = (unsigned char)u;
		}
		if (!add_copies(d, &x, 1))
			return false;
	}
	return true;
}

/* Place a draft in every way, and time the plans. *d gets the best one, if there is any. */
static int place(struct beam *b, struct beam_draft *d)
{
	struct hspmd_draft draft;
	int rc = 0;
	if (!partition_all(b, d, &draft) || hspmd_draft_assign_micro_batches(&draft, b->total))
		return 0;
	for (int how = 0; how < HSPMD_PLACEMENT_COUNT && !rc; how++) {
		bool full;
		double objective = INFINITY;
		struct hspmd_plan *p = hspmd_draft_place(b->t, &draft, (enum hspmd_placement)how, b->copies.zero, &full);
		rc = p ? hspmd_best_plans_level(b->s, p, &objective) : full ? 0 : -1;
		if (!p || rc || isinf(objective) || (d->plan && objective >= d->objective)) {
			hspmd_plan_destroy(p);
			continue;
		}
		hspmd_plan_destroy(d->plan);
		d->plan = p;
		d->objective = objective;
	}
	return rc;
}

/* Place the successors. */
static int place_all(struct beam *b)
{
	int rc = 0;
	for (int i = 0; i < b->successors.count && !rc && !hspmd_search_is_over(b->s); i++) {
		rc = place(b, &b->successors.drafts[i]);
		if (b->successors.drafts[i].plan)
			insert(&b->placed, &b->successors.drafts[i], true);
	}
	b->successors.count = 0;
	return rc;
}

/* Refine the best plans. Those with the same objective are mostly equal. */
static int refine(struct beam *b)
{
	int rc = 0, refined = 0;
	double last = 0;
	for (int i = 0; i < b->placed.count && !rc && refined < REFINED && !hspmd_search_is_over(b->s); i++) {
		struct hspmd_plan *p = b->placed.drafts[i].plan;
		long budget = 0;
		if (b->placed.drafts[i].objective == last || b->placed.drafts[i].objective > NEAR * b->s->best_plans.list[0].objective)
			continue;
		last = b->placed.drafts[i].objective;
		b->placed.drafts[i].plan = NULL;
		for (int k = 0; k < p->pipeline_count; k++)
			budget += (long)WORK_EACH * p->pipelines[k].stage_count;
		rc = hspmd_local_search(b->s, p, &budget);
		refined++;
	}
	return rc;
}

/* Begin with the best plans that are like the best one in micro-batch, schedule and ZeRO. */
static void begin(struct beam *b)
{
	const struct hspmd_best_plans *best = &b->s->best_plans;
	const struct hspmd_plan *first = best->list[0].plan;
	for (int i = 0, bases = 0; i < best->count && bases < BASES; i++) {
		const struct hspmd_plan *p = best->list[i].plan;
		struct beam_draft d;
		int before = b->seen_count;
		if (p->schedule == first->schedule && p->zero_stage == first->zero_stage && draft_of_plan(b, p, &d))
			consider(b, &d);
		bases += b->seen_count > before;
	}
}

/* The best draft whose successors have not been made; -1: none. */
static int next_of(const struct beam *b)
{
	const struct beam_draft *d = b->placed.drafts;
	for (int i = 0; i < b->placed.count && d[i].objective < BEHIND * d[0].objective; i++)
		if (!d[i].expanded)
			return i;
	return -1;
}

static int search_round(struct hspmd_search *s)
{
	const struct hspmd_plan *first = s->best_plans.list[0].plan;
	struct beam b = { .s = s, .copies = { first->pipeline_count, first->zero_stage } };
	int rc = -1;
	if (first->virtual_stages > 1 || first->zero_stage > 1 || first->global_batch % first->micro_batch)
		return 0;
	b.total = first->global_batch / first->micro_batch;
	b.t = hspmd_submesh_tables_new(s->costs, s->device_classes, &s->caps, first->micro_batch, NULL);
	b.memo = hspmd_partition_memo_new();
	b.successors = (struct beam_list){ .most = SUCCESSORS, .drafts = hspmd_calloc(SUCCESSORS, sizeof *b.successors.drafts) };
	b.placed = (struct beam_list){ .most = BEAM, .drafts = hspmd_calloc(BEAM, sizeof *b.placed.drafts) };
	b.seen = hspmd_calloc(2 * SEEN_MAX, sizeof *b.seen);
	if (b.t && b.memo && b.successors.drafts && b.placed.drafts && b.seen) {
		b.t->schedule = first->schedule;
		begin(&b);
		rc = place_all(&b);
		for (int n = 0, i; n < EXPANDED && !rc && (i = next_of(&b)) >= 0; n++) {
			b.placed.drafts[i].expanded = true;
			struct beam_draft base = b.placed.drafts[i];
			expand(&b, &base);
			rc = b.short_of_memory ? -1 : place_all(&b);
		}
		rc = rc ? rc : refine(&b);
	}
	for (int i = 0; i < b.placed.count; i++)
		hspmd_plan_destroy(b.placed.drafts[i].plan);
	hspmd_submesh_tables_destroy(b.t);
	hspmd_partition_memo_destroy(b.memo);
	free(b.successors.drafts);
	free(b.placed.drafts);
	free(b.seen);
	return rc;
}

int hspmd_beam_search(struct hspmd_search *s)
{
	int rc = 0;
	for (int round = 0; round < ROUNDS && !rc && s->best_plans.count && !hspmd_search_is_over(s); round++) {
		double before = s->best_plans.list[0].objective;
		rc = search_round(s);
		if (!(s->best_plans.list[0].objective < before * (1 - GAIN)))
			break;
	}
	return rc;
}
