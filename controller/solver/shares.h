/* SPDX-License-Identifier: Apache-2.0 */
/* Dividing work so that the slowest is done soonest: shards of a layer over unlike devices, micro-batches over unlike pipelines. */
#ifndef HSPMD_CONTROLLER_SOLVER_SHARES_H
#define HSPMD_CONTROLLER_SOLVER_SHARES_H

#include "common/error.h"

/* One that takes a share: `fixed` seconds and `each` for every part, at least one part and at most `most` (what its memory holds). There are
 * `copies` of it, which take alike as far as the parts go round. */
struct hspmd_taker {
	double fixed, each;
	int copies, most;
};

/* Divide `total` parts: every copy of taker i gets parts[i], the first extra[i] of them one more. Least possible time of the slowest.
 * 0; 1: there are too few parts for all or too little memory for them; -1: memory is short. */
int hspmd_shares(const struct hspmd_taker *takers, int count, int total, int *parts, int *extra);

#endif
