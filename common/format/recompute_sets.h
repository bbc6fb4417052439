/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of operators that a plan's stages recompute: a JSON array of arrays of names. A name is that of a kind of operators ("rmsnorm"), or
 * of the weight that one operator of each block multiplies with, without the block and ".weight" ("mlp.up_proj"). Two lists of the same
 * names are the same set in any order. */
#ifndef HSPMD_FORMAT_RECOMPUTE_SETS_H
#define HSPMD_FORMAT_RECOMPUTE_SETS_H

#include <jansson.h>

#include "common/format/plan.h"

/* The list that a kind of recomputation names, borrowed; NULL: it names none. */
const json_t *hspmd_recompute_set(const json_t *sets, enum hspmd_recompute recompute);
/* The index of a list in *sets (NULL: there are none yet), to which a copy of it is added if needed. HSPMD_RECOMPUTE_SETS: there are as
 * many others; -1: memory. */
int hspmd_recompute_sets_add(json_t **sets, const json_t *set);
/* "a, b and c"; malloc'd. NULL: memory. */
char *hspmd_recompute_set_text(const json_t *set);
/* Returns the kinds of recomputation that there are, as a set of 1 << kind. */
unsigned hspmd_recompute_kinds(const json_t *sets);
/* For each kind of recomputation under `from`, the same under `to`. If a list is not in `to`: the longest list all of whose names it
 * has, or else the selective kind, and *inexact is set. */
void hspmd_recompute_sets_match(const json_t *from, const json_t *to, enum hspmd_recompute kind_of[HSPMD_RECOMPUTE_FULL + 1],
                                bool *inexact);
/* Makes `sets` the plan's, and renames what its stages recompute as above. */
void hspmd_plan_take_recompute_sets(struct hspmd_plan *p, json_t *sets);

#endif
