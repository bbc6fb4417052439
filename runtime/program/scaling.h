/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes that a program's values have in micro-batches of another length and number of samples. Instructions, memory and state are the
 * program's; only the sizes of tensors that grow with the length or with the samples differ (Hetu v2's symbolic shapes, arXiv 2504.20490,
 * section 5.5). Which dimensions grow is found by comparing the graphs at both sizes. */
#ifndef HSPMD_PROGRAM_SCALING_H
#define HSPMD_PROGRAM_SCALING_H

#include "runtime/program/program.h"

struct hspmd_scaling {
	const struct hspmd_program *from;
	int64_t length, samples;            /* of a micro-batch */
	struct hspmd_graph *graph;          /* of these; owned */
	uint16_t *grows;                    /* per tensor: two bits per dimension, which say with what it grows */
	struct hspmd_scaled_transfer *made; /* transfers that grow */
	size_t made_count, made_capacity;
	int64_t step; /* every bound in a dimension that grows with the length is a multiple of it */
	bool uneven;  /* some bound in a dimension that grows with the samples has no counterpart */
};

struct hspmd_scaled_transfer {
	const struct hspmd_transfer *of;
	uint16_t grows;
	struct hspmd_transfer *transfer; /* owned, until somebody takes it */
};

/* The program's sizes for micro-batches of how->batch samples of how->seq_len tokens; how: otherwise the options of the program's graph.
 * source: the one that the program was built from. p must outlive it. Close it also after a failure. 0; -1 and err: memory, the net has
 * another structure at these sizes, or what differs does not grow in proportion. */
int hspmd_scaling_open(struct hspmd_scaling *s, const struct hspmd_program *p, const struct hspmd_graph_source *source,
                       const struct hspmd_model_build_options *how, struct hspmd_error *err);
void hspmd_scaling_close(struct hspmd_scaling *s);

/* Makes the transfers of the program that grow. To be called before what follows. 0; -1 and err: memory, or the parts on the devices would
 * not have integer sizes (err names the number of which the length must be a multiple). */
int hspmd_scaling_fit(struct hspmd_scaling *s, struct hspmd_error *err);
/* The transfer of an instruction: a transfer that does not grow is the program's own. */
const struct hspmd_transfer *hspmd_scaling_transfer(const struct hspmd_scaling *s, const struct hspmd_instruction *in);
/* The number of the operator whose attributes an instruction has, in both graphs; -1: it has others. */
ptrdiff_t hspmd_scaling_op(const struct hspmd_scaling *s, const struct hspmd_instruction *in);
/* types: a copy of the program's, which get these sizes. */
void hspmd_scaling_slot_types(const struct hspmd_scaling *s, struct hspmd_slot_type *types);

/* Returns true if values of this type have other sizes. */
bool hspmd_scaling_grows(const struct hspmd_scaling *s, const struct hspmd_slot_type *type);
/* A copy of a program that owns its instructions, slots, types and states alone, and borrows the rest. NULL: memory. */
struct hspmd_program *hspmd_program_copy(const struct hspmd_program *p);

#endif
