/* SPDX-License-Identifier: Apache-2.0 */
/* Fuses two consecutive operators of a device's program into one if the device has a kernel for both. A pass over the instructions of
 * the micro-batches, before memory is planned, so that values that are no longer read get no memory. The earlier pair is fused first: a
 * matrix product fused with the addition after it leaves the norm after that addition alone. Tables that many operators would compute
 * are computed once. The statistics of a whole vocabulary's logits and the gradient of the loss are fused on every device, wherever they
 * stand: logits are then read from memory once (as the fused cross-entropy of Liger Kernel, arXiv 2410.10989, section 3.2). */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/op/op.h"
#include "runtime/program/program.h"

static const enum hspmd_opcode pairs[] = {
#define OP_FUSED(opcode, name) HSPMD_OP_##opcode,
#include "runtime/tensor/opcode_list.h"
};

bool hspmd_program_leaves_apart(const char *name)
{
	const char *list = getenv("HSPMD_UNFUSED");
	size_t length = strlen(name);
	if (!list || !strcmp(list, "all"))
		return list != NULL;
	for (const char *at = list; (at = strstr(at, name)); at += length)
		if ((at == list || at[-1] == ',') && (at[length] == ',' || !at[length]))
			return true;
	return false;
}

/* Count how often each slot is used. NULL: memory. */
static int *count_uses(const struct hspmd_program *p)
{
	int *uses = hspmd_calloc(p->slot_count, sizeof *uses);
	for (size_t i = 0; uses && i < p->instruction_count; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		for (int k = 0; k < in->input_count; k++)
			if (in->in[k] >= 0)
				uses[in->in[k]]++;
		for (int k = 0; k < in->output_count; k++)
			if (in->out[k] >= 0)
				uses[in->out[k]]++;
	}
	return uses;
}

/* Which input of `second` is the result of `first`, if it is the only such input and the fused kernel accepts it there; -1: none. */
static int intermediate_input(const struct hspmd_instruction *first, const struct hspmd_instruction *second)
{
	int found = -1;
	for (int k = 0; k < second->input_count; k++)
		if (second->in[k] == first->out[0]) {
			if (found >= 0 || (k && second->opcode != HSPMD_OP_ADD))
				return -1;
			found = k;
		}
	return found;
}

/* Fused kernels implement the tanh form of GELU only. */
static bool is_other_form(const struct hspmd_instruction *in)
{
	return (in->opcode == HSPMD_OP_GELU || in->opcode == HSPMD_OP_GELU_GRAD) && in->attr->exact;
}

static bool fits(const struct hspmd_program *p, const struct hspmd_op_type *type, const struct hspmd_instruction *first,
                 const struct hspmd_instruction *second, const int *uses)
{
	if (first->kind != HSPMD_INSTRUCTION_RUN || second->kind != HSPMD_INSTRUCTION_RUN || first->opcode != type->pair.first ||
	    second->opcode != type->pair.second || first->micro_batch != second->micro_batch ||
	    first->schedule_index != second->schedule_index || first->out[0] < 0 || is_other_form(second))
		return false;
	if ((first->accumulate | second->accumulate) & 1 || intermediate_input(first, second) < 0 ||
	    p->slots[first->out[0]].memory != HSPMD_ARENA_TRANSIENT)
		return false;
	return type->pair.intermediate != HSPMD_OP_INTERMEDIATE_GONE || uses[first->out[0]] == 2;
}

/* Attributes come from the operator that has any: an addition has none. */
static struct hspmd_instruction join(const struct hspmd_op_type *type, enum hspmd_opcode opcode, const struct hspmd_instruction *first,
                                     const struct hspmd_instruction *second, const int *uses)
{
	struct hspmd_instruction both = *second;
	int intermediate = intermediate_input(first, second), start = type->pair.intermediate == HSPMD_OP_INTERMEDIATE_GONE;
	both.opcode = opcode;
	both.attr = first->opcode == HSPMD_OP_ADD ? second->attr : first->attr;
	both.input_count = hspmd_op_types[first->opcode]->max_inputs;
	for (int k = 0; k < both.input_count; k++)
		both.in[k] = k < first->input_count ? first->in[k] : -1;
	for (int k = 0; k < second->input_count; k++)
		if (k != intermediate)
			both.in[both.input_count++] = second->in[k];
	for (int k = start; k < first->output_count; k++) {
		bool wanted = k || type->pair.intermediate == HSPMD_OP_INTERMEDIATE_KEPT || uses[first->out[0]] > 2;
		both.accumulate |= (first->accumulate >> k & 1) << both.output_count;
		both.out[both.output_count++] = wanted ? first->out[k] : -1;
	}
	return both;
}

static bool is_wanted(enum hspmd_device_kind kind, enum hspmd_opcode opcode)
{
	return hspmd_device_has_kernel(kind, opcode) && !hspmd_program_leaves_apart(hspmd_opcode_names[opcode]);
}

static int join_pairs(struct hspmd_program *p, enum hspmd_device_kind kind, struct hspmd_error *err)
{
	int *uses = count_uses(p);
	size_t count = 0;
	bool wanted[sizeof pairs / sizeof *pairs];
	if (!uses)
		return hspmd_fail_memory(err, "specialising");
	for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++)
		wanted[k] = is_wanted(kind, pairs[k]);
	for (size_t i = 0; i < p->instruction_count; i++) {
		struct hspmd_instruction *last = count ? &p->instructions[count - 1] : NULL, next = p->instructions[i];
		bool joined = false;
		for (size_t k = 0; last && !joined && k < sizeof pairs / sizeof *pairs; k++) {
			const struct hspmd_op_type *type = hspmd_op_types[pairs[k]];
			joined = wanted[k] && type->pair.intermediate != HSPMD_OP_INTERMEDIATE_TWO && fits(p, type, last, &next, uses);
			if (joined)
				*last = join(type, pairs[k], last, &next, uses);
		}
		if (!joined)
			p->instructions[count++] = next;
	}
	p->instruction_count = count;
	free(uses);
	return 0;
}

/* ---- a loss and its gradient */

/* Returns true if the slot has the result of a product, as the instructions before `at` leave it. */
static bool is_product(const struct hspmd_program *p, size_t at, int slot)
{
	for (size_t i = at; i-- > 0;) {
		const struct hspmd_instruction *in = &p->instructions[i];
		for (int k = 0; k < in->output_count; k++)
			if (in->out[k] == slot)
				return in->kind == HSPMD_INSTRUCTION_RUN && hspmd_op_types[in->opcode]->product;
	}
	return false;
}

/* The statistics that the gradient of a loss at `at` reads, if they are just those of its own logits; `at`: there are none, for the
 * vocabulary is divided, and the statistics of all parts are gathered first; or logits are capped (Gemma 2): the cap keeps those that it
 * gets, and the solver predicts the memory of such a program as it is without fusion. */
static size_t stats_of(const struct hspmd_program *p, size_t at)
{
	const struct hspmd_instruction *grad = &p->instructions[at];
	for (size_t i = at; i-- > 0;) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (in->kind != HSPMD_INSTRUCTION_RUN || in->opcode != HSPMD_OP_VOCAB_STATS || in->out[0] != grad->in[2])
			continue;
		bool same = in->in[0] == grad->in[0] && in->in[1] == grad->in[1];
		return same && !in->accumulate && !grad->accumulate && is_product(p, i, in->in[0]) ? i : at;
	}
	return at;
}

/* Returns true if the gradient at `at` may be computed before instruction `to`: everything that it reads is there, and it needs no more
 * memory until `at` than the logits in whose place it comes, which nobody else reads; or all that lies between is the loss. */
static bool can_precede(const struct hspmd_program *p, size_t to, size_t at, const int *uses)
{
	const struct hspmd_instruction *grad = &p->instructions[at];
	int weights = grad->input_count > 3 ? grad->in[3] : -1;
	bool takes_over = uses[grad->in[0]] == 3; /* written once, read by the statistics and by the gradient */
	for (size_t i = to; i < at; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (hspmd_instruction_uses(in, grad->out[0]))
			return false;
		for (int k = 0; k < in->output_count; k++)
			if (in->out[k] >= 0 && (in->out[k] == grad->in[0] || in->out[k] == grad->in[1] || in->out[k] == weights))
				return false;
		if (!takes_over && !(in->kind == HSPMD_INSTRUCTION_RUN && in->opcode == HSPMD_OP_LOSS))
			return false;
	}
	return true;
}

/* The instructions from `from` on become those at `to` - 1 and before, without the first; the place before `to` becomes free. */
static struct hspmd_instruction *move_up(struct hspmd_program *p, size_t from, size_t to)
{
	memmove(&p->instructions[from], &p->instructions[from + 1], (to - 1 - from) * sizeof *p->instructions);
	return &p->instructions[to - 1];
}

/* Fuse the statistics at `stats` and the gradient at `grad`, before the first instruction that reads the statistics. The weights of the
 * loss are read from the samples just before the loss. Returns false if they stay apart. */
static bool fuse_loss(struct hspmd_program *p, size_t stats, size_t grad, const int *uses)
{
	const struct hspmd_instruction second = p->instructions[grad];
	size_t to = stats + 1;
	while (to < grad && !hspmd_instruction_uses(&p->instructions[to], second.in[2]))
		to++;
	if (!can_precede(p, to, grad, uses))
		return false;
	struct hspmd_instruction both = p->instructions[to];
	both = (struct hspmd_instruction){
		.kind = HSPMD_INSTRUCTION_RUN,
		.opcode = HSPMD_OP_CROSS_ENTROPY,
		.micro_batch = second.micro_batch,
		.layer = second.layer,
		.schedule_index = both.schedule_index,
		.backward = both.backward,
		.input_count = second.input_count > 3 ? 3 : 2,
		.output_count = 2,
		.in = { second.in[0], second.in[1], second.input_count > 3 ? second.in[3] : -1 },
		.out = { second.out[0], second.in[2] },
		.attr = second.attr,
		.peer_pipeline_rank = -1,
	};
	*move_up(p, stats, to) = both;
	return true;
}

static int fuse_losses(struct hspmd_program *p, struct hspmd_error *err)
{
	int *uses = count_uses(p);
	bool *gone = hspmd_calloc(p->instruction_count + 1, sizeof *gone);
	int status = uses && gone ? 0 : hspmd_fail_memory(err, "specialising");
	size_t count = 0;
	for (size_t i = 0; !status && i < p->instruction_count; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		size_t stats = in->kind == HSPMD_INSTRUCTION_RUN && in->opcode == HSPMD_OP_LOSS_GRAD ? stats_of(p, i) : i;
		gone[i] = stats < i && fuse_loss(p, stats, i, uses);
	}
	for (size_t i = 0; !status && i < p->instruction_count; i++)
		if (!gone[i])
			p->instructions[count++] = p->instructions[i];
	p->instruction_count = status ? p->instruction_count : count;
	free(uses);
	free(gone);
	return status;
}

/* ---- shared tables */

/* The rotation angles of a range of positions. */
struct angles {
	const struct hspmd_op_attr *attr;
	int64_t start, length;
	int micro_batch; /* that it is for, if they have different sizes; else -1 */
	int slot;
};

static bool is_rope(const struct hspmd_instruction *in)
{
	return in->kind == HSPMD_INSTRUCTION_RUN && (in->opcode == HSPMD_OP_ROPE || in->opcode == HSPMD_OP_ROPE_GRAD);
}

static int64_t rotated(const struct hspmd_op_attr *attr)
{
	return attr->rotary ? attr->rotary : attr->head_dim;
}

static bool serves(const struct angles *have, const struct angles *want)
{
	const struct hspmd_op_attr *a = have->attr, *b = want->attr;
	return a->theta == b->theta && rotated(a) == rotated(b) && a->frequencies == b->frequencies &&
	       a->rotation_scale == b->rotation_scale && have->start == want->start && have->length == want->length &&
	       have->micro_batch == want->micro_batch;
}

/* Make the instruction that computes the table, before its first reader. Dimension 1 of the table is the position, as in the reader's
 * input; the table's slot is assigned to the input's tensor so that it scales with the sequence length as that tensor does (scaling.h). */
static int make_table(struct hspmd_program *p, struct angles *a, const struct hspmd_instruction *reader, struct hspmd_instruction *made,
                      struct hspmd_error *err)
{
	struct hspmd_slot_type slot_type = {
		.tensor = p->slot_types[p->slots[reader->in[0]].slot_type].tensor,
		.dtype = HSPMD_F32,
		.box = { 3, { 0, a->start, 0 }, { 1, a->start + a->length, rotated(a->attr) } },
		.full = { 3, { 1, a->start + a->length, rotated(a->attr) } },
		.own = 1u << 0 | 1u << 2,
	};
	int f = hspmd_program_add_slot_type(p, &slot_type, err);
	a->slot = f < 0 ? -1 : hspmd_program_add_slot(p, f, HSPMD_ARENA_TRANSIENT, reader->micro_batch, err);
	*made = (struct hspmd_instruction){
		.kind = HSPMD_INSTRUCTION_RUN,
		.opcode = HSPMD_OP_ROPE_TABLE,
		.micro_batch = reader->micro_batch,
		.layer = reader->layer,
		.schedule_index = reader->schedule_index,
		.backward = reader->backward,
		.output_count = 1,
		.out = { a->slot },
		.attr = a->attr,
		.peer_pipeline_rank = -1,
	};
	return a->slot < 0 ? -1 : 0;
}

static int share_angles(struct hspmd_program *p, struct hspmd_error *err)
{
	size_t ropes = 0, tables = 0, count = 0;
	for (size_t i = 0; i < p->instruction_count; i++)
		ropes += is_rope(&p->instructions[i]);
	struct angles *have = hspmd_calloc(ropes + 1, sizeof *have);
	struct hspmd_instruction *all = hspmd_calloc(p->instruction_count + ropes + 1, sizeof *all);
	int status = have && all ? 0 : hspmd_fail_memory(err, "specialising");
	for (size_t i = 0; !status && i < p->instruction_count; i++) {
		struct hspmd_instruction *in = &p->instructions[i];
		if (is_rope(in)) {
			const struct hspmd_box *box = &p->slot_types[p->slots[in->in[0]].slot_type].box;
			struct angles want = { .attr = in->attr,
				               .start = box->lo[1],
				               .length = box->hi[1] - box->lo[1],
				               .micro_batch = p->varies ? in->micro_batch : -1 };
			size_t k = 0;
			while (k < tables && !serves(&have[k], &want))
				k++;
			if (k == tables) {
				status = make_table(p, &want, in, &all[count++], err);
				have[tables++] = want;
			}
			in->in[in->input_count++] = have[k].slot;
		}
		all[count++] = *in;
	}
	free(have);
	if (status) {
		free(all);
		return -1;
	}
	free(p->instructions);
	p->instructions = all;
	p->instruction_capacity = p->instruction_count + ropes + 1;
	p->instruction_count = count;
	return 0;
}

/* ---- attention's gradient and the rotations of queries and keys */

/* Returns true if the instruction turns whole heads back, as attention's gradient can, by a table of all of its positions. `from`: the
 * gradient that it turns, which nobody else reads. */
static bool turns(const struct hspmd_program *p, const struct hspmd_instruction *in, int from, const int *uses)
{
	const struct hspmd_op_attr *a = in->attr;
	if (in->kind != HSPMD_INSTRUCTION_RUN || in->opcode != HSPMD_OP_ROPE_GRAD || in->input_count < 2 || in->in[0] != from || from < 0)
		return false;
	return rotated(a) == a->head_dim && !a->interleaved && !in->accumulate && uses[from] == 2 &&
	       p->slots[from].memory == HSPMD_ARENA_TRANSIENT;
}

/* Returns true if the instructions from `at` on are attention's gradient and both rotations, of the same positions. *queries: the one of
 * the queries' gradient. */
static bool turns_both(const struct hspmd_program *p, size_t at, const int *uses, const struct hspmd_instruction **queries)
{
	const struct hspmd_instruction *grad = &p->instructions[at];
	if (at + 2 >= p->instruction_count || grad->kind != HSPMD_INSTRUCTION_RUN || grad->opcode != HSPMD_OP_ATTENTION_GRAD ||
	    grad->output_count < 3 || grad->accumulate)
		return false;
	for (int first = 0; first < 2; first++) {
		const struct hspmd_instruction *q = &grad[1 + first], *k = &grad[2 - first];
		*queries = q;
		if (turns(p, q, grad->out[0], uses) && turns(p, k, grad->out[1], uses) && q->in[1] == k->in[1] &&
		    q->attr->head_dim == grad->attr->head_dim && k->attr->head_dim == grad->attr->head_dim)
			return true;
	}
	return false;
}

/* Let attention's gradient turn back what it computes before it writes it. */
static int turn_gradients(struct hspmd_program *p, struct hspmd_error *err)
{
	int *uses = count_uses(p);
	size_t count = 0;
	if (!uses)
		return hspmd_fail_memory(err, "specialising");
	for (size_t i = 0; i < p->instruction_count; i++) {
		const struct hspmd_instruction *queries;
		struct hspmd_instruction in = p->instructions[i];
		if (turns_both(p, i, uses, &queries)) {
			const struct hspmd_instruction *keys = queries == &p->instructions[i + 1] ? queries + 1 : queries - 1;
			in.opcode = HSPMD_OP_ATTENTION_GRAD_ROPE;
			while (in.input_count < HSPMD_ATTENTION_GRAD_ANGLES)
				in.in[in.input_count++] = -1;
			in.in[in.input_count++] = queries->in[1];
			in.out[0] = queries->out[0];
			in.out[1] = keys->out[0];
			i += 2;
		}
		p->instructions[count++] = in;
	}
	p->instruction_count = count;
	free(uses);
	return 0;
}

int hspmd_program_fuse_ops(struct hspmd_program *p, enum hspmd_device_kind kind, struct hspmd_error *err)
{
	bool apart = hspmd_program_leaves_apart(hspmd_opcode_names[HSPMD_OP_CROSS_ENTROPY]);
	if (join_pairs(p, kind, err) || (!apart && fuse_losses(p, err)))
		return -1;
	if (is_wanted(kind, HSPMD_OP_ROPE_TABLE) && share_angles(p, err))
		return -1;
	return is_wanted(kind, HSPMD_OP_ATTENTION_GRAD_ROPE) ? turn_gradients(p, err) : 0;
}
