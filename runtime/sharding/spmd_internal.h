/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the passes over a graph (spmd.c, spmd_pass.c, reshard.c, ring_attention.c). */
#ifndef HSPMD_SHARDING_SPMD_INTERNAL_H
#define HSPMD_SHARDING_SPMD_INTERNAL_H

#include "runtime/sharding/spmd.h"

struct hspmd_spmd_builder {
	struct hspmd_spmd *s;
	const struct hspmd_graph *g;
	const struct hspmd_spmd_stage *stages;
	const struct hspmd_link_cost *cost;
	bool deduce_only; /* add no Reshards, whose transfers would have to be resolved */
	struct hspmd_error *err;
	int *of_gradient; /* by tensor: whose gradient it is, -1: none's */
	/* The same values without Reshards, if operators read rows of experts: tells which tensors others read whole. NULL: none do. */
	struct hspmd_spmd *deduced;
};

/* Takes ownership of the annotation, also on failure. -1: memory. */
int hspmd_spmd_add_value(struct hspmd_spmd_builder *p, int tensor, int stage, struct hspmd_annotation *annotation);
/* Appends a node, zero but for the arguments. Valid until the next is added. NULL: memory. */
struct hspmd_spmd_node *hspmd_spmd_add_node(struct hspmd_spmd_builder *p, int op, int stage, int layer, bool backward);

/* ---- reshard.c */
/* Returns true if the data reader can fill an input in this layout: every device has some samples and positions, and all of the others. */
bool hspmd_spmd_is_readable(const struct hspmd_annotation *a, const struct hspmd_shape *shape);
/* Reshards `from` to `want` in a stage, or returns a value that is already laid out so. choice: the value that says which experts the rows
 * chose that are wanted, -1: none. Takes ownership of want, also on failure. */
int hspmd_spmd_reshard(struct hspmd_spmd_builder *p, int from, struct hspmd_annotation *want, int choice, int stage, int layer,
                       bool backward);

/* ---- ring_attention.c */
/* Attention whose keys and values are split along the sequence need not gather them: they are passed around the stage's context groups.
 * `in`: values of operator op's inputs; `want`: what deduction wants of the inputs. Returns true if the operator can run so; then the wants
 * for keys and values are dropped. */
bool hspmd_ring_attention_fits(const struct hspmd_spmd_builder *p, const struct hspmd_op *op, int stage, const int *in,
                               struct hspmd_annotation **want);
/* Appends the nodes. `in`: the input values as wanted, except that keys and values are split; `out`: output values with the annotations of
 * hspmd_ring_attention_output. */
int hspmd_ring_attention_emit(struct hspmd_spmd_builder *p, size_t number, int stage, const int *in, const int *out);
/* The annotation of an output if the operator runs so: the deduced one (takes ownership), or that of the keys. NULL: memory. */
struct hspmd_annotation *hspmd_ring_attention_output(const struct hspmd_spmd_builder *p, const struct hspmd_op *op, int output,
                                                     const int *in, struct hspmd_annotation *deduced);

#endif
