/* SPDX-License-Identifier: Apache-2.0 */
/* Stable sort of items by a small integer key, so that sums taken in this order are reproducible. The rank of an item is the number of
 * items before it with the same key, found by counting. This takes n^2 / 2 comparisons, which for the tens of thousands of tokens of a
 * micro-batch costs less than the passes of a sort. */
#ifndef HSPMD_CUDA_STABLE_SORT_H
#define HSPMD_CUDA_STABLE_SORT_H

#include "runtime/device/cuda/cuda.h"

struct hspmd_cuda_stable_sort {
	int32_t *rank;  /* [n]; -1: the key is out of range */
	int32_t *first; /* [keys + 1]: where a key's items begin in `list` */
	int32_t *list;  /* [n] */
};

#ifdef __cplusplus
extern "C" {
#endif

size_t hspmd_cuda_stable_sort_workspace(int64_t n, int64_t keys);
/* Sorts the items whose key is in [lowest, lowest + keys) by key; the arrays of `order` are in the workspace. */
void hspmd_cuda_stable_sort_run(struct hspmd_cuda *cuda, const int32_t *key, int64_t n, int32_t lowest, int64_t keys, void *workspace,
                                struct hspmd_cuda_stable_sort *order);

#ifdef __cplusplus
}
#endif

#endif
