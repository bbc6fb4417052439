/* SPDX-License-Identifier: Apache-2.0 */
/* The local part of a tensor as kernels see it. */
#ifndef HSPMD_TENSOR_VIEW_H
#define HSPMD_TENSOR_VIEW_H

#include "runtime/tensor/box.h"
#include "runtime/tensor/dtype.h"

/* The local part of a tensor: a row-major buffer of `shape`, which begins at index `start` of a tensor whose full shape is `full`. It is
 * packed, unless row_stride is set: only operands that an operator's type allows it for (padded_in, padded_out of op_type.h), and only for
 * devices that want rows aligned (row_bytes of device_traits.h). */
struct hspmd_view {
	void *data;
	enum hspmd_dtype dtype;
	int rank;
	int64_t shape[HSPMD_MAX_RANK];
	int64_t start[HSPMD_MAX_RANK];
	int64_t full[HSPMD_MAX_RANK];
	int64_t row_stride; /* elements from one row of the last dimension to the next; what lies between has no meaning. 0: packed */
	bool accumulate;    /* outputs: add to the contents instead of overwriting */
};

#endif
