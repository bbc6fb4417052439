/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows travel, and how they are cut into messages. */
#include <stdlib.h>

#include "common/alloc.h"
#include "runtime/comm/rows_internal.h"

int64_t hspmd_rows_of(const struct hspmd_box *box)
{
	int64_t rows = 1;
	for (int d = 0; d < box->rank - 1; d++)
		rows *= box->hi[d] - box->lo[d];
	return rows;
}

/* The number of a row of `box` among those of `within`. */
static int64_t row_within(const struct hspmd_box *box, int64_t row, const struct hspmd_box *within)
{
	int64_t at = 0, stride = 1;
	for (int d = box->rank - 2; d >= 0; d--) {
		int64_t size = box->hi[d] - box->lo[d];
		at += (box->lo[d] + row % size - within->lo[d]) * stride;
		stride *= within->hi[d] - within->lo[d];
		row /= size;
	}
	return at;
}

bool hspmd_rows_chose(const struct rows *r, const struct hspmd_box *box, int64_t row, const struct hspmd_expert_range *experts)
{
	const struct hspmd_box *known = &r->choice->box;
	int64_t per_token = known->hi[known->rank - 1] - known->lo[known->rank - 1];
	const int32_t *choice = r->choice->data + row_within(box, row, known) * per_token;
	for (int64_t k = 0; k < per_token; k++)
		if (choice[k] >= experts->lo && choice[k] < experts->hi)
			return true;
	return false;
}

size_t hspmd_rows_offset(const struct rows *r, const struct hspmd_local_buffer *part, const struct hspmd_box *box, int64_t row)
{
	return (size_t)row_within(box, row, &part->box) * r->row_bytes;
}

int hspmd_rows_member(const struct rows *r, int device)
{
	int m = 0;
	while (m < r->step->member_count && r->step->members[m] != device)
		m++;
	return m;
}

const struct hspmd_expert_range *hspmd_rows_chosen_by(const struct rows *r, int from, int to)
{
	return &r->step->experts[r->step->kind == HSPMD_COMM_DISPATCH ? to : from];
}

/* ---- lists of moves */

static int peer_of(const struct rows *r, const struct hspmd_move *m)
{
	return m->from == r->step->members[r->self] ? m->to : m->from;
}

static int place_order(const void *a, const void *b, void *rows)
{
	const struct hspmd_move *x = *(const struct hspmd_move *const *)a, *y = *(const struct hspmd_move *const *)b;
	for (int d = 0; d < x->box.rank; d++)
		if (x->box.lo[d] != y->box.lo[d])
			return x->box.lo[d] < y->box.lo[d] ? -1 : 1;
	int p = peer_of(rows, x), q = peer_of(rows, y);
	return (p > q) - (p < q);
}

const struct hspmd_move **hspmd_rows_moves(struct rows *r, bool outgoing, int *count)
{
	int device = r->step->members[r->self];
	const struct hspmd_move **list = hspmd_calloc((size_t)r->step->move_count + 1, sizeof *list);
	*count = 0;
	for (int i = 0; list && i < r->step->move_count; i++) {
		const struct hspmd_move *m = &r->step->moves[i];
		if (outgoing ? m->from == device && m->to != device : m->to == device)
			list[(*count)++] = m;
	}
	if (list)
		qsort_r(list, (size_t)*count, sizeof *list, place_order, r);
	return list;
}

int hspmd_rows_same_box(const struct hspmd_move *const *list, int count)
{
	int n = 1;
	while (n < count && hspmd_box_equal(&list[n]->box, &list[0]->box))
		n++;
	return n;
}

bool hspmd_rows_block(const struct rows *r, const struct hspmd_box *box, int64_t number, struct block *b)
{
	int64_t first = number * r->per_block, left = hspmd_rows_of(box) - first;
	*b = (struct block){ box, first, left < r->per_block ? left : r->per_block };
	return left > 0;
}

int64_t hspmd_rows_count(const struct rows *r, const struct block *b, int from, int to)
{
	const struct hspmd_expert_range *experts = hspmd_rows_chosen_by(r, from, to);
	int64_t n = 0;
	for (int64_t i = 0; i < b->count; i++)
		n += hspmd_rows_chose(r, b->box, b->first + i, experts);
	return n;
}

void hspmd_rows_measure(struct rows *r, const struct hspmd_transfer *transfer)
{
	r->row_bytes = (size_t)transfer->shape.dim[transfer->shape.rank - 1] * transfer->element_bytes;
	r->per_block = r->row_bytes < HSPMD_COMM_MESSAGE ? (int64_t)(HSPMD_COMM_MESSAGE / r->row_bytes) : 1;
}
