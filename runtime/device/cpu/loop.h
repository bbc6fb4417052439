/* SPDX-License-Identifier: Apache-2.0 */
/* Loops over all elements of a shape, of which several buffers have elements at different distances: transposed, repeated, or a part of a
 * larger buffer. Rows, the last dimension, are left to the caller. */
#ifndef HSPMD_CPU_LOOP_H
#define HSPMD_CPU_LOOP_H

#include "runtime/device/cpu/kernel.h"

enum { LOOP_BUFFERS = 3, LOOP_ROW_ELEMENTS = 16384 };

struct loop {
	int rank; /* at least 1 */
	int64_t shape[HSPMD_MAX_RANK];
	int64_t step[LOOP_BUFFERS][HSPMD_MAX_RANK]; /* elements from one to the next along a dimension; 0: repeated */
	int64_t base[LOOP_BUFFERS];                 /* number of the first element */
};

/* Distances in a packed buffer. */
static inline void packed_steps(const struct hspmd_view *v, int64_t *step)
{
	int64_t next = 1;
	for (int d = v->rank - 1; d >= 0; d--) {
		step[d] = next;
		next *= v->shape[d];
	}
}

/* Over the elements of `v`, which is packed in buffer `number`. */
static inline struct loop loop_over(const struct hspmd_view *v, int number)
{
	struct loop l = { .rank = v->rank ? v->rank : 1, .shape = { 1 } };
	for (int d = 0; d < v->rank; d++)
		l.shape[d] = v->shape[d];
	packed_steps(v, l.step[number]);
	return l;
}

/* Buffer `number` is `v`, repeated where it lacks a dimension or has one element. */
static inline void loop_repeat(struct loop *l, int number, const struct hspmd_view *v)
{
	int64_t step[HSPMD_MAX_RANK];
	packed_steps(v, step);
	for (int d = 0; d < v->rank; d++)
		l->step[number][l->rank - v->rank + d] = v->shape[d] == 1 ? 0 : step[d];
}

/* Joins dimensions that are one after another in all buffers, so that rows are long. */
static inline void loop_collapse(struct loop *l)
{
	int last = 0;
	for (int d = 1; d < l->rank; d++) {
		bool joins = l->shape[last] > 1 && l->shape[d] > 1;
		for (int k = 0; k < LOOP_BUFFERS; k++)
			joins &= l->step[k][last] == l->step[k][d] * l->shape[d];
		if (l->shape[d] == 1)
			continue;
		if (joins)
			l->shape[last] *= l->shape[d];
		else if (l->shape[last] != 1)
			l->shape[++last] = l->shape[d];
		else
			l->shape[last] = l->shape[d];
		for (int k = 0; k < LOOP_BUFFERS; k++)
			l->step[k][last] = l->step[k][d];
	}
	l->rank = last + 1;
}

static inline int64_t loop_row_length(const struct loop *l)
{
	return l->shape[l->rank - 1];
}

static inline int64_t loop_rows(const struct loop *l)
{
	int64_t rows = 1;
	for (int d = 0; d + 1 < l->rank; d++)
		rows *= l->shape[d];
	return rows;
}

/* Numbers of the first elements of a row in all buffers. */
static inline void loop_row(const struct loop *l, int64_t row, int64_t at[LOOP_BUFFERS])
{
	memcpy(at, l->base, sizeof l->base);
	for (int d = l->rank - 2; d >= 0; d--) {
		int64_t i = row % l->shape[d];
		row /= l->shape[d];
		for (int k = 0; k < LOOP_BUFFERS; k++)
			at[k] += i * l->step[k][d];
	}
}

/* Work is given to threads in items: some whole rows, or a piece of a long row. */
static inline int64_t loop_pieces(const struct loop *l)
{
	int64_t length = loop_row_length(l);
	return length > LOOP_ROW_ELEMENTS ? (length + LOOP_ROW_ELEMENTS - 1) / LOOP_ROW_ELEMENTS : 1;
}

static inline int64_t loop_rows_per_item(const struct loop *l)
{
	int64_t length = loop_row_length(l);
	return length && length < LOOP_ROW_ELEMENTS ? LOOP_ROW_ELEMENTS / length : 1;
}

static inline int64_t loop_items(const struct loop *l)
{
	int64_t each = loop_rows_per_item(l);
	return (loop_rows(l) + each - 1) / each * loop_pieces(l);
}

/* The item is elements [*first, *end) of rows [*row, *row_end). */
static inline void loop_item(const struct loop *l, int64_t item, int64_t *row, int64_t *row_end, int64_t *first, int64_t *end)
{
	int64_t pieces = loop_pieces(l), each = loop_rows_per_item(l), rows = loop_rows(l);
	*row = item / pieces * each;
	*row_end = *row + each < rows ? *row + each : rows;
	split_range(loop_row_length(l), pieces, item % pieces, first, end);
}

/* Elements per item, about. */
static inline double loop_item_elements(const struct loop *l)
{
	return (double)(loop_rows_per_item(l) * loop_row_length(l)) / (double)loop_pieces(l);
}

#endif
