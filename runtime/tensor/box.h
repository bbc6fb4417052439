/* SPDX-License-Identifier: Apache-2.0 */
/* Axis-aligned boxes of a tensor's index space: what a device holds of a tensor, and what a message carries. Plain values, no ownership. */
#ifndef HSPMD_TENSOR_BOX_H
#define HSPMD_TENSOR_BOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HSPMD_MAX_RANK 6

struct hspmd_shape {
	int rank; /* 0: a scalar */
	int64_t dim[HSPMD_MAX_RANK];
};

struct hspmd_box {
	int rank;
	int64_t lo[HSPMD_MAX_RANK], hi[HSPMD_MAX_RANK]; /* half-open */
};

struct hspmd_box hspmd_box_full(const struct hspmd_shape *shape);
int64_t hspmd_shape_elements(const struct hspmd_shape *shape);
int64_t hspmd_box_elements(const struct hspmd_box *box); /* 0 when empty */
bool hspmd_box_empty(const struct hspmd_box *box);
bool hspmd_box_equal(const struct hspmd_box *a, const struct hspmd_box *b);
bool hspmd_box_contains(const struct hspmd_box *outer, const struct hspmd_box *inner);
/* Intersection of a and b (same rank) into *out; false and *out untouched when it is empty. */
bool hspmd_box_intersect(const struct hspmd_box *a, const struct hspmd_box *b, struct hspmd_box *out);
/* a without b as at most 2 * rank disjoint boxes; their count. */
int hspmd_box_subtract(const struct hspmd_box *a, const struct hspmd_box *b, struct hspmd_box *out);

/* Longest run of contiguous elements when `part` is cut from a row-major buffer that holds `whole`: elements a run, and how many runs. */
void hspmd_box_runs(const struct hspmd_box *whole, const struct hspmd_box *part, int64_t *run, int64_t *runs);

/* Where in a row-major buffer that holds `whole` the elements of `part` lie one after another; NULL: they do not. */
void *hspmd_box_contiguous(void *data, const struct hspmd_box *whole, const struct hspmd_box *part, size_t element_bytes);

/* Copy `part` between two row-major buffers that hold the boxes dst_box and src_box (both contain part); element_bytes each element. */
void hspmd_box_copy(void *dst, const struct hspmd_box *dst_box, const void *src, const struct hspmd_box *src_box,
                    const struct hspmd_box *part, size_t element_bytes);

/* "[0:4, 16:32]" into buf; returns buf. */
const char *hspmd_box_text(const struct hspmd_box *box, char *buf, size_t size);

#endif
