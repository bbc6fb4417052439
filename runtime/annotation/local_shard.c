/* SPDX-License-Identifier: Apache-2.0 */
/* The part that each device of an annotation holds. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/order.h"
#include "runtime/annotation/annotation.h"

/* Bound after the first k parts of n elements, as the head of annotation.h defines it. */
static int64_t bound(int64_t n, int64_t unit, int parts, const int64_t *weights, int k)
{
	int64_t prefix = k, total = parts;
	if (weights) {
		prefix = total = 0;
		for (int i = 0; i < parts; i++) {
			prefix += i < k ? weights[i] : 0;
			total += weights[i];
		}
	}
	int64_t units = n / unit + (n % unit != 0);
	/* to the nearest: a ratio of 7:5 that is written as fractions must not become 6:6 */
	__int128 at = (2 * (__int128)units * prefix + total) / (2 * (__int128)total) * unit;
	return at < n ? (int64_t)at : n;
}

void hspmd_split_range(int64_t n, int64_t unit, int parts, const int64_t *weights, int k, int64_t *lo, int64_t *hi)
{
	*lo = bound(n, unit, parts, weights, k);
	*hi = bound(n, unit, parts, weights, k + 1);
}

static void cut(struct hspmd_box *box, int dim, int64_t unit, int parts, const int64_t *weights, int k)
{
	int64_t lo, hi;
	hspmd_split_range(box->hi[dim] - box->lo[dim], unit, parts, weights, k, &lo, &hi);
	box->hi[dim] = box->lo[dim] + hi;
	box->lo[dim] += lo;
}

/* Product of the parts of the entries of `dim` (-1 or -2): the number of copies or addends within a subgroup. */
static int multiplicity(const struct hspmd_subgroup *g, int dim)
{
	int n = 1;
	for (int s = 0; s < g->split_count; s++)
		n *= g->splits[s].dim == dim ? g->splits[s].parts : 1;
	return n;
}

/* Values common to all devices of one subgroup. */
struct group_base {
	struct hspmd_box box;
	int partial, partials, replica;
};

/* Of the first subgroup, without its box. */
static struct group_base first_base(const struct hspmd_annotation *a)
{
	struct group_base base = { 0 };
	for (int g = 0; a->hdim == HSPMD_PARTIAL && g < a->hsize; g++)
		base.partials += multiplicity(&a->groups[g], HSPMD_PARTIAL);
	return base;
}

static void enter_group(const struct hspmd_annotation *a, const struct hspmd_shape *shape, int group, struct group_base *base)
{
	base->box = hspmd_box_full(shape);
	if (a->hdim >= 0)
		cut(&base->box, a->hdim, a->hunit, a->hsize, a->hweights, group);
	if (a->hdim != HSPMD_PARTIAL)
		base->partials = multiplicity(&a->groups[group], HSPMD_PARTIAL);
}

static void leave_group(const struct hspmd_annotation *a, int group, struct group_base *base)
{
	if (a->hdim == HSPMD_DUPLICATE)
		base->replica += multiplicity(&a->groups[group], HSPMD_DUPLICATE);
	if (a->hdim == HSPMD_PARTIAL)
		base->partial += multiplicity(&a->groups[group], HSPMD_PARTIAL);
}

static struct group_base group_base(const struct hspmd_annotation *a, const struct hspmd_shape *shape, int group)
{
	struct group_base base = first_base(a);
	for (int g = 0; g < group; g++)
		leave_group(a, g, &base);
	enter_group(a, shape, group, &base);
	return base;
}

static struct hspmd_local_shard device_shard(const struct hspmd_subgroup *g, const struct group_base *base, int group, int position)
{
	struct hspmd_local_shard shard = { .box = base->box, .group = group, .position = position, .partials = base->partials };
	int addend = 0, copy = 0, inner = g->device_count;
	for (int s = 0; s < g->split_count; s++) {
		const struct hspmd_split *split = &g->splits[s];
		inner /= split->parts;
		int digit = position / inner % split->parts;
		if (split->dim == HSPMD_PARTIAL)
			addend = addend * split->parts + digit;
		else if (split->dim == HSPMD_DUPLICATE)
			copy = copy * split->parts + digit;
		else
			cut(&shard.box, split->dim, split->unit, split->parts, split->weights, digit);
	}
	shard.partial = base->partial + addend;
	shard.replica = base->replica + copy;
	return shard;
}

bool hspmd_annotation_local_shard(const struct hspmd_annotation *a, const struct hspmd_shape *shape, int device,
                                  struct hspmd_local_shard *shard)
{
	for (int g = 0; g < a->hsize; g++)
		for (int i = 0; i < a->groups[g].device_count; i++)
			if (a->groups[g].devices[i] == device) {
				struct group_base base = group_base(a, shape, g);
				*shard = device_shard(&a->groups[g], &base, g, i);
				return true;
			}
	return false;
}

int hspmd_annotation_local_shards(const struct hspmd_annotation *a, const struct hspmd_shape *shape, int *devices,
                                  struct hspmd_local_shard *shards)
{
	int n = 0;
	struct group_base base = first_base(a);
	for (int g = 0; g < a->hsize; g++) {
		if (shards)
			enter_group(a, shape, g, &base);
		for (int i = 0; i < a->groups[g].device_count; i++, n++) {
			if (devices)
				devices[n] = a->groups[g].devices[i];
			if (shards)
				shards[n] = device_shard(&a->groups[g], &base, g, i);
		}
		leave_group(a, g, &base);
	}
	return n;
}

enum relation { SAME_ADDEND, OTHER_ADDEND, ALTERNATIVE };

/* Relation of two devices whose boxes overlap: they hold the same addend, two addends of one sum, or parts of two alternative ways to get
 * the value. */
static enum relation relate(const struct hspmd_annotation *a, const struct hspmd_local_shard *x, const struct hspmd_local_shard *y)
{
	if (x->group != y->group && a->hdim != HSPMD_PARTIAL)
		return ALTERNATIVE;
	return x->partial == y->partial ? SAME_ADDEND : OTHER_ADDEND;
}

struct placed {
	int device;
	struct hspmd_local_shard shard;
};

static int placed_order(const void *a, const void *b)
{
	int x = ((const struct placed *)a)->device, y = ((const struct placed *)b)->device;
	return (x > y) - (x < y);
}

/* All shards in the order of device numbers; NULL: memory. */
static struct placed *sorted_shards(const struct hspmd_annotation *a, const struct hspmd_shape *shape, int count)
{
	struct placed *placed = hspmd_calloc((size_t)count, sizeof *placed);
	int *devices = hspmd_calloc((size_t)count, sizeof *devices);
	struct hspmd_local_shard *shards = hspmd_calloc((size_t)count, sizeof *shards);
	if (placed && devices && shards) {
		hspmd_annotation_local_shards(a, shape, devices, shards);
		for (int i = 0; i < count; i++)
			placed[i] = (struct placed){ devices[i], shards[i] };
		hspmd_sort_if_needed(placed, (size_t)count, sizeof *placed, placed_order);
	} else {
		free(placed);
		placed = NULL;
	}
	free(devices);
	free(shards);
	return placed;
}

static bool same_shards(const struct hspmd_annotation *a, const struct placed *x, const struct hspmd_annotation *b, const struct placed *y,
                        int count)
{
	for (int i = 0; i < count; i++)
		if (x[i].device != y[i].device || x[i].shard.partials != y[i].shard.partials ||
		    !hspmd_box_equal(&x[i].shard.box, &y[i].shard.box))
			return false;
	struct hspmd_box common;
	for (int i = 0; i < count; i++) {
		if (x[i].shard.partials == 1)
			continue; /* it holds the value itself, however the others are numbered */
		for (int j = i + 1; j < count; j++)
			if (hspmd_box_intersect(&x[i].shard.box, &x[j].shard.box, &common) &&
			    relate(a, &x[i].shard, &x[j].shard) != relate(b, &y[i].shard, &y[j].shard))
				return false;
	}
	return true;
}

static bool same_weights(const int64_t *a, const int64_t *b, int count)
{
	return a == b || (a && b && !memcmp(a, b, (size_t)count * sizeof *a));
}

static bool same_devices(const struct hspmd_subgroup *a, const struct hspmd_subgroup *b)
{
	return a->device_count == b->device_count && !memcmp(a->devices, b->devices, (size_t)a->device_count * sizeof *a->devices);
}

/* Returns true if annotations are the same word by word; others may mean the same, too. */
static bool same_words(const struct hspmd_annotation *a, const struct hspmd_annotation *b)
{
	if (a->hsize != b->hsize || a->hdim != b->hdim || a->hunit != b->hunit || !same_weights(a->hweights, b->hweights, a->hsize))
		return false;
	for (int g = 0; g < a->hsize; g++) {
		const struct hspmd_subgroup *x = &a->groups[g], *y = &b->groups[g];
		if (!same_devices(x, y) || x->split_count != y->split_count)
			return false;
		for (int k = 0; k < x->split_count; k++) {
			const struct hspmd_split *v = &x->splits[k], *w = &y->splits[k];
			if (v->dim != w->dim || v->parts != w->parts || v->unit != w->unit ||
			    !same_weights(v->weights, w->weights, v->parts))
				return false;
		}
	}
	return true;
}

/* Returns true if each annotation divides the tensor among the same devices at once, and only one of them as copies, or as addends. */
static bool differ_in_kind(const struct hspmd_annotation *a, const struct hspmd_annotation *b)
{
	const struct hspmd_subgroup *x = &a->groups[0], *y = &b->groups[0];
	if (a->hsize != 1 || b->hsize != 1 || x->split_count != 1 || y->split_count != 1 || !same_devices(x, y))
		return false;
	int v = x->splits[0].dim, w = y->splits[0].dim, n = x->device_count;
	return n > 1 && x->splits[0].parts == n && y->splits[0].parts == n && v != w && (v < 0 || w < 0);
}

/* Compares annotations whatever rows count. */
static bool same_layout(const struct hspmd_annotation *a, const struct hspmd_annotation *b, const struct hspmd_shape *shape)
{
	if (a == b || same_words(a, b))
		return true;
	if (differ_in_kind(a, b))
		return false;
	int count = hspmd_annotation_local_shards(a, shape, NULL, NULL);
	if (hspmd_annotation_local_shards(b, shape, NULL, NULL) != count)
		return false;
	struct placed *x = sorted_shards(a, shape, count), *y = sorted_shards(b, shape, count);
	bool equal = x && y && same_shards(a, x, b, y, count);
	free(x);
	free(y);
	return equal;
}

static bool same_rows(const struct hspmd_expert_rows *x, const struct hspmd_expert_rows *y)
{
	if (!x || !y)
		return x == y;
	return x->count == y->count && x->per_token == y->per_token &&
	       same_layout(x->experts, y->experts, &(struct hspmd_shape){ 1, { x->count } });
}

bool hspmd_annotation_equal(const struct hspmd_annotation *a, const struct hspmd_annotation *b, const struct hspmd_shape *shape)
{
	return same_rows(a->rows, b->rows) && same_layout(a, b, shape);
}

bool hspmd_annotation_serves(const struct hspmd_annotation *have, const struct hspmd_annotation *want, const struct hspmd_shape *shape)
{
	bool fewer = have->rows && !want->rows && hspmd_annotation_is_partial(want);
	bool more = !have->rows && want->rows && !hspmd_annotation_is_partial(want);
	return (same_rows(have->rows, want->rows) || fewer || more) && same_layout(have, want, shape);
}
