/* SPDX-License-Identifier: Apache-2.0 */
/* Symbolic sequence length: one program serves all lengths up to its own at which the parts on its devices have integer sizes.
 * Instructions, memory and state are the program's; only the sizes of tensors that grow with the length differ (Hetu v2's symbolic
 * shapes, arXiv 2504.20490, section 5.5). */
#ifndef HSPMD_PROGRAM_SEQ_LEN_H
#define HSPMD_PROGRAM_SEQ_LEN_H

#include "runtime/program/program.h"

/* The program at `length`. Slots have the same offsets as in `p`, so an executor can change between the two from step to step
 * (hspmd_executor_set_program). `source` is the one that p was built from; dimensions that differ between its graphs at the two lengths
 * are those that grow, and must be proportional to the length. p must outlive the result. NULL and err: `length` exceeds the program's
 * own, is not a multiple of the number that its parts require (err names the number), or the net has another structure at this length. */
struct hspmd_program *hspmd_program_at_length(const struct hspmd_program *p, const struct hspmd_graph_source *source, int64_t length,
                                              struct hspmd_device *dev, struct hspmd_error *err);

#endif
