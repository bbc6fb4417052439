/* SPDX-License-Identifier: Apache-2.0 */
/* Sums. If the devices that need a region are those that hold one copy each of its addends, an all-reduce over them serves it; if each of
 * them needs another region, a reduce-scatter; else every device that needs a region fetches the addends and adds them in the same order,
 * so that all get the same bits. If several sets of addends could serve a region (copies), copy j of every addend forms group j. */
#include <stdlib.h>
#include <string.h>

#include "runtime/resharding/resolve_internal.h"

#define SAME_BACK 16 /* sums looked back at for one of the same addends */

/* The addends of one region: copy j of addend a is piece x[start[a] + j]. */
struct sum {
	const struct hspmd_region *region;
	int addends, copies; /* copies that every addend has */
	int *start;          /* addends + 1 */
};

/* One device's need of one region, to be joined with others to a reduce-scatter of group `copy`. */
struct scatter {
	const struct sum *sum;
	int copy, addend; /* the device is the one that holds this */
};

static int describe_sum(struct resolver *r, const struct placement *x, const struct hspmd_region *region, struct sum *sum)
{
	int last = x->piece[region->x[region->x_count - 1]].addend;
	*sum = (struct sum){ .region = region, .addends = last + 1, .copies = region->x_count };
	sum->start = hspmd_arena_alloc(r->arena, (size_t)last + 2, sizeof *sum->start);
	if (!sum->start)
		return -1;
	int at = 0;
	for (int a = 0; a <= last; a++) {
		sum->start[a] = at;
		while (at < region->x_count && x->piece[region->x[at]].addend == a)
			at++;
		int copies = at - sum->start[a];
		sum->copies = copies < sum->copies ? copies : sum->copies;
	}
	sum->start[last + 1] = at;
	return 0;
}

static int holder(const struct placement *x, const struct sum *sum, int addend, int copy)
{
	return x->piece[sum->region->x[sum->start[addend] + copy]].device;
}

/* Finds which copy of which addend a device holds; false: none that belongs to a group. */
static bool find_holder(const struct placement *x, const struct sum *sum, int device, int *addend, int *copy)
{
	int piece = x->piece_of[device];
	if (piece < 0 || !hspmd_box_contains(&x->piece[piece].box, &sum->region->box))
		return false;
	*addend = x->piece[piece].addend;
	for (*copy = 0; *copy < sum->copies; ++*copy)
		if (sum->region->x[sum->start[*addend] + *copy] == piece)
			return true;
	return false;
}

enum fit { FIT_NONE, FIT_ALL_REDUCE, FIT_SCATTER };

/* needed[j]: how many members of group j need the region. */
static enum fit classify(const struct hop_view *v, const struct sum *sum, int *needed)
{
	memset(needed, 0, (size_t)sum->copies * sizeof *needed);
	for (int i = 0; i < sum->region->y_count; i++) {
		int addend, copy;
		if (!find_holder(v->x, sum, v->y->piece[sum->region->y[i]].device, &addend, &copy))
			return FIT_NONE;
		needed[copy]++;
	}
	bool all = true, one = true;
	for (int j = 0; j < sum->copies; j++) {
		all = all && (needed[j] == 0 || needed[j] == sum->addends);
		one = one && needed[j] <= 1;
	}
	return all ? FIT_ALL_REDUCE : one ? FIT_SCATTER : FIT_NONE;
}

static int all_reduce(struct resolver *r, const struct hop_view *v, const struct sum *sum, const int *needed, struct hop *hop)
{
	for (int j = 0; j < sum->copies; j++) {
		if (needed[j] == 0)
			continue;
		struct hspmd_comm_step *step = hspmd_hop_step(r, hop, HSPMD_COMM_ALL_REDUCE, sum->addends);
		if (!step)
			return -1;
		for (int a = 0; a < sum->addends; a++) {
			step->members[a] = holder(v->x, sum, a, j);
			step->in[a] = step->out[a] = sum->region->box;
		}
	}
	return 0;
}

static int scatter_order(const void *a, const void *b)
{
	const struct scatter *x = a, *y = b;
	const struct hspmd_region *p = x->sum->region, *q = y->sum->region;
	if (x->copy != y->copy)
		return x->copy < y->copy ? -1 : 1;
	if (p->x_count != q->x_count)
		return p->x_count < q->x_count ? -1 : 1;
	return p->x == q->x ? 0 : memcmp(p->x, q->x, (size_t)p->x_count * sizeof *p->x);
}

/* Reduce-scatter of s[0..n), which have one group of holders. 1: its boxes do not join. */
static int reduce_scatter(struct resolver *r, const struct hop_view *v, const struct scatter *s, size_t n, struct hop *hop)
{
	const struct sum *sum = s[0].sum;
	struct hspmd_comm_step *step = hspmd_hop_step(r, hop, HSPMD_COMM_REDUCE_SCATTER, sum->addends);
	int64_t *volume = hspmd_arena_alloc(r->arena, (size_t)sum->addends, sizeof *volume);
	if (!step || !volume)
		return -1;
	struct hspmd_box whole = { 0 };
	int64_t total = 0;
	int roots = 0;
	for (size_t i = 0; i < n; i++) {
		hspmd_hull_add(&whole, &total, &s[i].sum->region->box);
		roots += volume[s[i].addend] == 0;
		hspmd_hull_add(&step->out[s[i].addend], &volume[s[i].addend], &s[i].sum->region->box);
	}
	bool joins = roots > 1 && hspmd_hull_is_box(&whole, total);
	for (int a = 0; a < sum->addends; a++) {
		step->members[a] = holder(v->x, sum, a, s[0].copy);
		step->in[a] = whole;
		joins = joins && (volume[a] == 0 || hspmd_hull_is_box(&step->out[a], volume[a]));
	}
	if (joins)
		return 0;
	hop->count--;
	return 1;
}

/* Reduce-scatters for all of them, or for none (returns 1), as copies of one element must be summed in the same way. */
static int reduce_scatters(struct resolver *r, const struct hop_view *v, struct scatter *s, size_t count, struct hop *hop)
{
	size_t before = hop->count;
	qsort(s, count, sizeof *s, scatter_order);
	for (size_t i = 0, end; i < count; i = end) {
		for (end = i + 1; end < count && scatter_order(&s[i], &s[end]) == 0;)
			end++;
		int rc = reduce_scatter(r, v, s + i, end - i, hop);
		if (rc > 0)
			hop->count = before;
		if (rc != 0)
			return rc;
	}
	return 0;
}

/* The holder of an addend that is cheapest for `to` (`to` itself if it holds the addend). */
static int nearest(const struct resolver *r, const struct placement *x, const struct sum *sum, int addend, int to, double bytes)
{
	int best = -1;
	double least = 0;
	for (int j = 0; j < sum->start[addend + 1] - sum->start[addend]; j++) {
		int from = holder(x, sum, addend, j);
		double t = hspmd_message_seconds(r->cost, r->real[from], r->real[to], bytes);
		if (best < 0 || t < least) {
			best = from;
			least = t;
		}
	}
	return best;
}

struct addend {
	int number, from;
};

static int addend_order(const void *a, const void *b)
{
	const struct addend *x = a, *y = b;
	return (x->from > y->from) - (x->from < y->from);
}

static bool same_order(const struct addend *x, const struct addend *y, int count)
{
	for (int a = 0; a < count; a++)
		if (x[a].number != y[a].number)
			return false;
	return true;
}

/* Every device that needs the region fetches the addends and adds them in the order of their senders. The order must be the same for all,
 * so the nearest copies are taken only if that gives the order of the first device. */
static int add_up(struct resolver *r, const struct hop_view *v, const struct sum *sum, struct move_list *moves)
{
	double bytes = (double)hspmd_box_elements(&sum->region->box) * (double)r->element_bytes;
	size_t n = (size_t)sum->addends;
	struct addend *common = hspmd_arena_alloc(r->arena, n, sizeof *common), *own = hspmd_arena_alloc(r->arena, n, sizeof *own);
	if (!common || !own)
		return -1;
	for (int i = 0; i < sum->region->y_count; i++) {
		int to = v->y->piece[sum->region->y[i]].device;
		for (int a = 0; a < sum->addends; a++)
			own[a] = (struct addend){ a, nearest(r, v->x, sum, a, to, bytes) };
		qsort(own, n, sizeof *own, addend_order);
		if (i == 0)
			memcpy(common, own, n * sizeof *own);
		const struct addend *taken = same_order(own, common, sum->addends) ? own : common;
		for (int a = 0; a < sum->addends; a++)
			if (hspmd_hop_move(r, moves, taken[a].from, to, &sum->region->box, a > 0) != 0)
				return -1;
	}
	return 0;
}

int hspmd_hop_fetch_addends(struct resolver *r, const struct hop_view *v, const struct hspmd_region *region, struct move_list *moves)
{
	struct sum sum;
	return describe_sum(r, v->x, region, &sum) != 0 || add_up(r, v, &sum, moves) != 0 ? -1 : 0;
}

struct work {
	size_t sum_count, scatter_count;
	struct sum *sums;
	struct scatter *scatters;
	enum fit *fit;
	int *needed;
};

/* A sum of the same addends nearby: regions of one device have them from a few sets of devices. NULL: there is none. */
static const struct sum *same_addends(const struct work *w, const struct hspmd_region *region)
{
	for (size_t back = 1; back <= SAME_BACK && back <= w->sum_count; back++)
		if (w->sums[w->sum_count - back].region->x == region->x)
			return &w->sums[w->sum_count - back];
	return NULL;
}

static int work_start(struct resolver *r, const struct hop_view *v, struct work *w)
{
	size_t scatters = 0;
	*w = (struct work){ 0 };
	for (size_t i = 0; i < v->region_count; i++)
		scatters += (size_t)v->region[i].y_count;
	w->sums = hspmd_arena_alloc(r->arena, v->region_count, sizeof *w->sums);
	w->fit = hspmd_arena_alloc(r->arena, v->region_count, sizeof *w->fit);
	w->scatters = hspmd_arena_alloc(r->arena, scatters, sizeof *w->scatters);
	w->needed = hspmd_arena_alloc(r->arena, (size_t)v->x->count, sizeof *w->needed);
	if (!w->sums || !w->fit || !w->scatters || !w->needed)
		return -1;
	for (size_t i = 0; i < v->region_count; i++) {
		const struct hspmd_region *region = &v->region[i];
		if (v->x->piece[region->x[0]].addends == 1)
			continue;
		const struct sum *same = same_addends(w, region);
		struct sum *sum = &w->sums[w->sum_count++];
		if (same) {
			*sum = *same;
			sum->region = region;
		} else if (describe_sum(r, v->x, region, sum) != 0) {
			return -1;
		}
	}
	return 0;
}

static void collect_scatters(const struct hop_view *v, struct work *w, const struct sum *sum)
{
	for (int i = 0; i < sum->region->y_count; i++) {
		struct scatter s = { .sum = sum };
		find_holder(v->x, sum, v->y->piece[sum->region->y[i]].device, &s.addend, &s.copy);
		w->scatters[w->scatter_count++] = s;
	}
}

int hspmd_hop_reduce(struct resolver *r, const struct hop_view *v, bool collectives, size_t add_limit, struct hop *hop,
                     struct move_list *moves)
{
	struct work w;
	if (work_start(r, v, &w) != 0)
		return -1;
	for (size_t i = 0; i < w.sum_count; i++) {
		w.fit[i] = collectives ? classify(v, &w.sums[i], w.needed) : FIT_NONE;
		if (w.fit[i] == FIT_ALL_REDUCE && all_reduce(r, v, &w.sums[i], w.needed, hop) != 0)
			return -1;
		if (w.fit[i] == FIT_SCATTER)
			collect_scatters(v, &w, &w.sums[i]);
	}
	int rest = reduce_scatters(r, v, w.scatters, w.scatter_count, hop);
	if (rest < 0)
		return -1;
	size_t adds = 0;
	for (size_t i = 0; i < w.sum_count; i++)
		if (w.fit[i] == FIT_NONE || (w.fit[i] == FIT_SCATTER && rest))
			adds += (size_t)w.sums[i].region->y_count * (size_t)w.sums[i].addends;
	if (adds > add_limit)
		return 1;
	for (size_t i = 0; i < w.sum_count; i++)
		if ((w.fit[i] == FIT_NONE || (w.fit[i] == FIT_SCATTER && rest)) && add_up(r, v, &w.sums[i], moves) != 0)
			return -1;
	return 0;
}
