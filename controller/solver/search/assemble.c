/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts: sets of candidates that the cluster's inventory of devices allows.
 *
 * If there are few candidates and devices, every set of candidates is tried. Otherwise each candidate in turn is the base, as many times
 * as the inventory allows, and the rest of the inventory is filled with the candidates that add most: by dynamic programming over the
 * inventory if it has few states (a knapsack with several weights), otherwise greedily. Devices may be left over: a device that would
 * only slow down the others stays spare.
 *
 * A set is ranked by the time that its pipelines need for the batch, m micro-batches taking fill_drain_s + (m - 1) period_s, plus the
 * least time that summing the gradients can take; the best sets are placed on devices and timed by the simulator. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/search/amounts.h"
#include "controller/solver/search/estimate.h"
#include "controller/solver/search/search_internal.h"

#define SETS_MAX 20000          /* most sets tried if all are tried */
#define SETS_CANDIDATES 400     /* up to so many candidates that is done */
#define WORK_MAX 2000000        /* most states x candidates of the dynamic program */
#define WORK_FEW 400000         /* up to so many, the least time is searched with it, ... */
#define PRECISELY 2e-3          /* ... with this relative precision */
#define DRAFTS_MAX 400          /* drafts kept to be timed */
#define TIMED_MAX 8000          /* stages timed per micro-batch */
#define THOROUGH 10             /* factor on it if all sequences were tried: there are few devices */
#define SEEN_MAX (1 << 17)      /* size of the table of combinations that prevents keeping one twice; it is filled to at most a half */
#define TIMED_MIN 24            /* plans of the most promising one's size that are timed, however large they are */
#define HINDSIGHT 0.97          /* estimates may be too long by this factor */
#define REBALANCE_WORK_MAX 2048 /* up to so many micro-batches x stages^2, boundaries are chosen by simulation */
#define REFINED_SLOTS 4093
#define EXACTLY 1e-7 /* relative precision of a partition that is timed */
#define ROUNDING 1e-9
#define TARGET 1.15  /* factor over the least conceivable step time, for the step time that leftovers are filled for */

struct combination {
	int count;
	int candidate[HSPMD_PIPELINE_GROUPS_MAX], copies[HSPMD_PIPELINE_GROUPS_MAX];
	double pipelines_s, seconds; /* without and with summing the gradients */
};

/* Candidates that combinations are filled with, the most efficient first, apart from all else about them: every base looks through them. */
struct fillers {
	int count, *candidate;
	unsigned *classes; /* bit k: uses devices of device class k */
};

/* What a combination of a candidate is bounded by. */
struct rate {
	double per_s, ahead; /* micro-batches per second; and how many it would have run by the time that it has filled and drained */
	double fill_drain_s;
};

/* A candidate as the dynamic program needs it. */
struct item {
	int candidate, capacity; /* capacity: micro-batches that it can run */
	size_t step;             /* states by which the inventory without it is before the one with it */
	struct hspmd_amounts use;
};

/* A candidate's partition for m micro-batches (refined()). */
struct refined {
	bool used;
	int candidate, m;
	struct hspmd_pipeline_partition partition;
};

struct assembly {
	struct hspmd_search *s;
	struct hspmd_submesh_tables *t;
	const struct hspmd_candidates *l;
	int total, pipelines; /* micro-batches per step; most pipelines that there may be */
	bool zero;
	int combination_count, combinations_max;
	struct combination *combinations; /* a heap with the slowest on top */
	uint64_t *seen;                   /* fingerprints of combinations, open addressing; 0: free */
	int seen_count, sets, sets_max;
	/* the dynamic program: states of the inventory in mixed radix */
	size_t states, stride[HSPMD_DEVICE_CLASSES_MAX];
	int *value, *last;       /* per state: micro-batches that can be run; the candidate added last, -1: none */
	struct item *items;      /* candidates that it may add */
	int pairs;               /* of device classes */
	struct rate *rates;      /* per candidate */
	struct fillers fillers;  /* if there is no such program */
	struct refined *refined; /* the last ones, each in one slot */
};

/* ---- estimates */

/* Sets the combination's seconds without summing; INFINITY if its pipelines cannot run the batch, or are too many. */
static void estimate_passes(const struct assembly *a, struct combination *k, struct hspmd_pipeline_mix *mix)
{
	long long pipelines = 0;
	mix->count = k->count;
	for (int i = 0; i < k->count; i++) {
		mix->partition[i] = &a->l->candidates[k->candidate[i]].partition;
		mix->copies[i] = k->copies[i];
		pipelines += k->copies[i];
	}
	k->pipelines_s = pipelines > a->pipelines ? INFINITY : hspmd_estimate_passes(mix, a->total);
}

/* Returns true if sums of rates show that the combination's pipelines need at least so many seconds, without what rounding may add. Most
 * combinations do. */
static bool takes_at_least(const struct assembly *a, const struct combination *k, double seconds)
{
	double per_s = 0, ahead = 0, longest = 0;
	for (int i = 0; i < k->count; i++) {
		const struct rate *r = &a->rates[k->candidate[i]];
		per_s += k->copies[i] * r->per_s;
		ahead += k->copies[i] * r->ahead;
		longest = r->fill_drain_s > longest ? r->fill_drain_s : longest;
	}
	return longest * (1 - ROUNDING) >= seconds || (a->total + ahead) * (1 - ROUNDING) >= seconds * per_s;
}

/* ---- the best combinations */

static void sink(struct assembly *a, int i)
{
	for (;;) {
		int largest = i;
		for (int child = 2 * i + 1; child <= 2 * i + 2 && child < a->combination_count; child++)
			if (a->combinations[child].seconds > a->combinations[largest].seconds)
				largest = child;
		if (largest == i)
			return;
		struct combination swap = a->combinations[i];
		a->combinations[i] = a->combinations[largest];
		a->combinations[largest] = swap;
		i = largest;
	}
}

/* A number that is equal for the same candidates with the same multiplicities, in any order (a sum of splitmix64, Steele et al.,
 * OOPSLA'14); two different sets collide with probability 2^-64. */
static uint64_t fingerprint(const struct combination *k)
{
	uint64_t sum = 0;
	for (int i = 0; i < k->count; i++) {
		uint64_t z = ((uint64_t)k->candidate[i] << 20) + (uint64_t)k->copies[i] + 0x9e3779b97f4a7c15u;
		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
		z = (z ^ z >> 27) * 0x94d049bb133111ebu;
		sum += z ^ z >> 31;
	}
	return sum ? sum : 1;
}

/* Returns true if this set has been kept before, and marks it as kept. */
static bool is_known(struct assembly *a, const struct combination *k)
{
	uint64_t what = fingerprint(k);
	size_t at = (size_t)what % SEEN_MAX;
	while (a->seen[at] && a->seen[at] != what)
		at = (at + 1) % SEEN_MAX;
	if (a->seen[at] || a->seen_count >= SEEN_MAX / 2)
		return a->seen[at] != 0;
	a->seen[at] = what;
	a->seen_count++;
	return false;
}

static void consider(struct assembly *a, struct combination *k)
{
	struct hspmd_pipeline_mix mix;
	double enough_s = a->combination_count == a->combinations_max ? a->combinations[0].seconds : INFINITY;
	if (takes_at_least(a, k, fmin(a->s->best_s / HINDSIGHT, enough_s)))
		return;
	estimate_passes(a, k, &mix);
	if (k->pipelines_s * HINDSIGHT >= a->s->best_s ||
	    (a->combination_count == a->combinations_max && k->pipelines_s >= a->combinations[0].seconds))
		return;
	if (is_known(a, k))
		return;
	k->seconds = k->pipelines_s + hspmd_estimate_summing(a->t, &mix, HSPMD_PLACE_STAGES, a->zero);
	if (isinf(k->seconds))
		return;
	if (a->combination_count == a->combinations_max) {
		if (k->seconds >= a->combinations[0].seconds)
			return;
		a->combinations[0] = *k;
		sink(a, 0);
		return;
	}
	int i = a->combination_count++;
	a->combinations[i] = *k;
	for (; i > 0 && a->combinations[(i - 1) / 2].seconds < a->combinations[i].seconds; i = (i - 1) / 2) {
		struct combination swap = a->combinations[i];
		a->combinations[i] = a->combinations[(i - 1) / 2];
		a->combinations[(i - 1) / 2] = swap;
	}
}

static int by_seconds(const void *x, const void *y)
{
	const struct combination *a = x, *b = y;
	return a->seconds < b->seconds ? -1 : a->seconds > b->seconds;
}

/* ---- all sets */

static void take(const struct hspmd_pipeline_candidate *c, int *inventory, int times)
{
	for (int k = 0; k < HSPMD_DEVICE_CLASSES_MAX; k++)
		inventory[k] -= times * c->use[k];
}

/* Those of the items listed that are within an inventory, in order. Returns their number. */
static int items_within(const struct assembly *a, const int *list, int count, const struct hspmd_amounts *inventory, int *out)
{
	int within = 0;
	for (int i = 0; i < count; i++) {
		out[within] = list[i];
		within += hspmd_amounts_within(&a->items[list[i]].use, inventory, a->pairs);
	}
	return within;
}

/* Try every set that continues with the items listed, all of which are within the inventory; each is a combination of its own that leaves
 * the rest of the inventory spare. Behind the list there is room for a list of each level to come. */
static void all_sets(struct assembly *a, int *list, int count, const struct hspmd_amounts *inventory, int depth, struct combination *k)
{
	for (int i = 0; i < count && a->sets < a->sets_max && depth < a->pipelines; i++) {
		const struct item *x = &a->items[list[i]];
		bool more = k->count && k->candidate[k->count - 1] == x->candidate;
		if (!more && k->count == HSPMD_PIPELINE_GROUPS_MAX)
			continue;
		if (!more) {
			k->candidate[k->count] = x->candidate;
			k->copies[k->count++] = 0;
		}
		k->copies[k->count - 1]++;
		const struct hspmd_amounts left = hspmd_amounts_without(inventory, &x->use);
		a->sets++;
		consider(a, k);
		all_sets(a, list + count, items_within(a, list + i, count - i, &left, list + count), &left, depth + 1, k);
		if (--k->copies[k->count - 1] == 0)
			k->count--;
	}
}

/* Try all sets of candidates. */
static int from_all_sets(struct assembly *a, const int *order)
{
	const struct hspmd_amounts inventory = hspmd_amounts_of(a->s->available);
	struct combination k = { 0 };
	int devices = 0, least = INT_MAX, count = a->l->count;
	for (int c = 0; c < a->t->device_classes->count; c++)
		devices += a->s->available[c];
	for (int i = 0; i < count; i++) {
		const struct hspmd_pipeline_candidate *c = &a->l->candidates[order[i]];
		int use = 0;
		for (int n = 0; n < a->t->device_classes->count; n++)
			use += c->use[n];
		least = use < least ? use : least;
		a->items[i] = (struct item){ .candidate = order[i], .use = hspmd_amounts_of(c->use) };
	}
	/* All candidates, those that the inventory has, and one list per pipeline; what is written behind a list may be one longer than
	 * it. */
	int *lists = hspmd_calloc((size_t)count * (size_t)(devices / least + 3) + 1, sizeof *lists);
	if (!lists)
		return -1;
	for (int i = 0; i < count; i++)
		lists[i] = i;
	all_sets(a, lists + count, items_within(a, lists, count, &inventory, lists + count), &inventory, 0, &k);
	free(lists);
	return 0;
}

/* ---- base and rest */

/* Returns true if the dynamic program would never add item y because of x: x uses no more devices and runs as many micro-batches. Of two
 * that are equal in both the first one is added. */
static bool replaces(const struct assembly *a, const struct item *x, const struct item *y, bool first)
{
	return (first ? x->capacity >= y->capacity : x->capacity > y->capacity) && hspmd_amounts_within(&x->use, &y->use, a->pairs);
}

/* The candidates that can run a micro-batch in `seconds` and that no other one replaces. Returns their number. */
static int find_items(struct assembly *a, const int *order, int count, double seconds)
{
	int items = 0;
	for (int i = 0; i < count; i++) {
		const struct hspmd_pipeline_candidate *c = &a->l->candidates[order[i]];
		struct item x = { order[i], hspmd_estimate_capacity(&c->partition, seconds), 0, hspmd_amounts_of(c->use) };
		bool replaced = !x.capacity;
		for (int k = 0; k < items && !replaced; k++)
			replaced = replaces(a, &a->items[k], &x, true);
		if (replaced)
			continue;
		for (int k = 0; k < a->t->device_classes->count; k++)
			x.step += (size_t)c->use[k] * a->stride[k];
		int kept = 0;
		for (int k = 0; k < items; k++)
			if (!replaces(a, &x, &a->items[k], false))
				a->items[kept++] = a->items[k];
		a->items[kept] = x;
		items = kept + 1;
	}
	return items;
}

/* For every state of the inventory, compute the most micro-batches that candidates can run in `seconds`. */
static void programme(struct assembly *a, const int *order, int count, double seconds)
{
	int device_classes = a->t->device_classes->count, inventory[HSPMD_DEVICE_CLASSES_MAX] = { 0 };
	int items = find_items(a, order, count, seconds);
	for (size_t state = 0; state < a->states; state++) {
		const struct hspmd_amounts there = hspmd_amounts_of(inventory);
		int most = 0, last = -1;
		for (int i = 0; i < items; i++) {
			const struct item *x = &a->items[i];
			if (!hspmd_amounts_within(&x->use, &there, a->pairs))
				continue;
			int done = a->value[state - x->step] + x->capacity;
			last = done > most ? x->candidate : last;
			most = done > most ? done : most;
		}
		a->value[state] = most;
		a->last[state] = last;
		for (int k = 0; k < device_classes && ++inventory[k] > a->s->available[k]; k++)
			inventory[k] = 0;
	}
}

static bool add_group(struct combination *k, int candidate, int copies)
{
	for (int i = 0; i < k->count; i++)
		if (k->candidate[i] == candidate) {
			k->copies[i] += copies;
			return true;
		}
	if (k->count == HSPMD_PIPELINE_GROUPS_MAX)
		return false;
	k->candidate[k->count] = candidate;
	k->copies[k->count++] = copies;
	return true;
}

static void fill_by_programme(const struct assembly *a, const int *inventory, struct combination *k)
{
	size_t state = 0;
	for (int i = 0; i < a->t->device_classes->count; i++)
		state += (size_t)inventory[i] * a->stride[i];
	while (a->last[state] >= 0 && add_group(k, a->last[state], 1))
		for (int i = 0, candidate = a->last[state]; i < a->t->device_classes->count; i++)
			state -= (size_t)a->l->candidates[candidate].use[i] * a->stride[i];
}

/* Returns how many of a candidate the inventory allows, at most `most`. */
static int copies_in(const struct assembly *a, const struct hspmd_pipeline_candidate *c, const int *inventory, int most)
{
	for (int k = 0; k < a->t->device_classes->count; k++)
		if (c->use[k] && inventory[k] / c->use[k] < most)
			most = inventory[k] / c->use[k];
	return most;
}

static unsigned classes_left(const struct assembly *a, const int *inventory)
{
	unsigned left = 0;
	for (int k = 0; k < a->t->device_classes->count; k++)
		left |= inventory[k] > 0 ? 1u << k : 0;
	return left;
}

static void fill_greedily(const struct assembly *a, const struct fillers *f, int *inventory, struct combination *k)
{
	unsigned left = classes_left(a, inventory);
	for (int i = 0; i < f->count && left && k->count < HSPMD_PIPELINE_GROUPS_MAX; i++) {
		if (f->classes[i] & ~left)
			continue;
		const struct hspmd_pipeline_candidate *c = &a->l->candidates[f->candidate[i]];
		int copies = copies_in(a, c, inventory, INT_MAX);
		if (copies > 0 && add_group(k, f->candidate[i], copies)) {
			take(c, inventory, copies);
			left = classes_left(a, inventory);
		}
	}
}

/* Write the candidates that can run a micro-batch in `seconds`, in `order`: those that the rest of an inventory is filled with. */
static void find_fillers(struct assembly *a, const int *order, int count, double seconds)
{
	struct fillers *f = &a->fillers;
	f->count = 0;
	for (int i = 0; i < count; i++) {
		const struct hspmd_pipeline_candidate *c = &a->l->candidates[order[i]];
		if (hspmd_estimate_capacity(&c->partition, seconds) < 1)
			continue;
		f->candidate[f->count] = order[i];
		f->classes[f->count++] = classes_left(a, c->use);
	}
}

/* Use each candidate in turn as the base as many times as the inventory allows (or, if there are few candidates, every number of times)
 * and fill the rest; and use it once alone, for nodes that have no link between them. */
static void from_bases(struct assembly *a, const int *order, int count, double seconds)
{
	if (!a->value)
		find_fillers(a, order, count, seconds);
	for (int i = 0; i < a->l->count; i++) {
		const struct hspmd_pipeline_candidate *c = &a->l->candidates[i];
		int most = copies_in(a, c, a->s->available, a->pipelines);
		struct combination alone = { .count = 1, .candidate = { i }, .copies = { 1 } };
		consider(a, &alone);
		for (int copies = most; copies > 0 && (copies == most || a->l->exhaustive); copies--) {
			struct combination k = { .count = 1, .candidate = { i }, .copies = { copies } };
			int inventory[HSPMD_DEVICE_CLASSES_MAX];
			consider(a, &k);
			memcpy(inventory, a->s->available, sizeof inventory);
			take(c, inventory, copies);
			if (a->value)
				fill_by_programme(a, inventory, &k);
			else
				fill_greedily(a, &a->fillers, inventory, &k);
			if (k.count > 1 || k.copies[0] > copies)
				consider(a, &k);
		}
	}
}

/* The least time in which the candidates can run the batch, by the dynamic program; INFINITY: more than `most`. */
static double least_seconds(struct assembly *a, const int *order, int count, double least, double most)
{
	double found = INFINITY, longest = 1e6 * least;
	while (isinf(most) ? least < longest : most - least > PRECISELY * most) {
		double middle = isinf(most) ? 2 * least : (least + most) / 2;
		programme(a, order, count, middle);
		if (a->value[a->states - 1] >= a->total)
			found = most = middle;
		else
			least = middle;
	}
	return found;
}

/* ---- timing */

static long stages_of(const struct assembly *a, const struct combination *k)
{
	long stages = 0;
	for (int g = 0; g < k->count; g++)
		stages += (long)k->copies[g] * a->l->candidates[k->candidate[g]].partition.sequence.stages;
	return stages;
}

/* The partition of a candidate that is timed: exact if m is 0, otherwise adapted to m micro-batches. Many combinations have the same
 * candidates. */
static const struct hspmd_pipeline_partition *refined(struct assembly *a, int candidate, int m)
{
	const struct hspmd_pipeline_candidate *c = &a->l->candidates[candidate];
	size_t at = ((size_t)candidate * 31 + (size_t)m) % REFINED_SLOTS;
	struct refined *r = &a->refined[at];
	if (r->used && r->candidate == candidate && r->m == m)
		return &r->partition;
	struct hspmd_pipeline_partition partition = m ? *refined(a, candidate, 0) : c->partition;
	if (m)
		hspmd_partition_rebalance(a->t, &c->copies, m, &partition);
	else
		hspmd_partition_layers(a->t, &c->partition.sequence, &c->copies, c->partition.max_micro_batches, EXACTLY, &partition);
	*r = (struct refined){ true, candidate, m, partition };
	return &r->partition;
}

/* Adapt each partition to the micro-batches that its pipeline runs, then distribute the micro-batches again; not if that is much work and
 * fill and drain are a small part of the step. */
static int rebalance(struct assembly *a, const struct combination *k, struct hspmd_draft *d)
{
	bool any = false;
	for (int g = 0; g < d->group_count; g++) {
		int m = d->groups[g].parts + (d->groups[g].extra > 0), stages = d->groups[g].partition.sequence.stages;
		if (stages < 2 || m > HSPMD_FEW_MICRO_BATCHES * stages || m * stages * stages > REBALANCE_WORK_MAX)
			continue;
		d->groups[g].partition = *refined(a, k->candidate[g], m);
		any = true;
	}
	return any ? hspmd_draft_assign_micro_batches(d, a->total) : 0;
}

static int time_combinations(struct assembly *a)
{
	qsort(a->combinations, (size_t)a->combination_count, sizeof *a->combinations, by_seconds);
	long budget = TIMED_MAX * (a->l->exhaustive ? THOROUGH : 1);
	if (a->combination_count)
		budget = budget > TIMED_MIN * stages_of(a, &a->combinations[0]) ? budget : TIMED_MIN * stages_of(a, &a->combinations[0]);
	for (int i = 0; i < a->combination_count && budget > 0 && !hspmd_search_is_over(a->s); i++) {
		const struct combination *k = &a->combinations[i];
		struct hspmd_draft d = { .group_count = k->count };
		if (k->pipelines_s * HINDSIGHT >= a->s->best_s)
			continue;
		budget -= stages_of(a, k);
		for (int g = 0; g < k->count; g++) {
			d.groups[g] = (struct hspmd_pipeline_group){ .partition = *refined(a, k->candidate[g], 0), .copies = k->copies[g] };
		}
		int rc = hspmd_draft_assign_micro_batches(&d, a->total);
		if (!rc)
			rc = rebalance(a, k, &d);
		if (rc < 0 || (!rc && hspmd_best_plans_try(a->s, a->t, &d, a->zero)))
			return -1;
	}
	return 0;
}

static int prepare_programme(struct assembly *a, int *count)
{
	a->states = 1;
	for (int k = 0; k < a->t->device_classes->count; k++) {
		a->stride[k] = a->states;
		a->states *= (size_t)a->s->available[k] + 1;
		if (a->states > WORK_MAX / 8)
			return 0;
	}
	*count = *count < (int)(WORK_MAX / a->states) ? *count : (int)(WORK_MAX / a->states);
	a->value = hspmd_calloc(a->states, sizeof *a->value);
	a->last = hspmd_calloc(a->states, sizeof *a->last);
	return a->value && a->last ? 0 : -1;
}

/* Combinations for about the time that all devices would need if they never waited. If that is little work, also for the least time in
 * which these candidates can run the batch and some longer times, because costs that the estimate leaves out may be lower there. */
static void from_programme(struct assembly *a, const int *order, int count)
{
	static const double longer[] = { 1, 1.04, 1.12, 1.25 };
	double ideal = a->total / hspmd_submesh_tables_rate(a->t, a->s->available), seconds = fmin(a->s->best_s, TARGET * ideal);
	if (a->value)
		programme(a, order, count, seconds);
	from_bases(a, order, count, seconds);
	if (!a->value || a->states * (size_t)count > WORK_FEW)
		return;
	seconds = least_seconds(a, order, count, ideal * HINDSIGHT, a->s->best_s / HINDSIGHT);
	for (size_t i = 0; i < sizeof longer / sizeof *longer && seconds < INFINITY; i++) {
		programme(a, order, count, longer[i] * seconds);
		from_bases(a, order, count, longer[i] * seconds);
	}
}

int hspmd_assemble(struct hspmd_search *s, struct hspmd_submesh_tables *t, const struct hspmd_candidates *l, int pipelines, bool zero)
{
	if (!l->count)
		return 0;
	struct assembly *a = hspmd_calloc(1, sizeof *a);
	int *order = hspmd_candidates_rank(l), count = l->count, rc = -1;
	if (!a || !order)
		goto out;
	a->combinations_max = DRAFTS_MAX * (l->exhaustive ? THOROUGH : 1);
	a->combinations = hspmd_calloc((size_t)a->combinations_max, sizeof *a->combinations);
	a->seen = hspmd_calloc(SEEN_MAX, sizeof *a->seen);
	a->fillers.candidate = hspmd_calloc((size_t)count, sizeof *a->fillers.candidate);
	a->fillers.classes = hspmd_calloc((size_t)count, sizeof *a->fillers.classes);
	a->refined = hspmd_calloc(REFINED_SLOTS, sizeof *a->refined);
	a->items = hspmd_calloc((size_t)count, sizeof *a->items);
	a->rates = hspmd_calloc((size_t)count, sizeof *a->rates);
	if (!a->combinations || !a->seen || !a->refined || !a->fillers.candidate || !a->fillers.classes || !a->items || !a->rates)
		goto out;
	a->s = s;
	a->t = t;
	a->l = l;
	a->zero = zero;
	a->total = s->request->global_batch / t->micro_batch;
	a->pipelines = pipelines < a->total ? pipelines : a->total;
	a->sets_max = SETS_MAX * (l->exhaustive ? THOROUGH : 1);
	a->pairs = (t->device_classes->count + 1) / 2;
	for (int i = 0; i < count; i++) {
		const struct hspmd_pipeline_partition *x = &l->candidates[i].partition;
		a->rates[i] = (struct rate){ 1 / x->period_s, x->fill_drain_s / x->period_s - 1, x->fill_drain_s };
	}
	if (count <= SETS_CANDIDATES * (l->exhaustive ? 2 : 1) && from_all_sets(a, order))
		goto out;
	if (a->sets == 0 || a->sets >= a->sets_max) {
		if (prepare_programme(a, &count))
			goto out;
		from_programme(a, order, count);
	}
	rc = time_combinations(a);
out:
	if (a) {
		free(a->value);
		free(a->last);
		free(a->items);
		free(a->rates);
		free(a->combinations);
		free(a->seen);
		free(a->refined);
		free(a->fillers.candidate);
		free(a->fillers.classes);
	}
	free(a);
	free(order);
	return rc;
}
