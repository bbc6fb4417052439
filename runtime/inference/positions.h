/* SPDX-License-Identifier: Apache-2.0 */
/* Which dimension of every tensor counts the positions of the sequence. Operators whose rules let that dimension be split compute each
 * position alone, so that new positions can be appended without those before them; attention needs only the keys and values of those. */
#ifndef HSPMD_INFERENCE_POSITIONS_H
#define HSPMD_INFERENCE_POSITIONS_H

#include <stdbool.h>

#include "runtime/graph/graph.h"

/* Fills dim[tensor]: the dimension, or -1. Only the operators marked in `runs` count. 0; or -1, and err names the operator that needs
 * other positions as well. */
int inference_positions(const struct hspmd_graph *g, const bool *runs, int *dim, struct hspmd_error *err);

#endif
