/* SPDX-License-Identifier: Apache-2.0 */
/* Axis-aligned boxes of a tensor's index space: the part of a tensor that a device holds or that a message carries. Plain values without
 * ownership. */
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
/* The greatest common divisor of two sizes; of 0 and a: a. */
int64_t hspmd_common_divisor(int64_t a, int64_t b);
int64_t hspmd_box_elements(const struct hspmd_box *box); /* 0 if empty */
bool hspmd_box_empty(const struct hspmd_box *box);
bool hspmd_box_equal(const struct hspmd_box *a, const struct hspmd_box *b);
bool hspmd_box_contains(const struct hspmd_box *outer, const struct hspmd_box *inner);
/* Writes the intersection of a and b (same rank) to *out. If it is empty, returns false and leaves *out untouched. */
bool hspmd_box_intersect(const struct hspmd_box *a, const struct hspmd_box *b, struct hspmd_box *out);
/* Writes a without b to `out` as at most 2 * rank disjoint boxes; returns their number. */
int hspmd_box_subtract(const struct hspmd_box *a, const struct hspmd_box *b, struct hspmd_box *out);

/* Cuts `part` from a row-major buffer that holds `whole`: *run is the longest run of contiguous elements, *runs the number of such runs. */
void hspmd_box_runs(const struct hspmd_box *whole, const struct hspmd_box *part, int64_t *run, int64_t *runs);

/* Address of the elements of `part` in a row-major buffer that holds `whole`, if they are contiguous there; else NULL. */
void *hspmd_box_contiguous(void *data, const struct hspmd_box *whole, const struct hspmd_box *part, size_t element_bytes);

/* Copies `part` between two row-major buffers that hold the boxes dst_box and src_box. Both boxes contain `part`; each element has
 * element_bytes bytes. */
void hspmd_box_copy(void *dst, const struct hspmd_box *dst_box, const void *src, const struct hspmd_box *src_box,
                    const struct hspmd_box *part, size_t element_bytes);

/* Writes the box to `buf` as "[0:4, 16:32]"; returns buf. */
const char *hspmd_box_text(const struct hspmd_box *box, char *buf, size_t size);

#endif
