/* SPDX-License-Identifier: Apache-2.0 */
/* Things put in order of a small key, equal ones in their own order: who sums along it sums the same way every time. The rank of a thing is
 * the number of equal ones before it, counted; that is n^2 / 2 comparisons, which for the tens of thousands of tokens of a micro-batch
 * costs less than a sort's passes. */
#ifndef HSPMD_CUDA_STABLE_SORT_H
#define HSPMD_CUDA_STABLE_SORT_H

#include "runtime/device/cuda/cuda.h"

struct hspmd_cuda_stable_sort {
	int32_t *rank;  /* [n]; -1: its key is out of range */
	int32_t *first; /* [keys + 1]: where a key's things begin in `list` */
	int32_t *list;  /* [n] */
};

#ifdef __cplusplus
extern "C" {
#endif

size_t hspmd_cuda_stable_sort_workspace(int64_t n, int64_t keys);
/* Things whose key is in [lowest, lowest + keys), by key; `order` points into the workspace. */
void hspmd_cuda_stable_sort_run(struct hspmd_cuda *cuda, const int32_t *key, int64_t n, int32_t lowest, int64_t keys, void *workspace,
                                struct hspmd_cuda_stable_sort *order);

#ifdef __cplusplus
}
#endif

#endif
