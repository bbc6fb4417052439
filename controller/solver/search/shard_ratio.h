/* SPDX-License-Identifier: Apache-2.0 */
/* Shard ratio: how a stage's layers are divided among unequal devices. Private to the solver. */
#ifndef HSPMD_SEARCH_SHARD_RATIO_H
#define HSPMD_SEARCH_SHARD_RATIO_H

#include "controller/solver/sim/evaluate.h"

#define HSPMD_GRANULES 64 /* number of parts that a layer is divided into if no model gives the number of heads */

/* Choose the stage's shard ratio (NULL if even shares are best), in whole heads that share keys and values, so that the slowest device
 * finishes as early as possible and every device can hold its share. Returns 0; 1 if no division is possible, and the stage is unchanged;
 * -1 if memory runs out. */
int hspmd_choose_shard_ratio(struct hspmd_costs *c, struct hspmd_plan *p, int pipeline, int stage);

#endif
