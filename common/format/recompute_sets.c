/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/recompute_sets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const json_t *hspmd_recompute_set(const json_t *sets, enum hspmd_recompute recompute)
{
	return recompute < HSPMD_RECOMPUTE_SET || recompute >= HSPMD_RECOMPUTE_FULL ? NULL
	                                                                            : json_array_get(sets, recompute - HSPMD_RECOMPUTE_SET);
}

static bool has_name(const json_t *set, const char *name)
{
	for (size_t i = 0; i < json_array_size(set); i++)
		if (!strcmp(json_string_value(json_array_get(set, i)), name))
			return true;
	return false;
}

static bool is_within(const json_t *inner, const json_t *outer)
{
	for (size_t i = 0; i < json_array_size(inner); i++)
		if (!has_name(outer, json_string_value(json_array_get(inner, i))))
			return false;
	return true;
}

int hspmd_recompute_sets_add(json_t **sets, const json_t *set)
{
	size_t n = json_array_size(*sets);
	for (size_t i = 0; i < n; i++)
		if (is_within(set, json_array_get(*sets, i)) && is_within(json_array_get(*sets, i), set))
			return (int)i;
	if (n == HSPMD_RECOMPUTE_SETS)
		return HSPMD_RECOMPUTE_SETS;
	if (!*sets && !(*sets = json_array()))
		return -1;
	return json_array_append_new(*sets, json_deep_copy(set)) ? -1 : (int)n;
}

char *hspmd_recompute_set_text(const json_t *set)
{
	char *text = NULL;
	size_t size, n = json_array_size(set);
	FILE *f = open_memstream(&text, &size);
	for (size_t i = 0; f && i < n; i++)
		fprintf(f, "%s%s", !i ? "" : i + 1 < n ? ", " : " and ", json_string_value(json_array_get(set, i)));
	if (f && !fclose(f))
		return text;
	free(text);
	return NULL;
}

unsigned hspmd_recompute_kinds(const json_t *sets)
{
	unsigned of_sets = (1u << json_array_size(sets)) - 1;
	return 1u << HSPMD_RECOMPUTE_NONE | 1u << HSPMD_RECOMPUTE_SELECTIVE | of_sets << HSPMD_RECOMPUTE_SET | 1u << HSPMD_RECOMPUTE_FULL;
}

void hspmd_recompute_sets_match(const json_t *from, const json_t *to, enum hspmd_recompute kind_of[HSPMD_RECOMPUTE_FULL + 1], bool *inexact)
{
	*inexact = false;
	for (int k = 0; k <= HSPMD_RECOMPUTE_FULL; k++) {
		const json_t *set = hspmd_recompute_set(from, (enum hspmd_recompute)k);
		size_t most = 0;
		bool found = false;
		kind_of[k] = set ? HSPMD_RECOMPUTE_SELECTIVE : (enum hspmd_recompute)k;
		for (size_t i = 0; set && !found && i < json_array_size(to); i++) {
			const json_t *other = json_array_get(to, i);
			if (json_array_size(other) <= most || !is_within(other, set))
				continue;
			most = json_array_size(other);
			found = is_within(set, other);
			kind_of[k] = (enum hspmd_recompute)(HSPMD_RECOMPUTE_SET + i);
		}
		*inexact |= set && !found;
	}
}

void hspmd_plan_take_recompute_sets(struct hspmd_plan *p, json_t *sets)
{
	enum hspmd_recompute kind_of[HSPMD_RECOMPUTE_FULL + 1];
	bool inexact;
	hspmd_recompute_sets_match(p->recompute_sets, sets, kind_of, &inexact);
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			p->pipelines[i].stages[s].recompute = kind_of[p->pipelines[i].stages[s].recompute];
	json_incref(sets);
	json_decref(p->recompute_sets);
	p->recompute_sets = sets;
}
