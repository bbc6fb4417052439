/* SPDX-License-Identifier: Apache-2.0 */
/* Pads the rows of matrices whose length is no multiple of what a device reads at once, as those of GPT-2's logits, of 50,257 numbers: 16
 * bytes are what its widest loads and cuBLAS's kernels for tensor cores want ("cuBLAS Library", section "Tensor Core Usage": leading
 * dimensions). A pass over the instructions of the micro-batches, after operators are fused and before memory is planned. A value is padded
 * if every operator that writes or reads it says that its kernels honour rows that are apart (padded_in, padded_out); the numbers do not
 * change. */
#include <stdlib.h>

#include "common/alloc.h"
#include "common/format/device_traits.h"
#include "runtime/op/op.h"
#include "runtime/program/program.h"

#define WIDEST 16      /* bytes of one access */
#define LEAST_ROW 2048 /* bytes: the padding of shorter rows would be a large part of them */

static int rank_of(const struct hspmd_program *p, int slot)
{
	return slot < 0 ? -1 : p->slot_types[p->slots[slot].slot_type].box.rank;
}

/* The rows of a product's operand are those of its matrix unless several dimensions together are its columns. */
static bool has_plain_rows(const struct hspmd_program *p, const struct hspmd_instruction *in)
{
	switch (in->opcode) {
	case HSPMD_OP_LINEAR:
	case HSPMD_OP_LINEAR_GRAD_X:
		return rank_of(p, in->in[0]) == rank_of(p, in->out[0]);
	case HSPMD_OP_LINEAR_GRAD_W:
		return rank_of(p, in->in[0]) == rank_of(p, in->in[1]);
	default:
		return true;
	}
}

static bool may_be_padded(const struct hspmd_program *p, const struct hspmd_instruction *in, int k, bool output)
{
	if (in->kind != HSPMD_INSTRUCTION_RUN)
		return false;
	const struct hspmd_op_type *type = hspmd_op_types[in->opcode];
	return ((output ? type->padded_out : type->padded_in) >> k & 1) && has_plain_rows(p, in);
}

/* What is known of the slots of one type. */
struct rows {
	bool written, read, bound; /* bound: somebody wants them packed */
};

static void see(const struct hspmd_program *p, struct rows *of, const struct hspmd_instruction *in, int k, bool output)
{
	int slot = output ? in->out[k] : in->in[k];
	if (slot < 0)
		return;
	struct rows *r = &of[p->slots[slot].slot_type];
	*(output ? &r->written : &r->read) = true;
	r->bound |= p->slots[slot].memory != HSPMD_ARENA_TRANSIENT || !may_be_padded(p, in, k, output);
}

static void pad(struct hspmd_slot_type *type, int64_t row_bytes)
{
	int last = type->box.rank - 1;
	int64_t size = (int64_t)hspmd_dtype_bytes(type->dtype), bytes = (type->box.hi[last] - type->box.lo[last]) * size;
	if (bytes % WIDEST == 0 || bytes < LEAST_ROW)
		return;
	type->row_stride = (bytes + row_bytes - 1) / row_bytes * row_bytes / size;
	type->bytes = hspmd_program_slot_type_bytes(type);
}

int hspmd_program_pad_rows(struct hspmd_program *p, enum hspmd_device_kind kind, struct hspmd_error *err)
{
	int64_t row_bytes = hspmd_device_traits(kind)->row_bytes;
	if (!row_bytes || hspmd_program_leaves_apart("pad_rows"))
		return 0;
	struct rows *of = hspmd_calloc(p->slot_type_count + 1, sizeof *of);
	if (!of)
		return hspmd_fail_memory(err, "specialising");
	for (size_t i = 0; i < p->instruction_count; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		for (int k = 0; k < in->input_count; k++)
			see(p, of, in, k, false);
		for (int k = 0; k < in->output_count; k++)
			see(p, of, in, k, true);
	}
	for (size_t t = 0; t < p->slot_type_count; t++)
		if (of[t].written && of[t].read && !of[t].bound && p->slot_types[t].box.rank > 1)
			pad(&p->slot_types[t], row_bytes);
	free(of);
	return 0;
}
