/* SPDX-License-Identifier: Apache-2.0 */
/* On which of the nodes that are alike a plan's stages lie: so that what goes at once (common/losses.h) takes all holders of as little as
 * can be. Private to the solver.
 *
 * Devices of a kind cost a step the same wherever they are, so this is free where nothing has to move; what it cannot save is copied
 * (runtime/generation/checkpoint_placement.h), again and again. So bytes that one kind of loss takes altogether count EXPOSED times what
 * moves once (holders.c). */
#ifndef HSPMD_SEARCH_HOLDERS_H
#define HSPMD_SEARCH_HOLDERS_H

#include "controller/solver/search/search_internal.h"

#define HSPMD_HOLDERS_NODES 2048 /* plans over more stay as they are */

/* Exchange nodes of the same devices while that is worth it and the plan stays within `enough` (an objective). What counts is the bytes of
 * state that are lost with a shrink by count, a rack or a member job, summed over all of these there can be (each number of nodes down to
 * the request's `least_nodes` is one). Nothing is done where the optimizer's state is spread over the pipelines: any loss takes some of it,
 * wherever the plan lies. *moved: the bytes that move (NAN: nothing is there yet), kept up to date. 0 or -1 (memory); the plan is whole in
 * any case. */
int hspmd_holders_settle(struct hspmd_search *s, struct hspmd_plan *plan, double enough, double *moved);

#endif
