/* SPDX-License-Identifier: Apache-2.0 */
/* From one layout of a tensor to another: Reshard nodes. */
#include "runtime/sharding/spmd_internal.h"

bool hspmd_spmd_is_readable(const struct hspmd_annotation *a, const struct hspmd_shape *shape)
{
	for (int g = 0; g < a->hsize; g++)
		for (int i = 0; i < a->groups[g].device_count; i++) {
			struct hspmd_local_shard shard;
			if (!hspmd_annotation_local_shard(a, shape, a->groups[g].devices[i], &shard))
				continue;
			for (int d = 2; d < shape->rank; d++)
				if (shard.box.lo[d] > 0 || shard.box.hi[d] < shape->dim[d])
					return false;
		}
	return true;
}

static bool same_tensor(const struct hspmd_spmd *s, int a, int b)
{
	return a >= 0 && b >= 0 && s->values[a].tensor == s->values[b].tensor;
}

/* A value of the tensor that is, or has, what `want` asks for. choice: by which rows of experts are wanted. -1: none. */
static int find_value(const struct hspmd_spmd *s, const struct hspmd_tensor *t, int tensor, const struct hspmd_annotation *want, int choice)
{
	for (int v = s->first_value[tensor]; v >= 0; v = s->values[v].next) {
		const struct hspmd_annotation *have = s->values[v].annotation;
		if (hspmd_annotation_serves(have, want, &t->shape) &&
		    (!have->rows || !want->rows || same_tensor(s, s->values[v].choice, choice)))
			return v;
	}
	return -1;
}

/* Returns true if some operator, perhaps a later one, reads all rows where only rows of experts are wanted: these then come with them. */
static bool is_read_whole(const struct hspmd_spmd_builder *p, int tensor, const struct hspmd_annotation *want)
{
	for (int v = p->deduced ? p->deduced->first_value[tensor] : -1; v >= 0; v = p->deduced->values[v].next)
		if (!p->deduced->values[v].annotation->rows &&
		    hspmd_annotation_serves(p->deduced->values[v].annotation, want, &p->g->tensors[tensor].shape))
			return true;
	return false;
}

/* Returns true if some step sends only rows of experts. */
static bool sends_rows(const struct hspmd_transfer *t)
{
	for (int k = 0; k < t->step_count; k++)
		if (t->steps[k].kind == HSPMD_COMM_DISPATCH || t->steps[k].kind == HSPMD_COMM_COMBINE)
			return true;
	return false;
}

int hspmd_spmd_reshard(struct hspmd_spmd_builder *p, int from, struct hspmd_annotation *want, int choice, int stage, int layer,
                       bool backward)
{
	struct hspmd_spmd *s = p->s;
	int tensor = s->values[from].tensor;
	const struct hspmd_tensor *t = &p->g->tensors[tensor];
	/* Which of two choices a step is about would not be clear. */
	if (want->rows && (s->values[from].annotation->rows || is_read_whole(p, tensor, want)))
		hspmd_annotation_drop_rows(want);
	int same = find_value(s, t, tensor, want, choice);
	if (same >= 0) {
		hspmd_annotation_destroy(want);
		return same;
	}
	if (t->role == HSPMD_TENSOR_INPUT && hspmd_spmd_is_readable(want, &t->shape))
		return hspmd_spmd_add_value(p, tensor, stage, want); /* the data reader fills it in this layout */
	if (p->deduce_only)
		return hspmd_spmd_add_value(p, tensor, stage, want);
	struct hspmd_transfer *transfer =
	        hspmd_resolve(&t->shape, hspmd_dtype_bytes(t->dtype), s->values[from].annotation, want, p->cost, p->err);
	if (!transfer) {
		hspmd_annotation_destroy(want);
		return hspmd_error_prefix(p->err, "tensor %s", t->name);
	}
	bool chosen = sends_rows(transfer);
	if (want->rows && !chosen)
		hspmd_annotation_drop_rows(want); /* all rows are sent, and others can use them */
	choice = want->rows ? choice : s->values[from].choice;
	int to = hspmd_spmd_add_value(p, tensor, stage, want);
	struct hspmd_spmd_node *n = to < 0 ? NULL : hspmd_spmd_add_node(p, -1, stage, layer, backward);
	if (to >= 0 && s->values[to].annotation->rows)
		s->values[to].choice = choice;
	if (!n || transfer->step_count == 0) {
		if (n) { /* nothing to do: the bytes are those of `from` */
			s->node_count--;
			s->values[to].same_as = from;
		}
		hspmd_transfer_destroy(transfer);
		return n ? to : -1;
	}
	n->input_count = n->output_count = 1;
	n->in[0] = from;
	n->out[0] = to;
	n->transfer = transfer;
	if (chosen)
		n->in[n->input_count++] = choice;
	return to;
}
