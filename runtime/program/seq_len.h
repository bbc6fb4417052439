/* SPDX-License-Identifier: Apache-2.0 */
/* Symbolic sequence length: one program serves every length up to its own of which its devices' parts are whole. Instructions, memory and
 * state are the program's; only the sizes of what grows with the length differ (Hetu v2's symbolic shapes, arXiv 2504.20490, section
 * 5.5). */
#ifndef HSPMD_PROGRAM_SEQ_LEN_H
#define HSPMD_PROGRAM_SEQ_LEN_H

#include "runtime/program/program.h"

/* The program at `length`: slots lie where they lie in `p`, so an executor can go from one to the other between steps
 * (hspmd_executor_set_program). `source` is what p was built from; dimensions that differ between its graphs at the two lengths are the
 * ones that grow, and must be in proportion. p must outlive the result. NULL and err: longer than the program's own, no multiple of what
 * its parts need (says which), or a net that has another form at this length. */
struct hspmd_program *hspmd_program_at_length(const struct hspmd_program *p, const struct hspmd_graph_source *source, int64_t length,
                                              struct hspmd_device *dev, struct hspmd_error *err);

#endif
