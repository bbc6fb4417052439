/* SPDX-License-Identifier: Apache-2.0 */
/* One thread per element of a shape, of which several buffers have elements at different distances: transposed, repeated, or a part of a
 * larger buffer. */
#ifndef HSPMD_CUDA_LOOP_H
#define HSPMD_CUDA_LOOP_H

#include "runtime/device/cuda/kernel.h"

#define LOOP_BUFFERS 3
#define LOOP_THREADS 256

struct loop {
	int rank;
	int64_t count; /* elements */
	int64_t shape[HSPMD_MAX_RANK];
	int64_t step[LOOP_BUFFERS][HSPMD_MAX_RANK]; /* elements from one to the next along a dimension; 0: repeated */
	int64_t base[LOOP_BUFFERS];                 /* number of the first element */
};

/* Sets the numbers of element `i` in the first `buffers` buffers. */
static __host__ __device__ __forceinline__ void loop_at(const struct loop &l, int64_t i, int buffers, int64_t *at)
{
	for (int k = 0; k < buffers; k++)
		at[k] = l.base[k];
	for (int d = l.rank - 1; d >= 0; d--) {
		int64_t index = i % l.shape[d];
		i /= l.shape[d];
		for (int k = 0; k < buffers; k++)
			at[k] += index * l.step[k][d];
	}
}

static inline void packed_steps(const struct hspmd_view *v, int64_t *step)
{
	int64_t next = 1;
	for (int d = v->rank - 1; d >= 0; d--) {
		step[d] = next;
		next *= v->shape[d];
	}
}

/* Over the elements of `v`, which is packed in buffer `number`. */
static inline struct loop loop_over(const struct hspmd_view *v, int number)
{
	struct loop l = {};
	l.rank = v->rank;
	l.count = hspmd_cuda_elements(v);
	for (int d = 0; d < v->rank; d++)
		l.shape[d] = v->shape[d];
	packed_steps(v, l.step[number]);
	return l;
}

/* Buffer `number` is `v`, repeated where it lacks a dimension or has one element. */
static inline void loop_repeat(struct loop *l, int number, const struct hspmd_view *v)
{
	int64_t step[HSPMD_MAX_RANK];
	packed_steps(v, step);
	for (int d = 0; d < v->rank; d++)
		l->step[number][l->rank - v->rank + d] = v->shape[d] == 1 ? 0 : step[d];
}

static inline unsigned loop_grid(int64_t count)
{
	return (unsigned)ceil_div(count, LOOP_THREADS);
}

#endif
