/* SPDX-License-Identifier: Apache-2.0 */
/* Columns: which rows of units a pipeline may be made of.
 *
 * Where there are few, all: every multiset of units that the cluster can supply, in every order that differs (few classes, few devices). Where there
 * are many, those that the stock can be dealt into evenly: for every set of kinds, the best degrees of each, and every number of pipelines P, a row
 * has the P-th part of each kind's units, rounded down or up. Order matters little beyond which kinds come first, as early stages hold more
 * activations: kinds are kept together and tried in a few orders. What did well with one micro-batch is tried alone with the next.
 *
 * Of rows with the same devices the best few are kept.
 */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/search.h"

#define ROWS_ALL 20000    /* rows up to which all are tried */
#define ORDERS_ALL 120   /* orders of one multiset that are tried where all rows are */
#define ORDERS_EVEN 12   /* and in even deals of one or two kinds */
#define ORDERS_MANY 4    /* and of more */
#define ROUGHLY 2e-3     /* precision of a column's cycle */
#define FRONT 8          /* columns kept of those with the same devices */
#define CHOICES 64       /* choices of a degree for each kind of a set */
#define KINDS_FEW 5      /* kinds of which every set is dealt */
#define PIPELINE_STEP 12 /* numbers of pipelines beyond this are tried in steps */
#define ROWS_LEAST 6000  /* rows that are tried in even deals: ROWS_WORK over the devices, within these */
#define ROWS_MOST 16000
#define ROWS_WORK 2000000

struct builder {
	struct hspmd_search *s;
	struct hspmd_tables *t;
	struct hspmd_copies copies;
	int at_most; /* micro-batches a pipeline could run */
	struct hspmd_library *out;
	int chosen[HSPMD_UNITS_MAX]; /* how many of each unit */
	int use[HSPMD_KINDS_MAX];
	int stages, rows, rows_most;
	double fair; /* micro-batches a device */
	bool short_of_memory;
};

void hspmd_library_clear(struct hspmd_library *l)
{
	free(l->columns);
	*l = (struct hspmd_library){ 0 };
}

static bool same_use(const struct hspmd_column *c, const int *use)
{
	return !memcmp(c->use, use, sizeof c->use);
}

static bool same_split(const struct hspmd_shape *a, const struct hspmd_shape *b)
{
	return a->row.stages == b->row.stages && !memcmp(a->row.unit, b->row.unit, (size_t)a->row.stages) &&
	       !memcmp(a->ends, b->ends, (size_t)a->row.stages * sizeof *a->ends);
}

/* The micro-batches that would fall to the row at hand if all devices shared alike. */
static int fair_share(const struct builder *b)
{
	int devices = 0;
	for (int k = 0; k < b->t->kinds->count; k++)
		devices += b->use[k];
	int parts = (int)ceil(b->fair * devices);
	return parts < 1 ? 1 : parts < b->at_most ? parts : b->at_most;
}

/* What a row is worth against others of the same devices: its time for a fair share. */
static double gauge(const struct builder *b, const struct hspmd_shape *x)
{
	int parts = fair_share(b);
	return x->once + ((parts < x->at_most ? parts : x->at_most) - 1) * x->cycle;
}

static void keep(struct builder *b, const struct hspmd_shape *shape)
{
	struct hspmd_library *l = b->out;
	int alike = 0, worst = -1;
	double here = gauge(b, shape), worst_here = -1;
	for (int i = l->count - 1; i >= 0 && same_use(&l->columns[i], b->use); i--) {
		if (same_split(&l->columns[i].shape, shape))
			return;
		double there = gauge(b, &l->columns[i].shape);
		alike++;
		if (there > worst_here) {
			worst_here = there;
			worst = i;
		}
	}
	struct hspmd_column *into;
	if (alike >= FRONT) {
		if (worst_here <= here)
			return;
		into = &l->columns[worst];
	} else {
		size_t capacity = (size_t)l->capacity;
		if (hspmd_grow(&l->columns, &capacity, (size_t)l->count, sizeof *l->columns)) {
			b->short_of_memory = true;
			return;
		}
		l->capacity = (int)capacity;
		into = &l->columns[l->count++];
	}
	into->shape = *shape;
	into->copies = b->copies;
	memcpy(into->use, b->use, sizeof into->use);
	into->rates = 0;
	for (int s = 0; s < shape->row.stages; s++)
		into->rates += b->t->units[shape->row.unit[s]].rate;
}

static void try_row(struct builder *b, const struct hspmd_row *row)
{
	struct hspmd_shape shape;
	int held = row->stages < b->at_most ? row->stages : b->at_most;
	/* Where memory is too small for a full pipeline, fewer micro-batches may still be run through it: of use when there are few. */
	b->rows++;
	for (; held > 0 && (held == row->stages || b->at_most <= HSPMD_FEW * row->stages); held--) {
		int at_most = held == row->stages ? b->at_most : held;
		if (!hspmd_split(b->t, row, &b->copies, at_most, ROUGHLY, &shape))
			continue;
		for (int s = 0; s < row->stages; s++)
			b->out->tight = b->out->tight || shape.recompute[s] != HSPMD_RECOMPUTE_NONE;
		b->out->tight = b->out->tight || held < row->stages;
		keep(b, &shape);
		/* With few micro-batches another split may be better than the one with the least cycle: for a fair share, and for all of them. */
		for (int all = 0; b->out->complete && b->at_most <= HSPMD_FEW * row->stages && row->stages > 1 && all < 2; all++) {
			hspmd_shape_settle(b->t, &b->copies, all ? at_most : fair_share(b), &shape);
			keep(b, &shape);
		}
		return;
	}
	b->out->tight = true;
}

/* ---- every order */

static double orders(const struct builder *b)
{
	double n = 1;
	for (int u = 0, placed = 0; u < b->t->unit_count; u++)
		for (int i = 1; i <= b->chosen[u]; i++)
			n = n * ++placed / i;
	return n;
}

/* The next permutation in lexicographic order; false after the last. */
static bool next_order(unsigned char *x, int n)
{
	int i = n - 2, j = n - 1;
	while (i >= 0 && x[i] >= x[i + 1])
		i--;
	if (i < 0)
		return false;
	while (x[j] <= x[i])
		j--;
	unsigned char swap = x[i];
	x[i] = x[j];
	x[j] = swap;
	for (int a = i + 1, z = n - 1; a < z; a++, z--) {
		swap = x[a];
		x[a] = x[z];
		x[z] = swap;
	}
	return true;
}

/* Units of one kind together, the kinds in the order given, wide before narrow or the other way round. */
static void try_blocks(struct builder *b, const int *kinds, int count, bool wide_first)
{
	struct hspmd_row row = { 0 };
	for (int k = 0; k < count; k++)
		for (int i = 0; i < b->t->unit_count; i++) {
			int u = wide_first ? b->t->unit_count - 1 - i : i;
			if (b->t->units[u].kind != kinds[k])
				continue;
			for (int n = 0; n < b->chosen[u]; n++)
				row.unit[row.stages++] = (unsigned char)u;
		}
	try_row(b, &row);
}

static void order_kinds(struct builder *b, int *kinds, int from, int count, int *left)
{
	if (from == count) {
		bool mixed = false;
		for (int u = 1; u < b->t->unit_count; u++)
			mixed = mixed || (b->chosen[u] && b->chosen[u - 1] && b->t->units[u].kind == b->t->units[u - 1].kind);
		try_blocks(b, kinds, count, true);
		if (mixed)
			try_blocks(b, kinds, count, false);
		(*left)--;
		return;
	}
	for (int i = from; i < count && *left > 0; i++) {
		int swap = kinds[from];
		kinds[from] = kinds[i];
		kinds[i] = swap;
		order_kinds(b, kinds, from + 1, count, left);
		swap = kinds[from];
		kinds[from] = kinds[i];
		kinds[i] = swap;
	}
}

static void try_chosen(struct builder *b)
{
	struct hspmd_row row = { 0 };
	if (!b->stages || b->short_of_memory || hspmd_search_is_over(b->s))
		return;
	int most = b->out->complete ? ORDERS_ALL : b->t->kinds->count <= 2 ? ORDERS_EVEN : ORDERS_MANY;
	if (orders(b) <= most) {
		for (int u = 0; u < b->t->unit_count; u++)
			for (int n = 0; n < b->chosen[u]; n++)
				row.unit[row.stages++] = (unsigned char)u;
		do
			try_row(b, &row);
		while (next_order(row.unit, row.stages));
		return;
	}
	int kinds[HSPMD_KINDS_MAX], count = 0, left = most;
	for (int k = 0; k < b->t->kinds->count; k++)
		if (b->use[k])
			kinds[count++] = k;
	order_kinds(b, kinds, 0, count, &left);
}

/* ---- all multisets */

static int deepest(const struct builder *b)
{
	return b->t->layers < HSPMD_STAGES_MAX ? b->t->layers : HSPMD_STAGES_MAX;
}

/* Count the multisets of units from `unit` on, or try them; stops past ROWS_ALL. */
static void multisets(struct builder *b, int unit, bool count_only)
{
	if (unit == b->t->unit_count) {
		if (count_only)
			b->rows += (int)fmin(orders(b), ORDERS_ALL);
		else
			try_chosen(b);
		return;
	}
	const struct hspmd_unit *u = &b->t->units[unit];
	int in_nodes = b->t->kinds->kinds[u->kind].node_count * (b->t->kinds->kinds[u->kind].per_node / u->tp), taken = 0;
	while (!count_only || b->rows <= ROWS_ALL) {
		multisets(b, unit + 1, count_only);
		if (taken == in_nodes || b->stages == deepest(b) || b->use[u->kind] + u->tp > b->s->available[u->kind])
			break;
		taken++;
		b->chosen[unit]++;
		b->stages++;
		b->use[u->kind] += u->tp;
	}
	b->chosen[unit] = 0;
	b->stages -= taken;
	b->use[u->kind] -= taken * u->tp;
}

/* ---- even deals */

static double rate_of_device(const struct builder *b, int unit)
{
	return b->t->units[unit].rate / b->t->units[unit].tp;
}

/* The units of a kind, the fastest a device first. Count. */
static int rank_units(const struct builder *b, int kind, int *units)
{
	int count = 0;
	for (int u = 0; u < b->t->unit_count; u++) {
		if (b->t->units[u].kind != kind)
			continue;
		int at = count++;
		for (; at > 0 && rate_of_device(b, units[at - 1]) < rate_of_device(b, u); at--)
			units[at] = units[at - 1];
		units[at] = u;
	}
	return count;
}

static int units_there(const struct builder *b, int unit)
{
	const struct hspmd_unit *u = &b->t->units[unit];
	const struct hspmd_kind *k = &b->t->kinds->kinds[u->kind];
	int whole = k->per_node / u->tp * k->node_count, allowed = b->s->available[u->kind] / u->tp;
	return whole < allowed ? whole : allowed;
}

/* What is dealt: a unit of each kind of a set. */
struct deal {
	int count, unit[HSPMD_KINDS_MAX], pipelines;
	bool nearest; /* round each kind to the nearest whole number only, not both ways */
};

/* Take the part of the deal's `at`-th unit that falls to one pipeline and go on with the next. */
static void deal_unit(struct builder *b, const struct deal *d, int at)
{
	if (b->short_of_memory || b->stages > deepest(b))
		return;
	if (at == d->count) {
		try_chosen(b);
		return;
	}
	const struct hspmd_unit *u = &b->t->units[d->unit[at]];
	int there = units_there(b, d->unit[at]), low = there / d->pipelines, high = (there + d->pipelines - 1) / d->pipelines;
	if (d->nearest)
		low = high = (there + d->pipelines / 2) / d->pipelines;
	for (int n = low; n <= high; n++) {
		b->chosen[d->unit[at]] = n;
		b->stages += n;
		b->use[u->kind] += n * u->tp;
		deal_unit(b, d, at + 1);
		b->chosen[d->unit[at]] = 0;
		b->stages -= n;
		b->use[u->kind] -= n * u->tp;
	}
}

/* Every number of pipelines that deals the units differently: all where they are few, else by steps of a tenth. */
static void deal_evenly(struct builder *b, struct deal *d)
{
	int most = 0, sum = 0;
	for (int i = 0; i < d->count; i++) {
		sum += units_there(b, d->unit[i]);
		most = units_there(b, d->unit[i]) > most ? units_there(b, d->unit[i]) : most;
	}
	most = most < b->at_most ? most : b->at_most;
	for (int p = most; p > 0 && (sum + p - 1) / p <= 2 * deepest(b) && !hspmd_search_is_over(b->s); p -= 1 + p / PIPELINE_STEP) {
		d->pipelines = b->copies.pipelines = p;
		deal_unit(b, d, 0);
	}
}

/* All choices of one unit a kind, of the `widths` best ones each. */
static void deal_set(struct builder *b, const int *kinds, int count)
{
	int units[HSPMD_KINDS_MAX][HSPMD_UNITS_MAX], widths[HSPMD_KINDS_MAX], at[HSPMD_KINDS_MAX] = { 0 }, widest = HSPMD_UNITS_MAX;
	struct deal d = { .count = count, .nearest = count > 2 };
	while (widest > 1 && pow(widest, count) > (count == 1 ? HSPMD_UNITS_MAX : CHOICES))
		widest--;
	for (int i = 0; i < count; i++) {
		widths[i] = rank_units(b, kinds[i], units[i]);
		widths[i] = widths[i] < widest ? widths[i] : widest;
	}
	for (int i = 0; i < count && b->rows < b->rows_most;) {
		for (int k = 0; k < count; k++)
			d.unit[k] = units[k][at[k]];
		deal_evenly(b, &d);
		if (b->short_of_memory || hspmd_search_is_over(b->s))
			return;
		for (i = 0; i < count && ++at[i] >= widths[i]; i++)
			at[i] = 0;
	}
}

/* Sets of kinds: each by itself, all together, pairs, and the others where kinds are few. */
static void even_deals(struct builder *b)
{
	int kinds = b->t->kinds->count, chosen[HSPMD_KINDS_MAX];
	for (int turn = 0; turn < kinds; turn++) {
		int size = turn == 0 ? 1 : turn == 1 ? kinds : turn;
		for (unsigned set = 1; set < 1u << kinds; set++) {
			int count = 0;
			for (int k = 0; k < kinds; k++)
				if ((set & 1u << k) && b->s->available[k] > 0)
					chosen[count++] = k;
			if (count != __builtin_popcount(set) || count != size || (kinds > KINDS_FEW && count > 2 && count < kinds))
				continue;
			deal_set(b, chosen, count);
		}
	}
}

/* ---- rows that did well with another micro-batch */

static void try_favourites(struct builder *b)
{
	const struct hspmd_search *s = b->s;
	for (int i = 0; i < s->favourite_count && !b->short_of_memory && !hspmd_search_is_over(b->s); i++) {
		const struct hspmd_row *row = &s->favourites[i].row;
		memset(b->use, 0, sizeof b->use);
		for (int k = 0; k < row->stages; k++)
			b->use[b->t->units[row->unit[k]].kind] += b->t->units[row->unit[k]].tp;
		b->copies.pipelines = s->favourites[i].pipelines;
		b->stages = row->stages;
		try_row(b, row);
	}
	memset(b->use, 0, sizeof b->use);
	b->stages = 0;
}

static int by_waste(const void *x, const void *y)
{
	const struct hspmd_column *a = x, *b = y;
	double p = a->shape.cycle * a->rates, q = b->shape.cycle * b->rates;
	if (p != q)
		return p < q ? -1 : 1;
	int d = a->shape.row.stages - b->shape.row.stages;
	return d ? d : memcmp(a->shape.row.unit, b->shape.row.unit, (size_t)a->shape.row.stages);
}

/* Remember the rows that lose least time to imbalance; half of the places for the rows of each depth in turn, as a larger micro-batch may want more
 * stages. */
static void remember(struct hspmd_search *s, const struct hspmd_library *l)
{
	int of_depth[HSPMD_STAGES_MAX + 1] = { 0 };
	qsort(l->columns, (size_t)l->count, sizeof *l->columns, by_waste);
	for (int pass = 0; pass < 2; pass++)
		for (int i = 0; i < l->count && s->favourite_count < (pass ? HSPMD_FAVOURITES : HSPMD_FAVOURITES / 2); i++) {
			const struct hspmd_column *c = &l->columns[i];
			bool deep = ++of_depth[c->shape.row.stages] > HSPMD_FAVOURITES / 32;
			if (pass ? deep : i >= HSPMD_FAVOURITES / 2)
				continue;
			s->favourites[s->favourite_count].row = c->shape.row;
			s->favourites[s->favourite_count++].pipelines = c->copies.pipelines;
		}
}

bool hspmd_library_is_complete(struct hspmd_search *s, struct hspmd_tables *t)
{
	struct builder b = { .s = s, .t = t };
	multisets(&b, 0, true);
	return b.rows <= ROWS_ALL;
}

int hspmd_library_fill(struct hspmd_search *s, struct hspmd_tables *t, int pipelines, bool zero, struct hspmd_library *out)
{
	struct builder b = { .s = s, .t = t, .copies = { pipelines, zero }, .at_most = s->request->global_batch / t->micro_batch, .out = out };
	int devices = 0;
	for (int k = 0; k < t->kinds->count; k++)
		devices += s->available[k];
	b.fair = (double)b.at_most / devices;
	b.rows_most = (int)fmin(fmax((double)ROWS_WORK / devices, ROWS_LEAST), ROWS_MOST);
	out->complete = hspmd_library_is_complete(s, t);
	if (out->complete) {
		multisets(&b, 0, false);
		return b.short_of_memory ? -1 : 0;
	}
	if (s->favourite_micro_batch <= t->micro_batch && s->favourite_zero == zero)
		try_favourites(&b);
	if (out->count * 2 <= s->favourite_count || !s->favourite_count || s->favourite_micro_batch > t->micro_batch || s->favourite_zero != zero) {
		even_deals(&b);
		s->favourite_count = 0;
		s->favourite_micro_batch = t->micro_batch;
		s->favourite_zero = zero;
		remember(s, out);
	}
	return b.short_of_memory ? -1 : 0;
}
