/* SPDX-License-Identifier: Apache-2.0 */
/* How the dimensions of an operator's inputs and outputs correspond, written like an index expression. Deduction uses only this.
 *
 * Every dimension of a tensor has a character. A letter names an index of the operator's loops; dimensions with the same letter are cut
 * together. A dimension of an input may be
 *   'b'  an index: may be split, and every dimension with this index is split with it;
 *   '!'  not an index: every device needs the full dimension;
 *   'T'  (capital) like '!', but if the input is split there, index 't' is split in the dimensions of others that have it: the input is
 *        gathered, and the work is not repeated.
 * A dimension of an output may be
 *   'b'  an index;
 *   '!'  full on every device;
 *   'V'  (capital) one element per part of index 'v', which is cut into exactly that many parts.
 * An output may end in '/' and the indices it is a sum over: if those are split, the output is partial. Indices that an output neither has
 * nor sums over leave duplicates. An input that begins with '+' may be partial, and the outputs are then partial: the operator is linear in
 * all such inputs together.
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
	/* Elements per step of index 'h' (heads: head_dim, or that of all heads that share a kv head); 0: 1. A split that cuts within a
	 * step is not kept. */
	int64_t in_step[HSPMD_OP_MAX_IO], out_step[HSPMD_OP_MAX_IO];
	/* Priority of inputs if their splits conflict. A digit names an input; letters after it restrict the indices that the input decides
	 * there. "": inputs in order. Example: "0n1k01". */
	char priority[24];
};

/* The first `rank` characters of "bthcde": the indices of an activation's leading dimensions. */
const char *hspmd_rule_leading(int rank);

#endif
