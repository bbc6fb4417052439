/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the passes over a graph share (spmd.c, ring_attention.c). */
#ifndef HSPMD_SHARDING_SPMD_INTERNAL_H
#define HSPMD_SHARDING_SPMD_INTERNAL_H

#include "runtime/sharding/spmd.h"

struct hspmd_spmd_builder {
	struct hspmd_spmd *s;
	const struct hspmd_graph *g;
	const struct hspmd_spmd_stage *stages;
	const struct hspmd_link_cost *cost;
	struct hspmd_error *err;
};

/* Takes the annotation, also on failure. -1: memory. */
int hspmd_spmd_add_value(struct hspmd_spmd_builder *p, int tensor, int stage, struct hspmd_annotation *annotation);
/* The last node, all zero but what is given. Valid until the next. NULL: memory. */
struct hspmd_spmd_node *hspmd_spmd_add_node(struct hspmd_spmd_builder *p, int op, int stage, int layer, bool backward);

/* ---- ring_attention.c */
/* Attention whose keys and values lie split along the sequence need not gather them: they go around the stage's context groups. want: what
 * deduction says of the inputs. Whether operator `op`, whose inputs are these values, can be run so: then what is wanted of keys and values
 * is taken back. */
bool hspmd_ring_attention_fits(const struct hspmd_spmd_builder *p, const struct hspmd_op *op, int stage, const int *in,
                               struct hspmd_annotation **want);
/* Append the nodes. `in`: the input values as they must lie but for keys and values, which lie split; out: values, whose annotations follow
 * from the ring. */
int hspmd_ring_attention_emit(struct hspmd_spmd_builder *p, size_t number, int stage, const int *in, const int *out);
/* How an output lies when run so: what deduction says (taken), or as the keys do. NULL: memory. */
struct hspmd_annotation *hspmd_ring_attention_output(const struct hspmd_spmd_builder *p, const struct hspmd_op *op, int output,
                                                     const int *in, struct hspmd_annotation *deduced);

#endif
