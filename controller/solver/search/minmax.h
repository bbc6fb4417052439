/* SPDX-License-Identifier: Apache-2.0 */
/* Dividing work so that the slowest is done soonest: shards of a layer over unlike devices, micro-batches over unlike pipelines. */
#ifndef HSPMD_SEARCH_MINMAX_H
#define HSPMD_SEARCH_MINMAX_H

#include "common/error.h"

/* One that takes a share: `fixed` seconds and `each` for every part, at least one part and at most `most` (what its memory holds). There
 * are `copies` of it, which take alike as far as the parts go round. */
struct hspmd_minmax_worker {
	double fixed, each;
	int copies, max_parts;
};

/* Divide `total` parts: every copy of taker i gets parts[i], the first extra[i] of them one more. Least possible time of the slowest.
 * 0; 1: there are too few parts for all or too little memory for them; -1: memory is short. */
int hspmd_minmax_divide(const struct hspmd_minmax_worker *workers, int count, int total, int *parts, int *extra);

#endif
