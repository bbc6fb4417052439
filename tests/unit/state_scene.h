/* SPDX-License-Identifier: Apache-2.0 */
/* A small training state with known elements, held by some workers: written and read by the tests of runtime/state. */
#ifndef HSPMD_TESTS_STATE_SCENE_H
#define HSPMD_TESTS_STATE_SCENE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/state/checkpoint.h"

struct scene_tensor {
	const char *name;
	struct hspmd_shape shape;
};

/* One scalar-like, one whose rows are short, one of several blocks. */
static const struct scene_tensor scene_tensors[] = {
	{ "b", { 1, { 5 } } },
	{ "wte.weight", { 2, { 37, 24 } } },
	{ "h.0.w", { 3, { 7, 300, 211 } } },
};
enum { SCENE_TENSORS = 3 };

static inline float scene_value(int tensor, int kind, int64_t step, int64_t element)
{
	return (float)(element % 100003) + (float)tensor * 0.25f + (float)kind * 0.125f + (float)(step % 1000) * 1000.0f;
}

static inline int64_t scene_element(const struct hspmd_shape *s, const int64_t *at)
{
	int64_t o = 0;
	for (int d = 0; d < s->rank; d++)
		o = o * s->dim[d] + at[d];
	return o;
}

/* Visits every element of a box: fills it, or counts differences. */
static inline int64_t scene_visit(int tensor, int kind, int64_t step, const struct hspmd_box *box, float *data, bool fill)
{
	const struct hspmd_shape *s = &scene_tensors[tensor].shape;
	int64_t at[HSPMD_MAX_RANK], wrong = 0, n = hspmd_box_elements(box);
	memcpy(at, box->lo, sizeof at);
	for (int64_t i = 0; i < n; i++) {
		float v = scene_value(tensor, kind, step, scene_element(s, at));
		if (fill)
			data[i] = v;
		else
			wrong += data[i] != v;
		for (int d = box->rank - 1; d >= 0; d--) {
			if (++at[d] < box->hi[d])
				break;
			at[d] = box->lo[d];
		}
	}
	return wrong;
}

/* Worker `worker` of `workers`: its part of every tensor along dimension `along` (along the last, if the tensor has fewer). */
static inline bool scene_box(int tensor, int along, int worker, int workers, struct hspmd_box *box)
{
	const struct hspmd_shape *s = &scene_tensors[tensor].shape;
	int d = along < s->rank ? along : s->rank - 1;
	*box = hspmd_box_full(s);
	box->lo[d] = s->dim[d] * worker / workers;
	box->hi[d] = s->dim[d] * (worker + 1) / workers;
	return !hspmd_box_empty(box);
}

/* Returns all slices of a worker, with data, and their number. Free with scene_free. */
static inline size_t scene_slices(int along, int worker, int workers, int64_t step, struct hspmd_state_slice *slices)
{
	size_t n = 0;
	for (int t = 0; t < SCENE_TENSORS; t++)
		for (int k = 0; k < HSPMD_STATE_KIND_COUNT; k++) {
			struct hspmd_box box;
			if (!scene_box(t, along, worker, workers, &box))
				continue;
			float *data = malloc((size_t)hspmd_box_elements(&box) * sizeof *data);
			scene_visit(t, k, step, &box, data, true);
			slices[n++] = (struct hspmd_state_slice){
				scene_tensors[t].name, (enum hspmd_state_kind)k, HSPMD_F32, scene_tensors[t].shape, box, data, false
			};
		}
	return n;
}

static inline void scene_free(struct hspmd_state_slice *slices, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free((void *)(uintptr_t)slices[i].data);
}

enum { SCENE_SLICES = SCENE_TENSORS * HSPMD_STATE_KIND_COUNT };

#endif
