/* SPDX-License-Identifier: Apache-2.0 */
/* Placement of a plan's stages among equal nodes such that nodes that are lost together (common/losses.h) hold all copies of as few bytes
 * as possible. Private to the solver.
 *
 * In the cost model a step takes the same time on any of a class's devices, so a better placement is free if no state has to move. What
 * no placement saves must be copied to other nodes (runtime/generation/checkpoint_placement.h), again and again. Therefore bytes that one
 * kind of loss takes away completely count EXPOSED times as much as bytes that move once (holders.c). */
#ifndef HSPMD_SEARCH_HOLDERS_H
#define HSPMD_SEARCH_HOLDERS_H

#include "controller/solver/search/search_internal.h"

#define HSPMD_HOLDERS_NODES 2048 /* plans over more nodes keep their placement */

/* Exchange equal nodes as long as this is worth it and the plan's objective stays at most `enough`. The cost of a placement is the bytes
 * of state that are lost with a shrink by count, a rack or a member job, summed over all such losses that are possible (each number of
 * nodes down to the request's `least_nodes` is one). Nothing is done if the optimizer state is divided among the pipelines: any loss then
 * takes some of it, with any placement. *moved is the number of bytes that move (NAN: there is no current plan) and is kept up to date.
 * Returns 0, or -1 if memory runs out; the plan is valid in both cases. */
int hspmd_holders_spread(struct hspmd_search *s, struct hspmd_plan *plan, double enough, double *moved);

#endif
