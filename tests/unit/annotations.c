/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/annotations.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/alloc.h"
#include "runtime/device/random.h"

struct filling {
	struct annotation_list *list;
	const struct hspmd_shape *shape;
	const int64_t *units;
	unsigned seed;
	uint64_t draws;
};

static int draw(struct filling *f, int below)
{
	uint32_t w[4];
	hspmd_random_words(f->seed, 77, f->draws++, w);
	return (int)(w[0] % (uint32_t)below);
}

/* Takes ownership of the annotation. */
static void add(struct filling *f, struct hspmd_annotation *a)
{
	assert_non_null(a);
	if (hspmd_annotation_check(a, f->shape, NULL)) {
		hspmd_annotation_destroy(a);
		return;
	}
	assert_int_equal(hspmd_array_grow(&f->list->item, &f->list->capacity, f->list->count, sizeof *f->list->item), 0);
	f->list->item[f->list->count++] = a;
}

/* Adds a variant with another unit and other weights for one of the splits. */
static void add_variant(struct filling *f, const struct hspmd_annotation *a)
{
	struct hspmd_annotation *b = hspmd_annotation_copy(a);
	assert_non_null(b);
	struct hspmd_subgroup *group = &b->groups[draw(f, b->hsize)];
	bool changed = false;
	for (int i = 0; i < group->split_count; i++) {
		struct hspmd_split *s = &group->splits[i];
		if (s->dim < 0)
			continue;
		if (f->units[s->dim] > 1 && draw(f, 2))
			s->unit = f->units[s->dim];
		s->weights = malloc((size_t)s->parts * sizeof *s->weights);
		assert_non_null(s->weights);
		for (int k = 0; k < s->parts; k++)
			s->weights[k] = 1 + draw(f, 3);
		changed = true;
	}
	if (b->hdim >= 0 && f->units[b->hdim] > 1 && draw(f, 2)) {
		b->hunit = f->units[b->hdim];
		changed = true;
	}
	if (changed)
		add(f, b);
	else
		hspmd_annotation_destroy(b);
}

/* A state of a subgroup: a list of (dimension, parts) whose product of parts is the number of devices. */
struct state {
	int count, dim[8], parts[8];
};
enum { STATES_MAX = 80 };
struct states {
	int count;
	struct state item[STATES_MAX];
};

static void extend(struct states *all, struct state *s, int left, int rank)
{
	if (left == 1) {
		assert_true(all->count < STATES_MAX);
		all->item[all->count++] = *s;
		return;
	}
	for (int parts = 2; parts <= left; parts++)
		for (int dim = HSPMD_PARTIAL; left % parts == 0 && dim < rank; dim++) {
			s->dim[s->count] = dim;
			s->parts[s->count++] = parts;
			extend(all, s, left / parts, rank);
			s->count--;
		}
}

/* Unions of subgroups of the given sizes, each subgroup in every state, with every relation. */
static void fill_union(struct filling *f, const int *sizes, int groups)
{
	static const int devices[] = { 0, 1, 2, 3, 4, 5, 6, 7 };
	struct states states[4] = { { .count = 0 } };
	int pick[4] = { 0 };
	for (int g = 0; g < groups; g++)
		extend(&states[g], &(struct state){ 0 }, sizes[g], f->shape->rank);
	for (;;) {
		struct hspmd_annotation *part[4];
		for (int g = 0, first = 0; g < groups; first += sizes[g++]) {
			const struct state *s = &states[g].item[pick[g]];
			part[g] = hspmd_annotation_single(devices + first, sizes[g]);
			assert_non_null(part[g]);
			for (int i = 0; i < s->count; i++)
				assert_int_equal(hspmd_annotation_split(part[g], 0, s->dim[i], s->parts[i], 1, NULL), 0);
		}
		for (int hdim = groups > 1 ? HSPMD_PARTIAL : HSPMD_DUPLICATE; hdim < (groups > 1 ? f->shape->rank : 0); hdim++) {
			struct hspmd_annotation *a =
			        hspmd_annotation_union((const struct hspmd_annotation *const *)part, groups, hdim, 1, NULL);
			assert_non_null(a);
			add_variant(f, a);
			add(f, a);
		}
		for (int g = 0; g < groups; g++)
			hspmd_annotation_destroy(part[g]);
		int g = 0;
		while (g < groups && ++pick[g] == states[g].count)
			pick[g++] = 0;
		if (g == groups)
			return;
	}
}

static void fill_sizes(struct filling *f, int *sizes, int groups, int left)
{
	if (left == 0)
		fill_union(f, sizes, groups);
	for (int size = 1; size <= left && groups < 4; size++) {
		sizes[groups] = size;
		fill_sizes(f, sizes, groups + 1, left - size);
	}
}

void annotation_list_fill(struct annotation_list *list, const struct hspmd_shape *shape, int devices, const int64_t *units, unsigned seed)
{
	struct filling f = { .list = list, .shape = shape, .units = units, .seed = seed };
	int sizes[4] = { 0 };
	*list = (struct annotation_list){ 0 };
	fill_sizes(&f, sizes, 0, devices);
}

void annotation_list_free(struct annotation_list *list)
{
	for (size_t i = 0; i < list->count; i++)
		hspmd_annotation_destroy(list->item[i]);
	free(list->item);
}
