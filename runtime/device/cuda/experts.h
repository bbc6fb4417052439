/* SPDX-License-Identifier: Apache-2.0 */
/* A call of experts, its workspace, and what of its operands are FP8 numbers. */
#ifndef HSPMD_CUDA_EXPERTS_H
#define HSPMD_CUDA_EXPERTS_H

#include "runtime/device/cuda/fp8_round.h"
#include "runtime/device/cuda/grouped_gemm.h"
#include "runtime/device/cuda/kernel.h"
#include "runtime/device/cuda/stable_sort.h"

#define THREADS 256

/* Of FP8 operands, by enum hspmd_experts_operand. */
struct fp8_operands {
	float scale[HSPMD_EXPERTS_OPERANDS][2]; /* and its inverse */
	int amax[HSPMD_EXPERTS_OPERANDS];       /* the largest magnitudes so far, as bits of floats, which are in the same order */
};

/* One call. A "row" is one token of one expert. Rows are sorted by expert; order.list maps a row to its (token, choice). */
struct experts {
	struct hspmd_cuda_stable_sort order;
	int64_t tokens, per_token, width, inner, count, most; /* count: local experts; most: upper bound of the rows */
	const void *x, *dy, *weights, *gate, *up, *down;
	const void *biases[3]; /* of gate, up, down; NULL: none */
	bool is_first;         /* this device has the first part of the inner width, and adds down's bias */
	void *to, *dweights;
	int activation;
	float limit;
	void *rows, *rows_dy, *act_gate, *act_up, *act, *result; /* of the operands' type, a row after another */
	struct fp8_operands *fp8;                                /* on the device; NULL: operands are not rounded */
	bool notes_amax;
	bool refused;     /* a product of codes could not be asked for */
	bool is_coded;    /* operands are codes where FP8 units multiply them */
	void *rounded[2]; /* matrices of all experts, as codes or of the operands' type */
	/* Codes of rows: x; dy; act, in the backward pass times the token's weight; gradients of gate and up. The same of all rows of a
	 * column (grouped_gemm.h), for gradients of matrices. NULL: not needed. */
	void *x_codes, *dy_codes, *act_codes, *dgate_codes, *dup_codes;
	void *x_turned, *dy_turned, *act_turned, *dgate_turned, *dup_turned;
};

/* ---- FP8 operands: without, these change nothing */

static __global__ void __launch_bounds__(WARP)
        find_scales_kernel(const void *history, bool is_float, int gradient_unit, struct fp8_operands *to)
{
	int row = blockIdx.x, level = 0;
	for (int b = threadIdx.x; b < HSPMD_AMAX_BINS; b += WARP) {
		int at = row * HSPMD_AMAX_BINS + b;
		level += (is_float ? ((const float *)history)[at] : to_float(((const bf16 *)history)[at])) > 0 ? 1 : 0;
	}
	level = warp_reduce<Sum>(level);
	enum hspmd_fp8_operand kind = hspmd_experts_operand_kind(row);
	int scale = hspmd_fp8_scale(level, kind == HSPMD_FP8_GRADIENT ? gradient_unit : 0, kind);
	if (threadIdx.x == 0) {
		to->scale[row][0] = hspmd_power_of_two(scale);
		to->scale[row][1] = hspmd_power_of_two(-scale);
		to->amax[row] = 0;
	}
}

/* Writes the thermometers of all operands, or adds them. */
static __global__ void __launch_bounds__(HSPMD_AMAX_BINS)
        note_operands_kernel(const struct fp8_operands *fp8, int gradient_unit, float *out, bool accumulate)
{
	int row = blockIdx.x, at = row * HSPMD_AMAX_BINS + threadIdx.x;
	bool gradient = hspmd_experts_operand_kind(row) == HSPMD_FP8_GRADIENT;
	int level = hspmd_amax_level(hspmd_fp8_float((uint32_t)fp8->amax[row]), gradient ? gradient_unit : 0);
	out[at] = (accumulate ? out[at] : 0) + ((int)threadIdx.x < level ? 1 : 0);
}

template <int operand> static __device__ __forceinline__ float scaled(const struct experts &e, float x)
{
	return x * e.fp8->scale[operand][0];
}

/* A value as products read it. */
template <int operand> static __device__ __forceinline__ float as_read(const struct experts &e, float x)
{
	if (!e.fp8)
		return x;
	float y = scaled<operand>(e, x);
	return (operand >= HSPMD_EXPERTS_DY ? hspmd_e5m2_round(y) : hspmd_e4m3_round(y)) * e.fp8->scale[operand][1];
}

/* The same as a code, where there is a place for codes. */
template <int operand> static __device__ __forceinline__ void store_code(const struct experts &e, void *to, int64_t at, float x)
{
	float y = scaled<operand>(e, x);
	((uint8_t *)to)[at] = operand >= HSPMD_EXPERTS_DY ? hspmd_e5m2_bits(y) : hspmd_e4m3_bits(y);
}

/* All threads of the block call this, with the largest magnitude that each has. */
static __device__ __forceinline__ void note_operand(const struct experts &e, int operand, float most, float *room)
{
	if (!e.notes_amax)
		return;
	most = block_reduce<Max>(most, 0.0f, room);
	if (threadIdx.x == 0)
		atomicMax(&e.fp8->amax[operand], (int)hspmd_fp8_bits(most));
}

/* The forward pass's act, in its place. */
template <typename T> static __global__ void __launch_bounds__(THREADS) round_act_kernel(struct experts e)
{
	int64_t row = blockIdx.x;
	if (row >= e.order.first[e.count])
		return;
	T *act = (T *)e.act + row * e.inner;
	for (int64_t j = threadIdx.x; j < e.inner; j += THREADS)
		act[j] = from_float<T>(as_read<HSPMD_EXPERTS_ACT>(e, to_float(act[j])));
}

/* ---- the workspace; the sort's part is first */

struct experts_workspace {
	char *base; /* NULL: bytes are only counted */
	size_t used;
};

/* Returns the next so many bytes; NULL: none. */
static void *take(struct experts_workspace *w, int64_t bytes)
{
	char *at = w->base && bytes ? w->base + w->used : NULL;
	w->used += (size_t)ceil_div(bytes, 64) * 64;
	return at;
}

static int64_t larger_of(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static void lay_out_elements(struct experts *e, struct experts_workspace *w, int64_t size, bool backward)
{
	e->rows = take(w, e->most * e->width * size);
	e->rows_dy = take(w, backward ? e->most * e->width * size : 0);
	e->act_gate = take(w, e->most * e->inner * size);
	e->act_up = take(w, e->most * e->inner * size);
	e->act = take(w, e->most * e->inner * size);
	e->result = take(w, e->most * larger_of(e->width, e->inner) * size);
}

/* Of act only codes are kept; in the backward pass in the place of those of x, which have been turned by then. Likewise what is turned
 * takes the places of gate, up and the gradient of act when these have been read. */
static void lay_out_codes(struct experts *e, struct experts_workspace *w, bool backward)
{
	int64_t wide = larger_of(e->width, e->inner), turned = backward ? hspmd_cuda_grouped_turned_rows(e->most, e->count) : 0;
	int64_t layer = larger_of(e->most * (int64_t)sizeof(bf16), turned) * e->inner;
	e->x_codes = take(w, e->most * (backward ? wide : e->width));
	e->act_codes = backward ? e->x_codes : take(w, e->most * e->inner);
	e->result = take(w, larger_of(e->most * wide * (int64_t)sizeof(bf16), turned * e->inner));
	if (!backward)
		return;
	e->dy_codes = take(w, e->most * e->width);
	e->dgate_codes = take(w, e->most * e->inner);
	e->dup_codes = take(w, e->most * e->inner);
	e->x_turned = take(w, turned * e->width);
	e->dy_turned = take(w, turned * e->width);
	e->act_gate = e->dgate_turned = take(w, layer);
	e->act_up = e->dup_turned = take(w, layer);
	e->act_turned = e->result;
}

/* Lays out the workspace. Returns the bytes used. first: number of the first input, x; fp8: operands are rounded. */
static size_t lay_out(const struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct experts *e, int first, bool backward,
                      bool fp8)
{
	const struct hspmd_view *x = &args->in[first], *gate = &args->in[first + 3];
	*e = experts();
	e->tokens = hspmd_cuda_row_count(x);
	e->width = hspmd_cuda_row_length(x);
	e->inner = gate->shape[1];
	e->count = gate->shape[0];
	e->per_token = hspmd_cuda_row_length(&args->in[first + 1]);
	e->most = e->tokens * e->per_token;
	for (int i = 0; i < 3 && !fp8 && args->input_count > first + 6; i++)
		e->biases[i] = args->in[first + 6 + i].data;
	e->is_first = gate->start[1] == 0;
	e->activation = args->attr->activation;
	e->limit = (float)args->attr->limit;
	e->x = x->data;
	e->weights = args->in[first + 2].data;
	e->gate = gate->data;
	e->up = args->in[first + 4].data;
	e->down = args->in[first + 5].data;
	e->is_coded = fp8 && x->dtype == HSPMD_BF16 && hspmd_cuda_grouped_fp8_fits(cuda, e->inner, e->width);
	e->notes_amax = fp8 && backward && args->output_count > 5 && args->out[5].data;
	int64_t size = (int64_t)hspmd_cuda_dtype_bytes(x->dtype), matrix = e->count * e->inner * e->width * (e->is_coded ? 1 : size);
	struct experts_workspace w = { (char *)args->workspace, 0 };
	take(&w, (int64_t)hspmd_cuda_stable_sort_workspace(e->most, e->count));
	if (e->is_coded)
		lay_out_codes(e, &w, backward);
	else
		lay_out_elements(e, &w, size, backward);
	e->rounded[0] = take(&w, fp8 ? matrix : 0);
	e->rounded[1] = take(&w, fp8 ? matrix : 0);
	e->fp8 = (struct fp8_operands *)take(&w, fp8 ? (int64_t)sizeof *e->fp8 : 0);
	return w.used;
}

#endif
