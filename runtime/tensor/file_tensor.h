/* SPDX-License-Identifier: Apache-2.0 */
/* How the tensors of a model's published files differ from ours: a file may hold several of ours in one tensor (query, key and value), one
 * of ours in several (the experts of a stack), or the transposed matrix. Plain data. */
#ifndef HSPMD_TENSOR_FILE_TENSOR_H
#define HSPMD_TENSOR_FILE_TENSOR_H

#include "runtime/tensor/box.h"

#define HSPMD_FILE_NAME_MAX 256

/* The part `box` of one of our tensors is in the file's tensor `name`. Element (i0, i1, ..) of the part, counted from the part's first, is
 * element first + (i0 / block) * block_stride + (i0 % block) * stride[0] + i1 * stride[1] + .. of the file's tensor. */
struct hspmd_file_piece {
	char name[HSPMD_FILE_NAME_MAX];
	struct hspmd_shape shape; /* of the file's tensor */
	struct hspmd_box box;
	int64_t first, block, block_stride, stride[HSPMD_MAX_RANK];
};

struct hspmd_file_map {
	/* Fills piece number `index` of our tensor. Returns false if there are fewer pieces. NULL: all tensors are in the files as they
	 * are. */
	bool (*piece)(const void *context, const char *tensor, const struct hspmd_shape *shape, int64_t index,
	              struct hspmd_file_piece *piece);
	const void *context;
	/* Beginnings of names, each of which a file may have instead of another or leave out; ends with NULL. NULL: none. */
	const char *const *prefixes;
};

#endif
