/* SPDX-License-Identifier: Apache-2.0 */
/* How a stage's layers are divided among unlike devices. Private to the solver. */
#ifndef HSPMD_SEARCH_SHARD_RATIO_H
#define HSPMD_SEARCH_SHARD_RATIO_H

#include "controller/solver/sim/evaluate.h"

#define HSPMD_GRANULES 64 /* parts that a layer is divided into where no model says how many heads there are */

/* Choose the stage's shard ratio (NULL where even shares are best), in whole heads that share keys and values, so that the slowest device
 * is done soonest and all hold their shares. 0; 1: no division does, and the stage is as it was; -1: memory is short. */
int hspmd_choose_shard_ratio(struct hspmd_costs *c, struct hspmd_plan *p, int pipeline, int stage);

#endif
