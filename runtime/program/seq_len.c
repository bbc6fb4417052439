/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/program/seq_len.h"

#include <inttypes.h>

#include "common/alloc.h"
#include "runtime/program/scaling.h"

/* Hands the transfers and the graph to the program. -1: memory. */
static int take_parts(struct hspmd_scaling *s, struct hspmd_program *to)
{
	for (size_t i = 0; i < to->instruction_count; i++) {
		struct hspmd_instruction *in = &to->instructions[i];
		ptrdiff_t op = hspmd_scaling_op(s, in);
		in->attr = op < 0 ? in->attr : &s->graph->ops[op].attr;
		in->transfer = hspmd_scaling_transfer(s, in);
	}
	for (; s->made_count; to->transfers[to->transfer_count++] = s->made[--s->made_count].transfer)
		if (hspmd_array_grow(&to->transfers, &to->transfer_capacity, to->transfer_count, sizeof *to->transfers))
			return -1;
	for (int i = 0; i < to->state_count; i++)
		to->states[i].name = s->graph->tensors[to->states[i].tensor].name;
	to->graph = s->graph;
	to->spmd = NULL;
	to->borrows = false;
	s->graph = NULL;
	return 0;
}

static int fill(struct hspmd_scaling *s, const struct hspmd_graph_source *source, int64_t length, struct hspmd_program *to,
                struct hspmd_error *err)
{
	to->how.loss_scale *= (double)to->how.seq_len / (double)length;
	to->how.seq_len = length;
	if (hspmd_scaling_open(s, s->from, source, &to->how, err) || hspmd_scaling_fit(s, err))
		return -1;
	hspmd_scaling_slot_types(s, to->slot_types);
	return take_parts(s, to) ? hspmd_fail_memory(err, "specialising") : 0;
}

struct hspmd_program *hspmd_program_at_length(const struct hspmd_program *p, const struct hspmd_graph_source *source, int64_t length,
                                              struct hspmd_device *dev, struct hspmd_error *err)
{
	if (length < 1 || length > p->how.seq_len) {
		hspmd_fail(err, "a sequence length of %" PRId64 ": expected 1..%" PRId64 ", which the program is for", length,
		           p->how.seq_len);
		return NULL;
	}
	struct hspmd_scaling s = { .from = p };
	struct hspmd_program *to = hspmd_program_copy(p);
	int status = to ? fill(&s, source, length, to, err) : hspmd_fail_memory(err, "specialising");
	hspmd_scaling_close(&s);
	if (status) {
		hspmd_program_destroy(to);
		return NULL;
	}
	hspmd_program_query_workspace(to, dev);
	return to;
}
