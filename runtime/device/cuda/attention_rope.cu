/* SPDX-License-Identifier: Apache-2.0 */
/* Turns the gradients of attention's rotated queries and keys back, in place, where the kernels that computed them have not done it. */
#include "runtime/device/cuda/attention.h"

#define THREADS 256

/* One thread per pair of elements. Row 0 is at position `first` among the keys. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) turn_back_kernel(struct attention a, struct head_rows of, int rows, int heads, int first)
{
	int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	int half = a.head_dim / 2, i = (int)(at % half), head = (int)(at / half % heads);
	int64_t row = at / half / heads;
	if (row >= (int64_t)a.batches * rows)
		return;
	T *x = (T *)of.data + row / rows * of.batch + row % rows * of.row + (int64_t)head * a.head_dim + i;
	const float *turn = a.angles + ((first + row % rows) * half + i) * 2;
	float one = to_float(x[0]), other = to_float(x[half]);
	rotate_pair(&one, &other, turn[0], -turn[1]);
	x[0] = from_float<T>(one);
	x[half] = from_float<T>(other);
}

template <typename T>
static void turn_rows(struct hspmd_cuda *cuda, const struct attention *a, const struct head_rows *of, int rows, int heads, int first)
{
	auto *kernel = turn_back_kernel<T>;
	int64_t pairs = (int64_t)a->batches * rows * heads * (a->head_dim / 2);
	if (of->data && pairs)
		LAUNCH(kernel, (unsigned)ceil_div(pairs, THREADS), THREADS, 0, cuda->stream, *a, *of, rows, heads, first);
}

template <typename T> static void turn_all(struct hspmd_cuda *cuda, const struct attention *a)
{
	turn_rows<T>(cuda, a, &a->dq, a->queries, a->heads, a->shift);
	turn_rows<T>(cuda, a, &a->dk, a->keys, a->kv_heads, 0);
}

void hspmd_cuda_attention_turn_back(struct hspmd_cuda *cuda, const struct attention *a, enum hspmd_dtype dtype)
{
	BY_TYPE(dtype, turn_all, cuda, a);
}

int hspmd_cuda_attention_turn_back_alone(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	for (int k = 0; k < 2; k++) {
		struct hspmd_kernel_args turn = {};
		turn.attr = args->attr;
		turn.input_count = 2;
		turn.output_count = 1;
		turn.in[0] = turn.out[0] = args->out[k];
		turn.in[1] = args->in[HSPMD_ATTENTION_GRAD_ANGLES];
		if (hspmd_cuda_rope_grad.run(cuda, &turn, err))
			return -1;
	}
	return 0;
}
