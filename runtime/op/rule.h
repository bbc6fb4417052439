/* SPDX-License-Identifier: Apache-2.0 */
/* How the dimensions of an operator's inputs and outputs belong together, in the manner of an index expression: deduction needs no more.
 *
 * Every dimension of a tensor has a character. A letter names an index of the operator's loops: dimensions with the same letter are cut
 * together. An input's dimension may be
 *   'b'  an index: may be split, and everything with this index is split with it;
 *   '!'  not an index: no device can do with a part of it;
 *   'T'  (capital) as '!', but when it lies split, index 't' is split so where others have it: the input is gathered, the work is not
 * repeated. An output's dimension may be 'b'  an index;
 *   '!'  whole on every device;
 *   'V'  (capital) one element for every part of index 'v', which is cut in exactly that many.
 * An output may end in '/' and the indices it is a sum over: where those are split it is partial. Indices that it neither has nor sums over
 * leave duplicates. An input that begins with '+' may be partial, and the outputs then are: the operator is linear in all such inputs
 * together.
 *
 *   linear      "btk", "nk" -> "btn/k"
 *   its dw      "+btn", "btk" -> "nk/bt"
 *   attention   "bth", "b!h", "b!h" -> "bth", "bht"
 */
#ifndef HSPMD_OP_RULE_H
#define HSPMD_OP_RULE_H

#include <stdint.h>

#include "runtime/tensor/opcode.h"

struct hspmd_op_rule {
	char in[HSPMD_OP_MAX_IO][24], out[HSPMD_OP_MAX_IO][24];
	/* Elements per step of index 'h' (heads: head_dim, or as many as share a kv head), 0: 1. A split that cuts within a step cannot
	 * stay. */
	int64_t in_step[HSPMD_OP_MAX_IO], out_step[HSPMD_OP_MAX_IO];
	/* Whose splits decide where they cannot all stay: digits name inputs, letters behind one restrict what is taken from it there. ""
	 * means inputs in their order. Example: "0n1k01". */
	char priority[24];
};

/* "bthcde" cut to `rank` characters: the indices of an activation's leading dimensions. */
const char *hspmd_rule_leading(int rank);

#endif
