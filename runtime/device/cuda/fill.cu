/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that fill tensors, casts between types, copies of boxes, and sums of rows. */
#include "runtime/device/cuda/kernel.h"
#include "runtime/device/rounding.h"

#define THREADS 256

template <typename T>
static __global__ void __launch_bounds__(THREADS)
        normal_kernel(T *x, int64_t count, struct hspmd_index_map map, uint64_t seed, uint64_t stream, double mean, double deviation)
{
	int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, run;
	if (i < count)
		x[i] = from_float<T>(
		        (float)(mean + deviation * hspmd_random_normal(seed, stream, (uint64_t)hspmd_index_at(&map, i, &run))));
}

template <typename T> static __global__ void __launch_bounds__(THREADS) fill_kernel(T *x, int64_t count, float value)
{
	int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	if (i < count)
		x[i] = from_float<T>(value);
}

template <typename From, typename To> static __global__ void __launch_bounds__(THREADS) cast_kernel(const From *x, To *y, int64_t count)
{
	int64_t j = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 8;
	if (j >= count)
		return;
	float v[8];
#pragma unroll
	for (int i = 0; i < 8; i += pack<From>::count)
		load_pack(v + i, x, j + i, count, true);
#pragma unroll
	for (int i = 0; i < 8; i += pack<To>::count)
		store_pack(y, v + i, j + i, count, true);
}

static __global__ void __launch_bounds__(THREADS)
        round_kernel(const float *x, bf16 *y, int64_t count, struct hspmd_index_map map, uint64_t seed, uint64_t stream)
{
	int64_t j = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 8;
	float v[8];
	uint16_t halves[8];
	if (j >= count)
		return;
	load_pack(v, x, j, count, true);
	load_pack(v + 4, x, j + 4, count, true);
	hspmd_round_elements(seed, stream, &map, j, 8, v, halves);
	store_halves<8>(y, halves, j, count);
}

/* Boxes in packed buffers: in each buffer the part begins at an offset and has its own strides. */
struct boxes {
	int rank;
	int64_t count, size[HSPMD_MAX_RANK], from_step[HSPMD_MAX_RANK], to_step[HSPMD_MAX_RANK];
};

template <typename T, bool adds> static __global__ void __launch_bounds__(THREADS) box_kernel(T *to, const T *from, struct boxes b)
{
	int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, source = 0, target = 0, rest = i;
	if (i >= b.count)
		return;
	for (int d = b.rank - 1; d >= 0; d--) {
		int64_t at = rest % b.size[d];
		rest /= b.size[d];
		source += at * b.from_step[d];
		target += at * b.to_step[d];
	}
	if constexpr (adds)
		to[target] = from_float<T>(to_float(to[target]) + to_float(from[source]));
	else
		to[target] = from[source];
}

/* Sets the strides of a packed buffer. Returns the offset in elements at which the part begins in it. */
static int64_t lay_out(const struct hspmd_box *box, const struct hspmd_box *part, int64_t *step)
{
	int64_t size = 1, offset = 0;
	for (int d = box->rank - 1; d >= 0; d--) {
		step[d] = size;
		offset += (part->lo[d] - box->lo[d]) * size;
		size *= box->hi[d] - box->lo[d];
	}
	return offset;
}

template <typename T, bool adds>
static void move_box(struct hspmd_cuda *cuda, void *dst, const void *src, int64_t to, int64_t from, const struct boxes *b)
{
	auto *kernel = box_kernel<T, adds>;
	LAUNCH(kernel, (unsigned)ceil_div(b->count, THREADS), THREADS, 0, cuda->stream, (T *)dst + to, (const T *)src + from, *b);
}

/* Copies 16 bytes per element if the rows allow it. Returns false if they do not. */
static bool widen(struct boxes *b, const void *dst, const void *src, int64_t *to, int64_t *from, int64_t element_bytes)
{
	int64_t n = 16 / element_bytes;
	int last = b->rank - 1;
	bool even = last >= 0 && b->size[last] % n == 0 && *to % n == 0 && *from % n == 0 && (uintptr_t)dst % 16 == 0 &&
	            (uintptr_t)src % 16 == 0;
	for (int d = 0; even && d < last; d++)
		even = b->size[d] == 1 || (b->to_step[d] % n == 0 && b->from_step[d] % n == 0);
	if (!even)
		return false;
	for (int d = 0; d < last; d++) {
		b->to_step[d] /= n;
		b->from_step[d] /= n;
	}
	b->size[last] /= n;
	b->count /= n;
	*to /= n;
	*from /= n;
	return true;
}

/* Integers and the like are copied as floats of the same size: bit by bit. */
int hspmd_cuda_copy_box(struct hspmd_cuda *cuda, void *dst, const struct hspmd_box *dst_box, const void *src,
                        const struct hspmd_box *src_box, const struct hspmd_box *part, enum hspmd_dtype dtype, bool add,
                        struct hspmd_error *err)
{
	struct boxes b = {};
	b.rank = part->rank;
	b.count = 1;
	for (int d = 0; d < part->rank; d++)
		b.count *= b.size[d] = part->hi[d] > part->lo[d] ? part->hi[d] - part->lo[d] : 0;
	if (!b.count)
		return 0;
	int64_t to = lay_out(dst_box, part, b.to_step), from = lay_out(src_box, part, b.from_step);
	if (add && dtype == HSPMD_F32)
		move_box<float, true>(cuda, dst, src, to, from, &b);
	else if (add && dtype == HSPMD_BF16)
		move_box<bf16, true>(cuda, dst, src, to, from, &b);
	else if (add)
		return hspmd_fail(err, "the CUDA device adds F32 and BF16 only into a buffer");
	else if (dtype == HSPMD_F64)
		return hspmd_fail(err, "the CUDA device has no F64 tensors");
	else if (widen(&b, dst, src, &to, &from, dtype == HSPMD_BF16 ? 2 : 4))
		move_box<pack<float>, false>(cuda, dst, src, to, from, &b);
	else if (dtype == HSPMD_BF16)
		move_box<bf16, false>(cuda, dst, src, to, from, &b);
	else
		move_box<float, false>(cuda, dst, src, to, from, &b);
	return 0;
}

template <typename T> static int normal_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *x = &args->out[0];
	int64_t count = hspmd_cuda_elements(x);
	auto *kernel = normal_kernel<T>;
	if (count)
		LAUNCH(kernel, (unsigned)ceil_div(count, THREADS), THREADS, 0, cuda->stream, (T *)x->data, count, hspmd_index_map_of(x),
		       args->attr->random.seed, args->attr->random.stream, args->attr->random.mean, args->attr->random.deviation);
	return 0;
}

template <typename T> static int fill_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	int64_t count = hspmd_cuda_elements(&args->out[0]);
	auto *kernel = fill_kernel<T>;
	if (count)
		LAUNCH(kernel, (unsigned)ceil_div(count, THREADS), THREADS, 0, cuda->stream, (T *)args->out[0].data, count,
		       (float)args->attr->scale);
	return 0;
}

template <typename From, typename To> static int cast_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	int64_t count = hspmd_cuda_elements(&args->in[0]);
	auto *kernel = cast_kernel<From, To>;
	if (count)
		LAUNCH(kernel, (unsigned)ceil_div(count, THREADS * 8), THREADS, 0, cuda->stream, (const From *)args->in[0].data,
		       (To *)args->out[0].data, count);
	return 0;
}

static void round_to(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	int64_t count = hspmd_cuda_elements(&args->in[0]);
	if (count)
		LAUNCH(round_kernel, (unsigned)ceil_div(count, THREADS * 8), THREADS, 0, cuda->stream, (const float *)args->in[0].data,
		       (bf16 *)args->out[0].data, count, hspmd_index_map_of(&args->out[0]), args->attr->random.seed,
		       args->attr->random.stream);
}

static int normal(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->out[0].dtype, normal_of, cuda, args);
}

static int fill(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->out[0].dtype, fill_of, cuda, args);
}

static int cast(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	enum hspmd_dtype from = args->in[0].dtype, to = args->out[0].dtype;
	if ((from != HSPMD_F32 && from != HSPMD_BF16) || (to != HSPMD_F32 && to != HSPMD_BF16))
		return hspmd_fail(err, "the CUDA device casts between F32 and BF16 only");
	if (hspmd_rounds_stochastically(args)) {
		round_to(cuda, args);
		return 0;
	}
	if (from == to)
		return from == HSPMD_F32 ? cast_of<float, float>(cuda, args) : cast_of<bf16, bf16>(cuda, args);
	return from == HSPMD_F32 ? cast_of<float, bf16>(cuda, args) : cast_of<bf16, float>(cuda, args);
}

const struct hspmd_cuda_kernel hspmd_cuda_normal = { normal, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_fill = { fill, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_cast = { cast, NULL };

/* A block per row. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
        sum_rows_kernel(T *const *to, const T *const *from, const int64_t *first, int64_t elements)
{
	int64_t row = blockIdx.x, begin = first[row], end = first[row + 1];
	for (int64_t j = threadIdx.x; j < elements; j += THREADS) {
		float sum = begin < end ? to_float(from[begin][j]) : 0.0f;
		for (int64_t k = begin + 1; k < end; k++)
			sum += to_float(from[k][j]);
		to[row][j] = from_float<T>(sum);
	}
}

template <typename T> static int sum_rows_of(struct hspmd_cuda *cuda, const void *lists, int64_t count, int64_t addends, int64_t elements)
{
	T *const *to = (T *const *)lists;
	const T *const *from = (const T *const *)(to + count);
	auto *kernel = sum_rows_kernel<T>;
	LAUNCH(kernel, (unsigned)count, THREADS, 0, cuda->stream, to, from, (const int64_t *)(from + addends), elements);
	return 0;
}

void hspmd_cuda_sum_rows(struct hspmd_cuda *cuda, const void *lists, int64_t count, int64_t addends, int64_t elements,
                         enum hspmd_dtype dtype)
{
	BY_TYPE(dtype, sum_rows_of, cuda, lists, count, addends, elements);
}

/* ---- a measure for what is bound by memory */

static __global__ void __launch_bounds__(THREADS)
        move_kernel(pack<float> *to, const pack<float> *from, int64_t room, int64_t count)
{
	int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	if (at < count)
		to[at % room] = from[at % room];
}

void hspmd_cuda_move_bytes(struct hspmd_cuda *cuda, void *to, const void *from, size_t room, int64_t bytes)
{
	int64_t packs = (int64_t)(room / sizeof(pack<float>)), count = bytes / 2 / (int64_t)sizeof(pack<float>);
	if (packs && count)
		LAUNCH(move_kernel, (unsigned)ceil_div(count, THREADS), THREADS, 0, cuda->stream, (pack<float> *)to,
		       (const pack<float> *)from, packs, count);
}
