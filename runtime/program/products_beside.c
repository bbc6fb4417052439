/* SPDX-License-Identifier: Apache-2.0 */
/* Products that run beside other operators of the backward pass. Nothing but the sums of gradients waits for the gradients of weights, so
 * such products may be computed later than they could be. An operator that is bound by memory does not need all of a device's
 * multiprocessors, and a product can leave it some: both together take less time than one after the other.
 *
 * A group is some gradients of weights, marked `beside`, and the operator that is bound by memory behind them. The products move down to
 * it, over operators that neither write what they read nor touch what they write; the order of the additions to one gradient stays. A group
 * is within a layer's backward pass and has no communication, copies or samples in it: what follows waits for all of it. To the memory plan
 * everything that a group uses is in use from its beginning to its end (memory_plan.c). Devices whose kind cannot run operators beside each
 * other get no groups; a device that can decides by itself whether it does (struct hspmd_device_ops, run_apart), which changes no result's
 * place.
 *
 * There are groups only where HSPMD_CUDA_PRODUCTS_BESIDE asks for them: the solver does not count what they keep for longer, up to 5 % of
 * small models' memory.
 *
 * How many products: as many as take as long as the operator does with the few multiprocessors that even a large product leaves idle
 * in its last round of tiles, or as there are in the layer. */
#include <stdlib.h>
#include <string.h>

#include "common/format/device_traits.h"
#include "runtime/op/op.h"
#include "runtime/program/program.h"

/* Operations of a product, per byte that the operator beside it moves, with which they end together if the product leaves it 4 of 132
 * multiprocessors: in a cycle one of them multiplies and adds 4096 / 2 pairs in BF16, or moves 48 bytes. */
#define ENOUGH (4096.0 / 48 * 128 / 4)

/* A gradient that is sent away behind its layer (ZeRO 2 and 3) is in the transient arena; it stays where the solver expects it. */
static bool is_product(const struct hspmd_program *p, const struct hspmd_instruction *in)
{
	if (in->output_count < 1 || in->out[0] < 0 || p->slots[in->out[0]].memory != HSPMD_ARENA_FIXED)
		return false;
	return in->kind == HSPMD_INSTRUCTION_RUN && in->opcode == HSPMD_OP_LINEAR_GRAD_W && in->backward && !in->beside;
}

static bool streams(const struct hspmd_instruction *in)
{
	return in->kind == HSPMD_INSTRUCTION_RUN && in->backward && hspmd_op_types[in->opcode]->streams;
}

/* The slot whose memory it begins at. */
static int memory_of(const struct hspmd_program *p, int slot)
{
	return p->slots[slot].aliases >= 0 ? p->slots[slot].aliases : slot;
}

/* Returns true if `a` writes what `b` reads or writes. */
static bool writes_for(const struct hspmd_program *p, const struct hspmd_instruction *a, const struct hspmd_instruction *b)
{
	for (int o = 0; o < a->output_count; o++) {
		if (a->out[o] < 0)
			continue;
		for (int k = 0; k < b->input_count + b->output_count; k++) {
			int slot = k < b->input_count ? b->in[k] : b->out[k - b->input_count];
			if (slot >= 0 && memory_of(p, slot) == memory_of(p, a->out[o]))
				return true;
		}
	}
	return false;
}

/* Returns true if the product at `from` may run at the same time as, and so also behind, all instructions up to `to`. */
static bool can_wait(const struct hspmd_program *p, size_t from, size_t to)
{
	const struct hspmd_instruction *product = &p->instructions[from];
	for (size_t i = from + 1; i <= to; i++)
		if (writes_for(p, product, &p->instructions[i]) || writes_for(p, &p->instructions[i], product))
			return false;
	return true;
}

static bool is_near(const struct hspmd_instruction *in, const struct hspmd_instruction *last)
{
	return in->kind == HSPMD_INSTRUCTION_RUN && in->layer == last->layer && in->micro_batch == last->micro_batch &&
	       in->schedule_index == last->schedule_index && in->backward;
}

/* Moves the instruction at `from` to `to`, and those behind it up to there one place forward. */
static void move_down(struct hspmd_program *p, size_t from, size_t to)
{
	struct hspmd_instruction moved = p->instructions[from];
	memmove(&p->instructions[from], &p->instructions[from + 1], (to - from) * sizeof moved);
	p->instructions[to] = moved;
}

/* Makes a group that ends with instruction `last`, if there are products for it. */
static void make_group(struct hspmd_program *p, size_t last)
{
	double wanted = ENOUGH * hspmd_instruction_bytes(p, &p->instructions[last]), flops = 0;
	size_t first = last; /* of the group so far */
	for (size_t i = last; i-- > 0 && flops < wanted && is_near(&p->instructions[i], &p->instructions[last]);) {
		if (!is_product(p, &p->instructions[i]) || !can_wait(p, i, last))
			continue;
		flops += hspmd_instruction_flops(p, &p->instructions[i]);
		p->instructions[i].beside = true;
		move_down(p, i, --first);
	}
}

void hspmd_program_run_beside(struct hspmd_program *p, enum hspmd_device_kind kind)
{
	const char *asked = getenv("HSPMD_CUDA_PRODUCTS_BESIDE");
	if (!hspmd_device_traits(kind)->beside || !asked || !strcmp(asked, "0") || hspmd_program_leaves_apart("products_beside"))
		return;
	for (size_t i = 0; i < p->instruction_count; i++)
		if (streams(&p->instructions[i]))
			make_group(p, i);
}

int64_t hspmd_program_bytes_beside(const struct hspmd_program *p, const struct hspmd_instruction *in)
{
	size_t first = (size_t)(in - p->instructions), last = first;
	double flops = 0;
	if (!in->beside)
		return 0;
	while (first && p->instructions[first - 1].beside)
		first--;
	while (p->instructions[last].beside)
		last++;
	for (size_t i = first; i < last; i++)
		flops += hspmd_instruction_flops(p, &p->instructions[i]);
	return (int64_t)(hspmd_instruction_bytes(p, &p->instructions[last]) * hspmd_instruction_flops(p, in) / flops) + 1;
}
