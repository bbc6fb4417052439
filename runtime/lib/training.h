/* SPDX-License-Identifier: Apache-2.0 */
/* A training of hspmd.h, for those parts of the library that are elsewhere. */
#ifndef HSPMD_LIB_TRAINING_H
#define HSPMD_LIB_TRAINING_H

#include "runtime/lib/net.h"

/* NULL: none yet. The training's. */
const struct hspmd_cluster *hspmd_training_get_cluster(const struct hspmd_training *t);
/* The net, with the optimizer. 0, or -1 and err. Borrows the training. */
int hspmd_training_get_source(const struct hspmd_training *t, struct hspmd_graph_source *out, struct hspmd_error *err);
/* Takes the plan, which was made for the cluster. */
void hspmd_training_take_plan(struct hspmd_training *t, struct hspmd_plan *plan);

#endif
