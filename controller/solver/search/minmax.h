/* SPDX-License-Identifier: Apache-2.0 */
/* Division of work so that the slowest worker finishes as early as possible: shards of a layer over unequal devices, micro-batches over
 * unequal pipelines. */
#ifndef HSPMD_SEARCH_MINMAX_H
#define HSPMD_SEARCH_MINMAX_H

#include "common/error.h"

/* A worker: it takes `fixed` seconds plus `each` seconds per part, and takes at least one part and at most max_parts (the limit of its
 * memory). There are `copies` of it, whose numbers of parts differ by at most one. */
struct hspmd_minmax_worker {
	double fixed, each;
	int copies, max_parts;
};

/* Divide `total` parts: every copy of worker i gets parts[i], and the first extra[i] of them one more. The slowest worker's time is the
 * least possible. Returns 0, or 1 if there are too few parts for all workers or too little memory for the parts. */
int hspmd_minmax_divide(const struct hspmd_minmax_worker *workers, int count, int total, int *parts, int *extra);

#endif
