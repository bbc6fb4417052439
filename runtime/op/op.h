/* SPDX-License-Identifier: Apache-2.0 */
/* The operators: each is one file here (shapes, rule, backward, cost; runtime/graph/op_type.h), one line in op_list.h, and a kernel file
 * per device. */
#ifndef HSPMD_OP_OP_H
#define HSPMD_OP_OP_H

#include "runtime/graph/graph.h"
#include "runtime/graph/op_type.h"
#include "runtime/op/rule.h"

/* All of them, by opcode; no entry is NULL. What graphs are made with. */
extern const struct hspmd_op_type *const hspmd_op_types[HSPMD_OP_COUNT];

/* Deduction, by subgroup as in SPMD and for hdim as one dimension more (HSPMD section 4.3). From the inputs' annotations: `want[i]` = NULL
 * when input i is fine as it lies, else the annotation it must be resharded to first (an explicit Reshard is put before the operator; this
 * is how Partial is refused by what is not linear); `out[o]` = the outputs' annotations, for outputs that the view has (rank >= 0). All new
 * annotations are owned by the caller. Fails only on what no Reshard can mend. */
int hspmd_op_deduce(const struct hspmd_op_type *type, const struct hspmd_op_view *v, struct hspmd_annotation **want,
                    struct hspmd_annotation **out, struct hspmd_error *err);

#endif
