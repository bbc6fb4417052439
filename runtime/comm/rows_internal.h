/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch and combine: only the rows of a box that chose one of some experts travel. Both sides of a message count them in the choice,
 * which both hold, so that no message says how long the next one is. A box is cut into blocks of rows, of each of which at most one message
 * goes from one device to another: in the order of the boxes, then of the blocks. The receiver sums a row's addends in the order of their
 * senders, in F32 for BF16. Private to runtime/comm. */
#ifndef HSPMD_COMM_ROWS_INTERNAL_H
#define HSPMD_COMM_ROWS_INTERNAL_H

#include "runtime/comm/comm_internal.h"

struct rows {
	struct hspmd_comm *c;
	const struct hspmd_comm_step *step;
	int self; /* among the members */
	const struct hspmd_local_buffer *in, *out;
	const struct hspmd_row_choice *choice;
	uint64_t tag;
	size_t row_bytes;
	int64_t per_block; /* rows of a block */
};

/* Rows [first, first + count) of a box, counted through its leading dimensions. */
struct block {
	const struct hspmd_box *box;
	int64_t first, count;
};

/* ---- row_choice.c */

/* Whole rows of a tensor, and of a block of them at most HSPMD_COMM_MESSAGE bytes, but at least one row. */
void hspmd_rows_measure(struct rows *r, const struct hspmd_transfer *transfer);
int64_t hspmd_rows_of(const struct hspmd_box *box);
/* Returns true if a row of a box chose one of these experts. */
bool hspmd_rows_chose(const struct rows *r, const struct hspmd_box *box, int64_t row, const struct hspmd_expert_range *experts);
/* Byte offset of a row of `box` within a part. */
size_t hspmd_rows_offset(const struct rows *r, const struct hspmd_local_buffer *part, const struct hspmd_box *box, int64_t row);
/* The index of a device among the members. */
int hspmd_rows_member(const struct rows *r, int device);
/* The experts by which rows are chosen that go from one member to another. */
const struct hspmd_expert_range *hspmd_rows_chosen_by(const struct rows *r, int from, int to);
/* Rows of a block that go from one member to another. */
int64_t hspmd_rows_count(const struct rows *r, const struct block *b, int from, int to);
/* The moves from this device to others, or those to this device, by place, then by the other device. The caller frees it. NULL: memory. */
const struct hspmd_move **hspmd_rows_moves(struct rows *r, bool outgoing, int *count);
/* The number of moves at the start of a list that are of the first one's box. */
int hspmd_rows_same_box(const struct hspmd_move *const *list, int count);
/* Block `number` of a box; false: there is none. */
bool hspmd_rows_block(const struct rows *r, const struct hspmd_box *box, int64_t number, struct block *b);

/* ---- rows_on_device.c: the exchange between devices whose memory the host cannot read */
int hspmd_rows_exchange_on_device(struct rows *r, struct hspmd_error *err);

#endif
