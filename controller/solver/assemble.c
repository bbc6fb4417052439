/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts: sets of columns that the cluster's stock of devices allows.
 *
 * Where columns and devices are few, every set of columns is looked at. Otherwise each column in turn is the base, as often as it goes, and what is
 * left of the stock is filled with the columns that add most: by dynamic programming over the stock where it has few states (a knapsack with
 * several weights), else greedily. Devices may be left over: a device that would only slow the others stays spare.
 *
 * A set is ranked by the time its pipelines need for the batch, m micro-batches taking once + (m - 1) cycle, plus the least that summing the
 * gradients can take; the best are placed on devices and timed by the simulator.
 */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/physics.h"
#include "controller/solver/search.h"

#define SETS_MOST 20000   /* sets looked at where all are */
#define SETS_COLUMNS 400  /* columns up to which that is tried */
#define WORK_MOST 2000000 /* states x columns of the dynamic programme */
#define WORK_FEW 400000   /* up to which the least time is looked for with it, */
#define PRECISELY 2e-3    /* so precisely */
#define DRAFTS_MOST 400   /* drafts kept for timing */
#define TIMED_MOST 8000   /* stages timed for one micro-batch */
#define THOROUGH 10       /* times as many of these where all rows were tried: there are few devices */
#define SEEN_MOST (1 << 17) /* sketches remembered so as not to keep one twice, at most half as many */
#define TIMED_LEAST 24    /* plans as large as the most promising that are timed however large they are */
#define HINDSIGHT 0.97    /* estimates may be that much too long */
#define SETTLE_MOST 2048  /* micro-batches x stages^2 up to which borders are settled by simulation */
#define EXACTLY 1e-7       /* precision of a split that is timed */
#define TARGET 1.15       /* the step that leftovers are filled for, over the least conceivable */

struct sketch {
	int count;
	int column[HSPMD_GROUPS_MAX], copies[HSPMD_GROUPS_MAX];
	double working, seconds; /* without and with summing gradients */
};

struct assembly {
	struct hspmd_search *s;
	struct hspmd_tables *t;
	const struct hspmd_library *l;
	int total, pipelines; /* micro-batches of the step; the most pipelines there may be */
	int sketch_count, sketch_most;
	struct sketch *sketches; /* a heap, the slowest on top */
	uint64_t *seen;          /* open addressing by what they hold; 0: free */
	int seen_count, sets, sets_most;
	/* the dynamic programme: states of the stock in mixed radix */
	size_t states, stride[HSPMD_KINDS_MAX];
	int *value, *last; /* micro-batches done by then; the column put in last, -1: none */
};

static int capacity(const struct hspmd_shape *x, double seconds)
{
	if (seconds < x->once)
		return 0;
	double parts = 1 + floor((seconds - x->once) / x->cycle + 1e-9);
	return parts < x->at_most ? (int)parts : x->at_most;
}

/* ---- estimates */

/* Bytes per second between nodes, or inside where there is but one, for the slowest kind that a sketch uses; 0: it takes nodes that no link joins. */
static double slowest_link(const struct assembly *a, const struct sketch *k)
{
	const struct hspmd_costs *c = a->t->costs;
	double slowest = INFINITY;
	for (int i = 0; i < k->count; i++)
		for (int kind = 0; kind < a->t->kinds->count; kind++) {
			const struct hspmd_kind *x = &a->t->kinds->kinds[kind];
			if (!a->l->columns[k->column[i]].use[kind] || (x->node_count < 2 && x->per_node < 2))
				continue;
			int from = hspmd_kind_device(c->cluster, x, 0, 0), to = x->node_count > 1 ? hspmd_kind_device(c->cluster, x, 1, 0) : from + 1;
			double seconds = hspmd_costs_transfer(c, from, to, x->per_node, x->per_node, 1e8, NULL);
			if (seconds > 0)
				slowest = fmin(slowest, 1e8 / seconds);
			else if (seconds < 0 && k->copies[i] * a->l->columns[k->column[i]].use[kind] > x->per_node)
				return 0;
		}
	return slowest;
}

/* The least that a ring over the copies of the largest stage takes. */
static double summing(const struct assembly *a, const struct sketch *k)
{
	int pipelines = 0;
	double largest = 0, rate = slowest_link(a, k);
	for (int i = 0; i < k->count; i++) {
		const struct hspmd_shape *x = &a->l->columns[k->column[i]].shape;
		pipelines += k->copies[i];
		for (int s = 0, first = 0; s < x->row.stages; first = x->ends[s++])
			largest = fmax(largest, hspmd_stage_params(a->t->costs, first, x->ends[s]));
	}
	if (pipelines < 2 || isinf(rate))
		return 0;
	return 2.0 * (pipelines - 1) / pipelines * largest * a->t->costs->grad_bytes / rate;
}

/* Seconds in which the sketch's pipelines do the batch; INFINITY when they cannot. */
static double working(const struct assembly *a, const struct sketch *k)
{
	double rate = 0, ahead = 0, longest = 0;
	long long pipelines = 0, most = 0;
	for (int i = 0; i < k->count; i++) {
		const struct hspmd_shape *x = &a->l->columns[k->column[i]].shape;
		rate += k->copies[i] / x->cycle;
		ahead += k->copies[i] * (x->once / x->cycle - 1);
		longest = fmax(longest, x->once);
		pipelines += k->copies[i];
		most += (long long)k->copies[i] * x->at_most;
	}
	if (pipelines > a->total || pipelines > a->pipelines || most < a->total)
		return INFINITY;
	double seconds = fmax(longest, (a->total + ahead) / rate);
	for (int i = 0; i < 4; i++) {
		/* Whole micro-batches: the least time by which enough are done. */
		long long done = 0;
		double next = INFINITY;
		for (int g = 0; g < k->count; g++) {
			const struct hspmd_shape *x = &a->l->columns[k->column[g]].shape;
			int parts = capacity(x, seconds);
			done += (long long)k->copies[g] * parts;
			if (parts < x->at_most)
				next = fmin(next, x->once + parts * x->cycle);
		}
		if (done >= a->total)
			break;
		seconds = next;
	}
	return seconds;
}

/* ---- the best sketches */

static void sink(struct assembly *a, int i)
{
	for (;;) {
		int largest = i;
		for (int child = 2 * i + 1; child <= 2 * i + 2 && child < a->sketch_count; child++)
			if (a->sketches[child].seconds > a->sketches[largest].seconds)
				largest = child;
		if (largest == i)
			return;
		struct sketch swap = a->sketches[i];
		a->sketches[i] = a->sketches[largest];
		a->sketches[largest] = swap;
		i = largest;
	}
}

/* The same number for the same columns as often, in whatever order (a sum of splitmix64, Steele et al., OOPSLA'14); two sets in 2^64 share one. */
static uint64_t fingerprint(const struct sketch *k)
{
	uint64_t sum = 0;
	for (int i = 0; i < k->count; i++) {
		uint64_t z = ((uint64_t)k->column[i] << 20) + (uint64_t)k->copies[i] + 0x9e3779b97f4a7c15u;
		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
		z = (z ^ z >> 27) * 0x94d049bb133111ebu;
		sum += z ^ z >> 31;
	}
	return sum ? sum : 1;
}

/* Has this set been kept before? From now on it has. */
static bool is_known(struct assembly *a, const struct sketch *k)
{
	uint64_t what = fingerprint(k);
	size_t at = (size_t)what % SEEN_MOST;
	while (a->seen[at] && a->seen[at] != what)
		at = (at + 1) % SEEN_MOST;
	if (a->seen[at] || a->seen_count >= SEEN_MOST / 2)
		return a->seen[at] != 0;
	a->seen[at] = what;
	a->seen_count++;
	return false;
}

static void consider(struct assembly *a, struct sketch *k)
{
	k->working = working(a, k);
	if (k->working * HINDSIGHT >= a->s->best_s || (a->sketch_count == a->sketch_most && k->working >= a->sketches[0].seconds))
		return;
	if (is_known(a, k))
		return;
	k->seconds = k->working + summing(a, k);
	if (isinf(k->seconds))
		return;
	if (a->sketch_count == a->sketch_most) {
		if (k->seconds >= a->sketches[0].seconds)
			return;
		a->sketches[0] = *k;
		sink(a, 0);
		return;
	}
	int i = a->sketch_count++;
	a->sketches[i] = *k;
	for (; i > 0 && a->sketches[(i - 1) / 2].seconds < a->sketches[i].seconds; i = (i - 1) / 2) {
		struct sketch swap = a->sketches[i];
		a->sketches[i] = a->sketches[(i - 1) / 2];
		a->sketches[(i - 1) / 2] = swap;
	}
}

static int by_seconds(const void *x, const void *y)
{
	const struct sketch *a = x, *b = y;
	return a->seconds < b->seconds ? -1 : a->seconds > b->seconds;
}

/* ---- all sets */

static bool goes_in(const struct assembly *a, const struct hspmd_column *c, const int *stock)
{
	for (int k = 0; k < a->t->kinds->count; k++)
		if (c->use[k] > stock[k])
			return false;
	return true;
}

static void take(const struct hspmd_column *c, int *stock, int times)
{
	for (int k = 0; k < HSPMD_KINDS_MAX; k++)
		stock[k] -= times * c->use[k];
}

/* Every set that goes on from column `from`; each is a sketch of its own, the rest of the stock spare. */
static void all_sets(struct assembly *a, const int *order, int count, int from, int *stock, int depth, struct sketch *k)
{
	for (int i = from; i < count && a->sets < a->sets_most && depth < a->pipelines; i++) {
		const struct hspmd_column *c = &a->l->columns[order[i]];
		if (!goes_in(a, c, stock))
			continue;
		bool more = k->count && k->column[k->count - 1] == order[i];
		if (!more && k->count == HSPMD_GROUPS_MAX)
			continue;
		if (!more) {
			k->column[k->count] = order[i];
			k->copies[k->count++] = 0;
		}
		k->copies[k->count - 1]++;
		take(c, stock, 1);
		a->sets++;
		consider(a, k);
		all_sets(a, order, count, i, stock, depth + 1, k);
		take(c, stock, -1);
		if (--k->copies[k->count - 1] == 0)
			k->count--;
	}
}

struct ranked {
	double waste; /* cycle over the bound on it: 1 when no time is lost */
	int column;
};

static int by_waste(const void *x, const void *y)
{
	const struct ranked *a = x, *b = y;
	return a->waste < b->waste ? -1 : a->waste > b->waste ? 1 : a->column - b->column;
}

/* Column numbers, the most efficient first; NULL when memory is short. */
static int *rank_columns(const struct hspmd_library *l)
{
	struct ranked *ranked = hspmd_calloc((size_t)l->count, sizeof *ranked);
	int *order = ranked ? hspmd_calloc((size_t)l->count, sizeof *order) : NULL;
	for (int i = 0; order && i < l->count; i++)
		ranked[i] = (struct ranked){ l->columns[i].shape.cycle * l->columns[i].rates, i };
	if (order)
		qsort(ranked, (size_t)l->count, sizeof *ranked, by_waste);
	for (int i = 0; order && i < l->count; i++)
		order[i] = ranked[i].column;
	free(ranked);
	return order;
}

/* ---- base and rest */

/* For every state of the stock, the most micro-batches that columns can do in `seconds`. */
static void programme(struct assembly *a, const int *order, int count, double seconds)
{
	int kinds = a->t->kinds->count, stock[HSPMD_KINDS_MAX] = { 0 };
	for (size_t state = 0; state < a->states; state++) {
		a->value[state] = 0;
		a->last[state] = -1;
		for (int i = 0; i < count; i++) {
			const struct hspmd_column *c = &a->l->columns[order[i]];
			size_t before = state;
			if (!goes_in(a, c, stock))
				continue;
			for (int k = 0; k < kinds; k++)
				before -= (size_t)c->use[k] * a->stride[k];
			int done = a->value[before] + capacity(&c->shape, seconds);
			if (done > a->value[state]) {
				a->value[state] = done;
				a->last[state] = order[i];
			}
		}
		for (int k = 0; k < kinds && ++stock[k] > a->s->available[k]; k++)
			stock[k] = 0;
	}
}

static bool add_group(struct sketch *k, int column, int copies)
{
	for (int i = 0; i < k->count; i++)
		if (k->column[i] == column) {
			k->copies[i] += copies;
			return true;
		}
	if (k->count == HSPMD_GROUPS_MAX)
		return false;
	k->column[k->count] = column;
	k->copies[k->count++] = copies;
	return true;
}

static void fill_by_programme(const struct assembly *a, const int *stock, struct sketch *k)
{
	size_t state = 0;
	for (int i = 0; i < a->t->kinds->count; i++)
		state += (size_t)stock[i] * a->stride[i];
	while (a->last[state] >= 0 && add_group(k, a->last[state], 1))
		for (int i = 0, column = a->last[state]; i < a->t->kinds->count; i++)
			state -= (size_t)a->l->columns[column].use[i] * a->stride[i];
}

static void fill_greedily(const struct assembly *a, const int *order, int count, double seconds, int *stock, struct sketch *k)
{
	for (int i = 0; i < count && k->count < HSPMD_GROUPS_MAX; i++) {
		const struct hspmd_column *c = &a->l->columns[order[i]];
		int copies = INT_MAX;
		if (capacity(&c->shape, seconds) < 1)
			continue;
		for (int kind = 0; kind < a->t->kinds->count; kind++)
			if (c->use[kind] && stock[kind] / c->use[kind] < copies)
				copies = stock[kind] / c->use[kind];
		if (copies > 0 && add_group(k, order[i], copies))
			take(c, stock, copies);
	}
}

/* Each column in turn as often as it goes (or, where columns are few, every number of times), the rest filled; and once alone, for nodes that no link joins. */
static void from_bases(struct assembly *a, const int *order, int count, double seconds)
{
	for (int i = 0; i < a->l->count; i++) {
		const struct hspmd_column *c = &a->l->columns[i];
		int most = a->pipelines;
		for (int k = 0; k < a->t->kinds->count; k++)
			if (c->use[k] && a->s->available[k] / c->use[k] < most)
				most = a->s->available[k] / c->use[k];
		struct sketch alone = { .count = 1, .column = { i }, .copies = { 1 } };
		consider(a, &alone);
		for (int copies = most; copies > 0 && (copies == most || a->l->complete); copies--) {
			struct sketch k = { .count = 1, .column = { i }, .copies = { copies } };
			int stock[HSPMD_KINDS_MAX];
			consider(a, &k);
			memcpy(stock, a->s->available, sizeof stock);
			take(c, stock, copies);
			if (a->value)
				fill_by_programme(a, stock, &k);
			else
				fill_greedily(a, order, count, seconds, stock, &k);
			if (k.count > 1 || k.copies[0] > copies)
				consider(a, &k);
		}
	}
}

/* The least time in which the columns can do the batch, by the programme; INFINITY: longer than `most`. */
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

static long stages_of(const struct assembly *a, const struct sketch *k)
{
	long stages = 0;
	for (int g = 0; g < k->count; g++)
		stages += (long)k->copies[g] * a->l->columns[k->column[g]].shape.row.stages;
	return stages;
}

/* Suit each shape to the micro-batches that fell to it, then deal again; not where that is much work and fill and drain are little of a step. */
static int settle(struct assembly *a, const struct sketch *k, struct hspmd_draft *d)
{
	bool any = false;
	for (int g = 0; g < d->group_count; g++) {
		int m = d->groups[g].parts + (d->groups[g].extra > 0), stages = d->groups[g].shape.row.stages;
		if (stages < 2 || m > HSPMD_FEW * stages || m * stages * stages > SETTLE_MOST)
			continue;
		hspmd_shape_settle(a->t, &a->l->columns[k->column[g]].copies, m, &d->groups[g].shape);
		any = true;
	}
	return any ? hspmd_draft_deal(d, a->total) : 0;
}

static int time_sketches(struct assembly *a, bool zero)
{
	qsort(a->sketches, (size_t)a->sketch_count, sizeof *a->sketches, by_seconds);
	long budget = TIMED_MOST * (a->l->complete ? THOROUGH : 1);
	if (a->sketch_count)
		budget = budget > TIMED_LEAST * stages_of(a, &a->sketches[0]) ? budget : TIMED_LEAST * stages_of(a, &a->sketches[0]);
	for (int i = 0; i < a->sketch_count && budget > 0 && !hspmd_search_is_over(a->s); i++) {
		const struct sketch *k = &a->sketches[i];
		struct hspmd_draft d = { .group_count = k->count };
		if (k->working * HINDSIGHT >= a->s->best_s)
			continue;
		budget -= stages_of(a, k);
		for (int g = 0; g < k->count; g++) {
			const struct hspmd_column *c = &a->l->columns[k->column[g]];
			d.groups[g] = (struct hspmd_group){ .shape = c->shape, .copies = k->copies[g] };
			hspmd_split(a->t, &c->shape.row, &c->copies, c->shape.at_most, EXACTLY, &d.groups[g].shape);
		}
		int rc = hspmd_draft_deal(&d, a->total);
		if (!rc)
			rc = settle(a, k, &d);
		if (rc < 0 || (!rc && hspmd_pool_try(a->s, a->t, &d, zero)))
			return -1;
	}
	return 0;
}

static int prepare_programme(struct assembly *a, int *count)
{
	a->states = 1;
	for (int k = 0; k < a->t->kinds->count; k++) {
		a->stride[k] = a->states;
		a->states *= (size_t)a->s->available[k] + 1;
		if (a->states > WORK_MOST / 8)
			return 0;
	}
	*count = *count < (int)(WORK_MOST / a->states) ? *count : (int)(WORK_MOST / a->states);
	a->value = hspmd_calloc(a->states, sizeof *a->value);
	a->last = hspmd_calloc(a->states, sizeof *a->last);
	return a->value && a->last ? 0 : -1;
}

/* Sketches for about the time that all devices would need that nothing ever kept waiting; where that is little work, also for the least time in which these
 * columns can do the batch and some longer ones, as what the estimate leaves out may cost less with them. */
static void from_programme(struct assembly *a, const int *order, int count)
{
	static const double longer[] = { 1, 1.04, 1.12, 1.25 };
	double ideal = a->total / hspmd_tables_rate(a->t, a->s->available), seconds = fmin(a->s->best_s, TARGET * ideal);
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

int hspmd_assemble(struct hspmd_search *s, struct hspmd_tables *t, const struct hspmd_library *l, int pipelines, bool zero)
{
	if (!l->count)
		return 0;
	struct assembly *a = hspmd_calloc(1, sizeof *a);
	int *order = rank_columns(l), count = l->count, rc = -1;
	if (!a || !order)
		goto out;
	a->sketch_most = DRAFTS_MOST * (l->complete ? THOROUGH : 1);
	a->sketches = hspmd_calloc((size_t)a->sketch_most, sizeof *a->sketches);
	a->seen = hspmd_calloc(SEEN_MOST, sizeof *a->seen);
	if (!a->sketches || !a->seen)
		goto out;
	a->s = s;
	a->t = t;
	a->l = l;
	a->total = s->request->global_batch / t->micro_batch;
	a->pipelines = pipelines < a->total ? pipelines : a->total;
	a->sets_most = SETS_MOST * (l->complete ? THOROUGH : 1);
	if (l->count <= SETS_COLUMNS * (l->complete ? 2 : 1)) {
		int stock[HSPMD_KINDS_MAX];
		struct sketch k = { 0 };
		memcpy(stock, s->available, sizeof stock);
		all_sets(a, order, l->count, 0, stock, 0, &k);
	}
	if (a->sets == 0 || a->sets >= a->sets_most) {
		if (prepare_programme(a, &count))
			goto out;
		from_programme(a, order, count);
	}
	rc = time_sketches(a, zero);
out:
	if (a) {
		free(a->value);
		free(a->last);
		free(a->sketches);
		free(a->seen);
	}
	free(a);
	free(order);
	return rc;
}
