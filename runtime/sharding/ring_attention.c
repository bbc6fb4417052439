/* SPDX-License-Identifier: Apache-2.0 */
/* Ring attention (Liu et al., arXiv 2310.01889). If a stage divides the sequence among its context groups, each group holds the keys and
 * values of its own positions and receives those of the others one part after another. Softmax is merged online, so that no device ever
 * holds all keys or all scores. Groups may have unequal parts. Attention is causal, so a part is only passed to the groups after its own.
 * Backward, the parts go around again, and the sums of their gradients with them, which finally return to their owners. The transfer of the
 * next part stands before the operator on the present one. */
#include <string.h>

#include "common/alloc.h"
#include "common/order.h"
#include "runtime/sharding/spmd_internal.h"

struct ring {
	struct hspmd_spmd_builder *p;
	const struct hspmd_op *op;
	size_t number;
	int stage, groups, width; /* number of context groups, and of devices per group */
	const int *devices;       /* of the stage */
};

/* Index of k among the inputs, and of dk among a gradient's outputs; v and dv follow. -1: keys are packed with queries. */
static int first_key(const struct hspmd_spmd_builder *p, const struct hspmd_op *op)
{
	bool backward = op->opcode == HSPMD_OP_ATTENTION_GRAD;
	if (op->opcode != HSPMD_OP_ATTENTION && !backward)
		return -1;
	return p->g->tensors[op->in[backward]].shape.rank == 4 ? -1 : 1 + backward;
}

/* Returns true if `a` is split among the context groups along the sequence, and not split further along it. */
static bool is_split_by_group(const struct hspmd_annotation *a, const struct hspmd_spmd_stage *stage)
{
	const struct hspmd_subgroup *g = &a->groups[0];
	if (a->hsize != 1 || g->device_count != stage->device_count || !g->split_count || g->splits[0].dim != 1 ||
	    g->splits[0].parts != stage->context || memcmp(g->devices, stage->devices, (size_t)g->device_count * sizeof *g->devices) != 0)
		return false;
	for (int i = 1; i < g->split_count; i++)
		if (g->splits[i].dim == 1 || g->splits[i].dim == HSPMD_PARTIAL)
			return false;
	return true;
}

/* Returns true if `want` equals `a` after the groups have gathered their parts. */
static bool is_gathered(const struct hspmd_annotation *a, const struct hspmd_annotation *want, const struct hspmd_shape *shape)
{
	struct hspmd_annotation *all = hspmd_annotation_copy(a);
	if (!all)
		return false;
	struct hspmd_split *s = &all->groups[0].splits[0];
	free(s->weights);
	*s = (struct hspmd_split){ .dim = HSPMD_DUPLICATE, .parts = s->parts, .unit = 1 };
	bool same = hspmd_annotation_equal(all, want, shape);
	hspmd_annotation_destroy(all);
	return same;
}

bool hspmd_ring_attention_fits(const struct hspmd_spmd_builder *p, const struct hspmd_op *op, int stage, const int *in,
                               struct hspmd_annotation **want)
{
	int k = first_key(p, op), q = k - 1;
	if (!p->stages[stage].ring || p->stages[stage].context < 2 || k < 0 || op->attr.whole_kv || op->attr.bidirectional ||
	    op->input_count > (op->opcode == HSPMD_OP_ATTENTION ? 6 : 8) || want[q] ||
	    !is_split_by_group(p->s->values[in[q]].annotation, &p->stages[stage]))
		return false;
	for (int o = 0; o < op->output_count; o++)
		if (op->out[o] < 0)
			return false;
	for (int i = k; i < k + 2; i++) {
		const struct hspmd_annotation *a = p->s->values[in[i]].annotation;
		if (!want[i] || !is_split_by_group(a, &p->stages[stage]) || !is_gathered(a, want[i], &p->g->tensors[op->in[i]].shape))
			return false;
	}
	if (!hspmd_annotation_equal(p->s->values[in[k]].annotation, p->s->values[in[k + 1]].annotation, &p->g->tensors[op->in[k]].shape))
		return false;
	for (int i = k; i < k + 2; i++) {
		hspmd_annotation_destroy(want[i]);
		want[i] = NULL;
	}
	return true;
}

struct hspmd_annotation *hspmd_ring_attention_output(const struct hspmd_spmd_builder *p, const struct hspmd_op *op, int output,
                                                     const int *in, struct hspmd_annotation *deduced)
{
	if (op->opcode != HSPMD_OP_ATTENTION_GRAD || output == 0)
		return deduced;
	hspmd_annotation_destroy(deduced);
	return hspmd_annotation_copy(p->s->values[in[first_key(p, op)]].annotation);
}

/* ---- passing parts on */

/* Like `a`, but every group has the part of the group before it. */
static struct hspmd_annotation *shifted_annotation(const struct ring *r, const struct hspmd_annotation *a)
{
	struct hspmd_annotation *t = hspmd_annotation_copy(a);
	int n = r->groups * r->width;
	for (int i = 0; t && i < n; i++) {
		int at = 0;
		while (r->devices[at] != a->groups[0].devices[i])
			at++;
		t->groups[0].devices[i] = r->devices[(at + r->width) % n];
	}
	return t;
}

static int compare_moves(const void *a, const void *b)
{
	const struct hspmd_move *x = a, *y = b;
	return x->from != y->from ? (x->from > y->from) - (x->from < y->from) : (x->to > y->to) - (x->to < y->to);
}

/* The boxes that the groups from `first` on hold of a value. */
static int lay_out(const struct ring *r, const struct hspmd_annotation *a, const struct hspmd_shape *shape, int first,
                   struct hspmd_layout *layout)
{
	int count = (r->groups - first) * r->width;
	layout->devices = hspmd_calloc((size_t)count, sizeof *layout->devices);
	layout->box = hspmd_calloc((size_t)count, sizeof *layout->box);
	if (!layout->devices || !layout->box)
		return -1;
	memcpy(layout->devices, r->devices + first * r->width, (size_t)count * sizeof *r->devices);
	qsort(layout->devices, (size_t)count, sizeof *layout->devices, hspmd_int_order);
	for (int i = 0; i < count; i++) {
		struct hspmd_local_shard shard;
		if (!hspmd_annotation_local_shard(a, shape, layout->devices[i], &shard))
			return -1;
		layout->box[i] = shard.box;
	}
	layout->device_count = count;
	return 0;
}

/* A transfer from every group to the next. Value `from` is laid out after `shifts` - 1 shifts around the ring, `to` after `shifts`.
 * `causal`: parts stop at the last group. */
static struct hspmd_transfer *shift_transfer(const struct ring *r, const struct hspmd_value *from, const struct hspmd_value *to, int shifts,
                                             bool causal)
{
	const struct hspmd_tensor *tensor = &r->p->g->tensors[from->tensor];
	struct hspmd_transfer *t = calloc(1, sizeof *t);
	if (!t)
		return NULL;
	*t = (struct hspmd_transfer){ .shape = tensor->shape,
		                      .element_bytes = hspmd_dtype_bytes(tensor->dtype),
		                      .value_count = 2,
		                      .step_count = 1,
		                      .layout = hspmd_calloc(2, sizeof *t->layout),
		                      .steps = hspmd_calloc(1, sizeof *t->steps),
		                      .why = strdup("batched, around the ring, over a gathering of all parts") };
	int parts = causal ? r->groups - shifts : r->groups, moves = parts * r->width;
	struct hspmd_comm_step *s = t->steps;
	bool made = t->layout && s && t->why && !lay_out(r, from->annotation, &t->shape, causal ? shifts - 1 : 0, &t->layout[0]) &&
	            !lay_out(r, to->annotation, &t->shape, causal ? shifts : 0, &t->layout[1]);
	if (made) {
		*s = (struct hspmd_comm_step){
			.kind = HSPMD_COMM_BATCHED, .output = 1, .member_count = t->layout[0].device_count, .move_count = moves
		};
		s->members = hspmd_calloc((size_t)s->member_count, sizeof *s->members);
		s->moves = hspmd_calloc((size_t)moves, sizeof *s->moves);
		made = s->members && s->moves;
	}
	if (!made) {
		hspmd_transfer_destroy(t);
		return NULL;
	}
	memcpy(s->members, t->layout[0].devices, (size_t)s->member_count * sizeof *s->members);
	for (int m = 0; m < moves; m++) {
		int sender = from->annotation->groups[0].devices[m], receiver = to->annotation->groups[0].devices[m];
		s->moves[m] = (struct hspmd_move){ .from = sender,
			                           .to = receiver,
			                           .box = t->layout[0].box[hspmd_layout_find(&t->layout[0], sender)] };
	}
	qsort(s->moves, (size_t)moves, sizeof *s->moves, compare_moves);
	return t;
}

/* Passes value `from` on by one shift, into `to`, or (-1) into a new value. Returns the value. */
static int shift_value(const struct ring *r, int from, int to, int shifts, bool causal)
{
	struct hspmd_spmd_builder *p = r->p;
	int tensor = p->s->values[from].tensor;
	if (to < 0) {
		struct hspmd_annotation *a = shifted_annotation(r, p->s->values[from].annotation);
		if (!a)
			return hspmd_fail_memory(p->err, "annotating");
		to = hspmd_spmd_add_value(p, tensor, r->stage, a);
		if (to < 0)
			return -1;
	}
	struct hspmd_transfer *t = shift_transfer(r, &p->s->values[from], &p->s->values[to], shifts, causal);
	struct hspmd_spmd_node *n = t ? hspmd_spmd_add_node(p, -1, r->stage, r->op->layer, r->op->backward) : NULL;
	if (!n) {
		hspmd_transfer_destroy(t);
		return hspmd_fail_memory(p->err, "annotating");
	}
	n->input_count = n->output_count = 1;
	n->in[0] = from;
	n->out[0] = to;
	n->transfer = t;
	return to;
}

/* ---- the operator, part by part */

/* Runs the operator on the part that arrived after `shifts` shifts; groups that it did not reach skip it. */
static int run_on_part(const struct ring *r, const int *in, const int *out, int shifts)
{
	struct hspmd_spmd_node *n = hspmd_spmd_add_node(r->p, (int)r->number, r->stage, r->op->layer, r->op->backward);
	if (!n)
		return -1;
	n->input_count = r->op->input_count;
	n->output_count = r->op->output_count;
	memcpy(n->in, in, (size_t)n->input_count * sizeof *in);
	memcpy(n->out, out, (size_t)n->output_count * sizeof *out);
	n->skip_devices = shifts * r->width;
	if (shifts)
		n->accumulate = (1u << n->output_count) - 1;
	return 0;
}

int hspmd_ring_attention_emit(struct hspmd_spmd_builder *p, size_t number, int stage, const int *in, const int *out)
{
	const struct hspmd_spmd_stage *st = &p->stages[stage];
	struct ring r = { p, &p->g->ops[number], number, stage, st->context, st->device_count / st->context, st->devices };
	int now[HSPMD_OP_MAX_IO], made[HSPMD_OP_MAX_IO], next[2] = { -1, -1 }, k = first_key(p, r.op);
	bool backward = r.op->opcode == HSPMD_OP_ATTENTION_GRAD;
	memcpy(now, in, (size_t)r.op->input_count * sizeof *now);
	memcpy(made, out, (size_t)r.op->output_count * sizeof *made);
	for (int shifts = 0; shifts < r.groups; shifts++) {
		for (int i = 0; shifts + 1 < r.groups && i < 2; i++)
			if ((next[i] = shift_value(&r, now[k + i], -1, shifts + 1, true)) < 0)
				return -1;
		for (int o = 1; backward && o < 3; o++) /* gradients start as separate values and end at their owners */
			if (shifts == 0) {
				struct hspmd_annotation *a = hspmd_annotation_copy(p->s->values[now[k]].annotation);
				if (!a)
					return hspmd_fail_memory(p->err, "annotating");
				if ((made[o] = hspmd_spmd_add_value(p, p->s->values[out[o]].tensor, stage, a)) < 0)
					return -1;
			} else if ((made[o] = shift_value(&r, made[o], -1, shifts, false)) < 0) {
				return -1;
			}
		if (run_on_part(&r, now, made, shifts))
			return -1;
		now[k] = next[0];
		now[k + 1] = next[1];
	}
	for (int o = 1; backward && o < 3; o++)
		if (shift_value(&r, made[o], out[o], r.groups, false) < 0)
			return -1;
	return 0;
}
