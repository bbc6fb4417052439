/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/annotation/annotation.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

static void *duplicate(const void *p, size_t n, size_t size)
{
	void *copy = hspmd_calloc(n, size);
	if (copy && n > 0)
		memcpy(copy, p, n * size);
	return copy;
}

static void group_clear(struct hspmd_subgroup *g)
{
	for (int s = 0; s < g->split_count; s++)
		free(g->splits[s].weights);
	free(g->splits);
	free(g->devices);
	*g = (struct hspmd_subgroup){ 0 };
}

void hspmd_annotation_destroy(struct hspmd_annotation *a)
{
	if (!a)
		return;
	int saved = errno;
	for (int g = 0; g < a->hsize; g++)
		group_clear(&a->groups[g]);
	hspmd_annotation_drop_rows(a);
	free(a->groups);
	free(a->hweights);
	free(a);
	errno = saved;
}

/* An annotation of `hsize` subgroups without devices. */
static struct hspmd_annotation *blank(int hsize)
{
	struct hspmd_annotation *a = hspmd_calloc(1, sizeof *a);
	if (!a)
		return NULL;
	a->groups = hspmd_calloc((size_t)hsize, sizeof *a->groups);
	if (!a->groups) {
		free(a);
		return NULL;
	}
	a->hsize = hsize;
	a->hdim = HSPMD_DUPLICATE;
	a->hunit = 1;
	return a;
}

struct hspmd_annotation *hspmd_annotation_single(const int *devices, int count)
{
	struct hspmd_annotation *a = blank(1);
	if (!a)
		return NULL;
	a->groups[0].devices = duplicate(devices, (size_t)count, sizeof *devices);
	if (!a->groups[0].devices) {
		hspmd_annotation_destroy(a);
		return NULL;
	}
	a->groups[0].device_count = count;
	return a;
}

int hspmd_annotation_split(struct hspmd_annotation *a, int group, int dim, int parts, int64_t unit, const int64_t *weights)
{
	struct hspmd_subgroup *g = &a->groups[group];
	int64_t *w = NULL;
	if (weights) {
		w = duplicate(weights, (size_t)parts, sizeof *weights);
		if (!w)
			return -1;
	}
	struct hspmd_split *grown = realloc(g->splits, ((size_t)g->split_count + 1) * sizeof *grown);
	if (!grown) {
		free(w);
		return -1;
	}
	g->splits = grown;
	g->splits[g->split_count++] = (struct hspmd_split){ .dim = dim, .parts = parts, .unit = dim >= 0 ? unit : 1, .weights = w };
	return 0;
}

/* *to is blank. On failure *to keeps the part copied so far, and its owner's destroy frees it. */
static int group_copy(struct hspmd_subgroup *to, const struct hspmd_subgroup *from)
{
	to->devices = duplicate(from->devices, (size_t)from->device_count, sizeof *from->devices);
	to->splits = hspmd_calloc((size_t)from->split_count, sizeof *to->splits);
	if (!to->devices || !to->splits)
		return -1;
	to->device_count = from->device_count;
	for (int s = 0; s < from->split_count; s++) {
		const struct hspmd_split *split = &from->splits[s];
		to->splits[s] = *split;
		to->splits[s].weights = NULL;
		to->split_count = s + 1;
		if (!split->weights)
			continue;
		to->splits[s].weights = duplicate(split->weights, (size_t)split->parts, sizeof *split->weights);
		if (!to->splits[s].weights)
			return -1;
	}
	return 0;
}

struct hspmd_annotation *hspmd_annotation_union(const struct hspmd_annotation *const *parts, int count, int hdim, int64_t hunit,
                                                const int64_t *hweights)
{
	int hsize = 0;
	for (int i = 0; i < count; i++)
		hsize += parts[i]->hsize;
	struct hspmd_annotation *a = blank(hsize);
	if (!a)
		return NULL;
	a->hdim = hsize > 1 ? hdim : HSPMD_DUPLICATE;
	a->hunit = a->hdim >= 0 ? hunit : 1;
	int at = 0;
	for (int i = 0; i < count; i++)
		for (int g = 0; g < parts[i]->hsize; g++)
			if (group_copy(&a->groups[at++], &parts[i]->groups[g]) != 0)
				goto failed;
	if (hweights && hsize > 1) {
		a->hweights = duplicate(hweights, (size_t)hsize, sizeof *hweights);
		if (!a->hweights)
			goto failed;
	}
	const struct hspmd_expert_rows *rows = count == 1 ? parts[0]->rows : NULL;
	if (rows) {
		struct hspmd_annotation *experts = hspmd_annotation_copy(rows->experts);
		if (!experts || hspmd_annotation_set_rows(a, experts, rows->count, rows->per_token))
			goto failed;
	}
	return a;
failed:
	hspmd_annotation_destroy(a);
	return NULL;
}

struct hspmd_annotation *hspmd_annotation_copy(const struct hspmd_annotation *a)
{
	return hspmd_annotation_union(&a, 1, a->hdim, a->hunit, a->hweights);
}

int hspmd_annotation_addends(const struct hspmd_annotation *a)
{
	int most = 1;
	for (int g = 0; g < a->hsize; g++) {
		int addends = 1;
		for (int s = 0; s < a->groups[g].split_count; s++)
			addends *= a->groups[g].splits[s].dim == HSPMD_PARTIAL ? a->groups[g].splits[s].parts : 1;
		most = addends > most ? addends : most;
	}
	return most * (a->hdim == HSPMD_PARTIAL ? a->hsize : 1);
}

bool hspmd_annotation_is_partial(const struct hspmd_annotation *a)
{
	return hspmd_annotation_addends(a) > 1;
}

int hspmd_annotation_set_rows(struct hspmd_annotation *a, struct hspmd_annotation *experts, int64_t count, int per_token)
{
	struct hspmd_expert_rows *rows = hspmd_calloc(1, sizeof *rows);
	if (!rows) {
		hspmd_annotation_destroy(experts);
		return -1;
	}
	*rows = (struct hspmd_expert_rows){ .experts = experts, .count = count, .per_token = per_token };
	hspmd_annotation_drop_rows(a);
	a->rows = rows;
	return 0;
}

void hspmd_annotation_drop_rows(struct hspmd_annotation *a)
{
	if (a->rows)
		hspmd_annotation_destroy(a->rows->experts);
	free(a->rows);
	a->rows = NULL;
}
