/* SPDX-License-Identifier: Apache-2.0 */
/* The local part of a tensor as kernels see it. */
#ifndef HSPMD_TENSOR_VIEW_H
#define HSPMD_TENSOR_VIEW_H

#include "runtime/tensor/box.h"
#include "runtime/tensor/dtype.h"

/* The local part of a tensor: a packed row-major buffer of `shape`, which begins at index `start` of a tensor whose full shape is
 * `full`. */
struct hspmd_view {
	void *data;
	enum hspmd_dtype dtype;
	int rank;
	int64_t shape[HSPMD_MAX_RANK];
	int64_t start[HSPMD_MAX_RANK];
	int64_t full[HSPMD_MAX_RANK];
	bool accumulate; /* outputs: add to the contents instead of overwriting */
};

#endif
