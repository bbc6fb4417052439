/* SPDX-License-Identifier: Apache-2.0 */
/* The operators. Each has one file here (shapes, rule, backward, cost; runtime/graph/op_type.h), one line in runtime/tensor/opcode_list.h,
 * and one kernel file per device. */
#ifndef HSPMD_OP_OP_H
#define HSPMD_OP_OP_H

#include "runtime/graph/graph.h"
#include "runtime/graph/op_type.h"
#include "runtime/op/rule.h"

/* All operators by opcode; no entry is NULL. For hspmd_graph_create. */
extern const struct hspmd_op_type *const hspmd_op_types[HSPMD_OP_COUNT];

/* Deduces annotations, per subgroup as in SPMD, with hdim as one more dimension (HSPMD, section 4.3). From the inputs' annotations: want[i]
 * is NULL if input i can be used as it is laid out, else the annotation to which it must be resharded first (the caller puts an explicit
 * Reshard before the operator; so non-linear operators refuse partial inputs); out[o] is the annotation of output o, for outputs that the
 * view has (rank >= 0). The caller owns all new annotations. Fails only if no Reshard can help. */
int hspmd_op_deduce(const struct hspmd_op_type *type, const struct hspmd_op_view *v, struct hspmd_annotation **want,
                    struct hspmd_annotation **out, struct hspmd_error *err);

#endif
