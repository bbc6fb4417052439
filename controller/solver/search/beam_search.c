/* SPDX-License-Identifier: Apache-2.0 */
/* Plans with many stages: a beam search (Lowerre 1976) over drafts, first from the numbers of pipelines that promise most, then from the
 * best plans. How good a number of pipelines is shows only after some steps, and the estimate misjudges it by a fifth: so a few steps are
 * made from many, under either schedule, and more from the best of them.
 *
 * The layers and micro-batches of a draft's successors (beam_successors.c) are divided anew for both ways to place it, and it is judged by
 * the estimate (estimate.h), which takes a small part of the time of a simulation. The best ones are simulated, and the best of those
 * refined. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/search/beam_search_internal.h"

#define ROUNDS 5         /* each begins with the best plans of the round before */
#define BASES 8          /* plans that a round begins with */
#define BEAM 24          /* drafts that are kept */
#define SUCCESSORS 10    /* of a draft: those that are placed and timed */
#define EXPANDED 24      /* drafts whose successors are made, per round */
#define ORIGINS 12       /* numbers of pipelines from each of which a short search begins, per schedule and beginning; */
#define COMPLETED 5      /* ... and of those among which micro-batches divide well; */
#define KNOWN 5          /* ... and of those of the best plans */
#define EXPANDED_FIRST 1 /* drafts whose successors are made, from one such number; */
#define ORIGINS_BETTER 20 /* ... of so many numbers, which this shows to be best, ... */
#define EXPANDED_BETTER 3 /* ... so many more drafts'; */
#define ORIGINS_GOOD 10  /* ... of those that are best then, */
#define GOOD 1.1         /* ... and at most by this factor slower than the best plan, */
#define EXPANDED_GOOD 6  /* ... so many more */
#define BEHIND 1.02      /* successors are not made of drafts that are slower than the best one by this factor */
#define REFINED 2        /* plans refined per round; */
#define WORK_EACH 60     /* ... plans timed for each; */
#define NEAR 1.02        /* ... none that is slower than the best one by this factor */
#define FAR 1.1          /* a draft is not placed again whose plan is slower than the best one by this factor */
#define GAIN 1e-3        /* least relative gain for another round */
#define PLACE_NS 100e3   /* about what placing and timing a draft takes */

/* ---- plans */

/* A plan whose step takes as long is neither changed nor refined, and not placed again. */
static double of_use(const struct beam *b)
{
	if (b->s->request->limits.cost_weight > 0 || !b->placed.count)
		return INFINITY;
	return fmax(FAR * b->s->best_plans.list[0].objective, BEHIND * b->placed.drafts[0].objective);
}

/* Place a draft, unless an earlier search did so and its plan is far behind. *d gets the plan, if there is one. */
static int place(const struct beam *b, struct hspmd_search *view, struct beam_draft *d)
{
	struct hspmd_draft draft;
	bool full;
	if (d->known->objective > FAR * view->best_plans.list[0].objective)
		return 0;
	d->known->objective = INFINITY;
	if (!hspmd_beam_partition(b, view->thread, d, &draft) || hspmd_draft_assign_micro_batches(&draft, b->total))
		return 0;
	struct hspmd_plan *p = hspmd_draft_place(b->t, &draft, d->how, b->zero, &full);
	if (p && b->t->offload)
		hspmd_plan_offload_least(view, p);
	int rc = p ? hspmd_best_plans_level(view, p, of_use(b), &d->objective) : full ? 0 : -1;
	if (p && !rc)
		d->known->objective = d->objective;
	if (p && !rc && !isinf(d->objective))
		d->plan = p;
	else
		hspmd_plan_destroy(p);
	return rc;
}

static void clear(struct beam_list *l)
{
	for (int i = 0; i < l->count; i++)
		hspmd_plan_destroy(l->drafts[i].plan);
	l->count = 0;
}

struct placing {
	struct beam *b;
	int rc[SUCCESSORS];
};

static void place_one(void *context, struct hspmd_search *view, int64_t item)
{
	struct placing *x = context;
	x->rc[item] = hspmd_search_is_over(view) ? 0 : place(x->b, view, &x->b->successors.drafts[item]);
}

/* Judge the drafts considered, and place the best of them. */
static int place_all(struct beam *b)
{
	struct placing x = { .b = b };
	if (b->short_of_memory || hspmd_beam_judge_considered(b))
		return -1;
	int rc = hspmd_search_share(b->s, b->successors.count, PLACE_NS, place_one, &x);
	for (int i = 0; i < b->successors.count && !rc; i++) {
		rc = x.rc[i];
		if (b->successors.drafts[i].plan)
			hspmd_beam_insert(&b->placed, &b->successors.drafts[i], true);
		b->successors.drafts[i].plan = NULL;
	}
	clear(&b->successors);
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

/* If there is no time left to refine the best plan placed, it is kept as it is. */
static int keep_placed(struct hspmd_search *s, struct beam_list *placed)
{
	if (!placed->count || !hspmd_search_is_over(s))
		return 0;
	struct hspmd_plan *p = placed->drafts[0].plan;
	placed->drafts[0].plan = NULL;
	return p ? hspmd_best_plans_offer(s, p, NULL) : 0;
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
		if (p->schedule == first->schedule && p->zero_stage == first->zero_stage && hspmd_beam_draft_of(b, p, &d))
			hspmd_beam_consider(b, &d);
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

/* Search from the drafts that are among the successors, and from those that are placed. */
static int expand(struct beam *b, int expanded)
{
	int rc = place_all(b);
	for (int n = 0, i; n < expanded && !rc && (i = next_of(b)) >= 0; n++) {
		b->placed.drafts[i].expanded = true;
		struct beam_draft base = b->placed.drafts[i];
		hspmd_beam_expand(b, &base);
		rc = place_all(b);
	}
	return rc;
}

/* ---- the ground of a search */

static void ground_destroy(const struct hspmd_search *s, struct hspmd_beam_ground *g)
{
	for (int how = 0; g && how < HSPMD_PLACEMENT_COUNT; how++)
		hspmd_partition_memo_destroy(g->memos[how]);
	hspmd_search_tables_views_destroy(s, g ? g->views : NULL);
	hspmd_submesh_tables_destroy(g ? g->t : NULL);
	free(g ? g->known : NULL);
	free(g);
}

void hspmd_beam_grounds_clear(struct hspmd_search *s)
{
	while (s->beam_ground_count)
		ground_destroy(s, s->beam_grounds[--s->beam_ground_count]);
}

static struct hspmd_beam_ground *ground_new(struct hspmd_search *s, const struct hspmd_plan *like, enum hspmd_schedule schedule)
{
	struct hspmd_beam_ground *g = hspmd_calloc(1, sizeof *g);
	if (g)
		g->t = hspmd_submesh_tables_new(s->costs, s->device_classes, &s->caps, like->micro_batch, hspmd_draft_offload_of(like),
		                                NULL);
	for (int how = 0; g && how < HSPMD_PLACEMENT_COUNT; how++)
		g->memos[how] = hspmd_partition_memo_new();
	if (g)
		g->known = hspmd_calloc(2 * HSPMD_BEAM_KNOWN_MAX, sizeof *g->known);
	if (g && g->t)
		g->t->schedule = schedule;
	if (!g || !g->t || !g->memos[0] || !g->memos[1] || !g->known || !(g->views = hspmd_search_tables_views(s, g->t))) {
		ground_destroy(s, g);
		return NULL;
	}
	g->zero = like->zero_stage > 0;
	return g;
}

/* The ground for plans like this one in micro-batch, ZeRO and offload. NULL: memory. */
static struct hspmd_beam_ground *find_ground(struct hspmd_search *s, const struct hspmd_plan *like, enum hspmd_schedule schedule)
{
	for (int i = 0; i < s->beam_ground_count; i++) {
		struct hspmd_beam_ground *g = s->beam_grounds[i];
		if (g->t->micro_batch != like->micro_batch || g->t->schedule != schedule || g->zero != (like->zero_stage > 0) ||
		    g->t->offload != hspmd_draft_offload_of(like))
			continue;
		for (; i + 1 < s->beam_ground_count; i++)
			s->beam_grounds[i] = s->beam_grounds[i + 1];
		return s->beam_grounds[i] = g; /* that which was used last is destroyed last */
	}
	struct hspmd_beam_ground *g = ground_new(s, like, schedule);
	if (g && s->beam_ground_count == HSPMD_BEAM_GROUNDS) {
		ground_destroy(s, s->beam_grounds[0]);
		memmove(s->beam_grounds, s->beam_grounds + 1, (size_t)--s->beam_ground_count * sizeof(struct hspmd_beam_ground *));
	}
	if (g)
		s->beam_grounds[s->beam_ground_count++] = g;
	return g;
}

static void beam_free(struct beam *b)
{
	clear(&b->placed);
	free(b->successors.drafts);
	free(b->placed.drafts);
	free(b->batch);
	free(b->judging);
}

/* Prepare for drafts like the best plan in micro-batch, ZeRO and offload. Returns 0; 1 if it has no draft; -1 if memory runs out. */
static int beam_new(struct beam *b, struct hspmd_search *s, enum hspmd_schedule schedule)
{
	const struct hspmd_plan *first = s->best_plans.list[0].plan;
	*b = (struct beam){ .s = s };
	if (first->virtual_stages > 1 || first->zero_stage > 1 || first->global_batch % first->micro_batch)
		return 1;
	struct hspmd_beam_ground *ground = find_ground(s, first, schedule);
	b->total = first->global_batch / first->micro_batch;
	b->successors = (struct beam_list){ .most = SUCCESSORS, .drafts = hspmd_calloc(SUCCESSORS, sizeof *b->successors.drafts) };
	b->placed = (struct beam_list){ .most = BEAM, .drafts = hspmd_calloc(BEAM, sizeof *b->placed.drafts) };
	b->batch = hspmd_calloc(HSPMD_BEAM_BATCH, sizeof *b->batch);
	b->judging = hspmd_beam_judging_new();
	if (ground && b->successors.drafts && b->placed.drafts && b->batch && b->judging) {
		b->ground = ground;
		b->search = ++ground->searches;
		b->t = ground->t;
		b->zero = ground->zero;
		b->memos = ground->memos;
		return 0;
	}
	beam_free(b);
	return -1;
}

/* ---- other beginnings */

/* A number of pipelines, and what has been placed of the drafts that it leads to. */
struct origin {
	struct beam *of;
	struct beam_list placed;
};

static int explore(struct origin *o, int expanded, bool refined)
{
	struct beam *b = o->of;
	struct beam_list own = b->placed;
	b->placed = o->placed;
	int rc = expand(b, expanded);
	rc = rc || !refined ? rc : refine(b);
	o->placed = b->placed;
	b->placed = own;
	return rc;
}

static const int origins_max[] = {
	[HSPMD_BEAM_ORIGINS_ALIKE] = ORIGINS,
	[HSPMD_BEAM_ORIGINS_COMPLETED] = COMPLETED,
	[HSPMD_BEAM_ORIGINS_PLANS] = KNOWN,
};

struct origins {
	int count;
	struct origin *list;
};

/* Explore the drafts that promise most under the beam's schedule, and add them to the origins. */
static int explore_origins(struct beam *b, const struct hspmd_beginning *from, enum beam_origins which, struct origins *all)
{
	if (hspmd_search_is_over(b->s))
		return 0;
	struct beam_draft *drafts = hspmd_calloc(HSPMD_BEAM_ORIGINS_MAX, sizeof *drafts);
	int found = drafts ? hspmd_beam_origins(b, from, which, drafts) : -1, rc = found < 0 ? -1 : 0;
	for (int i = 0; i < found && i < origins_max[which] && !rc && drafts[i].seconds < HSPMD_BEAM_FAR_BEHIND * drafts[0].seconds; i++) {
		if (hspmd_search_is_over(b->s))
			break;
		struct origin *o = &all->list[all->count];
		*o = (struct origin){ b, { .most = BEAM, .drafts = hspmd_calloc(BEAM, sizeof *o->placed.drafts) } };
		if (!o->placed.drafts) {
			rc = -1;
			break;
		}
		all->count++;
		hspmd_beam_consider(b, &drafts[i]);
		rc = explore(o, EXPANDED_FIRST, false);
	}
	free(drafts);
	return rc;
}

static double best_of(const struct origin *o)
{
	return o->placed.count ? o->placed.drafts[0].objective : INFINITY;
}

static int by_best(const void *x, const void *y)
{
	double a = best_of(x), b = best_of(y);
	return a < b ? -1 : a > b;
}

/* Explore the origins under one schedule: those of the beginnings that are for it, then those of the best plans. Returns 0, or -1 if memory
 * runs out. */
static int explore_schedule(struct beam *b, const struct hspmd_beginning *from, int count, struct origins *all)
{
	int rc = 0;
	for (int i = 0; i < count && !rc; i++) {
		if (!(from[i].schedules & 1u << b->t->schedule))
			continue;
		rc = explore_origins(b, &from[i], HSPMD_BEAM_ORIGINS_ALIKE, all);
		rc = rc ? rc : explore_origins(b, &from[i], HSPMD_BEAM_ORIGINS_COMPLETED, all);
	}
	return rc ? rc : explore_origins(b, from, HSPMD_BEAM_ORIGINS_PLANS, all);
}

static void rank(struct origins *all)
{
	if (all->count)
		qsort(all->list, (size_t)all->count, sizeof *all->list, by_best);
}

/* Go on from the best of the origins, and further from the best of these (successive halving, Jamieson and Talwalkar 2016). */
static int go_on(struct hspmd_search *s, struct origins *all)
{
	int rc = 0;
	rank(all);
	for (int i = 0; i < all->count && i < ORIGINS_BETTER && !rc; i++)
		rc = explore(&all->list[i], EXPANDED_BETTER, false);
	rank(all);
	for (int i = 0; i < all->count && i < ORIGINS_GOOD && !rc && best_of(&all->list[i]) < GOOD * s->best_plans.list[0].objective; i++)
		rc = explore(&all->list[i], EXPANDED_GOOD, true);
	return rc;
}

/* Short searches from the most promising numbers of pipelines. */
static int search_origins(struct hspmd_search *s, const struct hspmd_beginning *from, int count)
{
	static const enum hspmd_schedule schedules[] = { HSPMD_SCHEDULE_1F1B, HSPMD_SCHEDULE_ZB_H1 };
	struct beam beams[2];
	size_t most = (size_t)2 * ((size_t)count * (ORIGINS + COMPLETED) + KNOWN);
	struct origins all = { .list = hspmd_calloc(most, sizeof *all.list) };
	int rc = all.list ? 0 : -1, used = 0;
	unsigned wanted = 0;
	for (int i = 0; i < count; i++)
		wanted |= from[i].schedules;
	for (int i = 0; i < 2 && !rc; i++)
		if (s->caps.schedules & wanted & 1u << schedules[i] && !(rc = beam_new(&beams[used], s, schedules[i])))
			rc = explore_schedule(&beams[used++], from, count, &all);
	rc = rc ? rc : go_on(s, &all);
	for (int i = 0; i < all.count; i++) {
		rc = rc ? rc : keep_placed(s, &all.list[i].placed);
		clear(&all.list[i].placed);
		free(all.list[i].placed.drafts);
	}
	while (used)
		beam_free(&beams[--used]);
	free(all.list);
	return rc < 0 ? -1 : 0;
}

static int search_round(struct hspmd_search *s)
{
	struct beam b;
	int rc = beam_new(&b, s, s->best_plans.list[0].plan->schedule);
	if (rc)
		return rc < 0 ? -1 : 0;
	begin(&b);
	rc = expand(&b, EXPANDED);
	rc = rc ? rc : refine(&b);
	rc = rc ? rc : keep_placed(s, &b.placed);
	beam_free(&b);
	return rc;
}

int hspmd_beam_search(struct hspmd_search *s, const struct hspmd_beginning *from, int count)
{
	int rc = s->best_plans.count ? search_origins(s, from, count) : 0;
	for (int round = 0; round < ROUNDS && !rc && s->best_plans.count && !hspmd_search_is_over(s); round++) {
		double before = s->best_plans.list[0].objective;
		rc = search_round(s);
		if (!(s->best_plans.list[0].objective < before * (1 - GAIN)))
			break;
	}
	return rc;
}
