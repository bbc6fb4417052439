/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel files share on the device: types, 16-byte accesses, reductions over a warp and a block. A C++ compiler compiles it too,
 * against the stand-ins of tests/gpu/emulate, which define EMULATE. */
#ifndef HSPMD_CUDA_KERNEL_H
#define HSPMD_CUDA_KERNEL_H

#include <cuda_bf16.h>
#include <stdint.h>
#include <string.h>

#include "runtime/device/cuda/cuda.h"

#ifndef EMULATE
#define LAUNCH(kernel, grid, threads, shared, stream, ...) kernel<<<grid, threads, shared, stream>>>(__VA_ARGS__)
#define DYNAMIC_SHARED(type, name)                                                                                                         \
	extern __shared__ __align__(16) unsigned char hspmd_dynamic_shared[];                                                              \
	type *name = (type *)hspmd_dynamic_shared
#endif

typedef __nv_bfloat16 bf16;

#define WARP 32
#define ALL_LANES 0xffffffffu

static __device__ __forceinline__ float to_float(float x)
{
	return x;
}

static __device__ __forceinline__ float to_float(bf16 x)
{
	return __bfloat162float(x);
}

template <typename T> static __device__ __forceinline__ T from_float(float x);

template <> __device__ __forceinline__ float from_float<float>(float x)
{
	return x;
}

template <> __device__ __forceinline__ bf16 from_float<bf16>(float x)
{
	return __float2bfloat16_rn(x);
}

/* ---- 16-byte accesses */

template <typename T> struct __align__(16) pack
{
	static const int count = 16 / sizeof(T);
	T v[16 / sizeof(T)];
};

/* Writes 8 or 16 bytes, aligned as much, in one access: of an assignment the compiler may make one for each member. */
template <typename V> static __device__ __forceinline__ void store_whole(V *to, const V &value)
{
	static_assert(sizeof(V) == 8 || sizeof(V) == 16, "the sizes that there are instructions for");
#ifdef EMULATE
	*to = value;
#else
	uint32_t w[sizeof(V) / 4];
	memcpy(w, &value, sizeof w);
	if constexpr (sizeof(V) == 16)
		asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(w[0]), "r"(w[1]),
		             "r"(w[2]), "r"(w[3])
		             : "memory");
	else
		asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "r"(w[0]), "r"(w[1]) : "memory");
#endif
}

/* Loads elements [j, j + count) of a row as floats; 0 beyond its end. aligned: rows begin on multiples of 16 bytes. */
template <typename T> static __device__ __forceinline__ void load_pack(float *to, const T *row, int64_t j, int64_t width, bool aligned)
{
	const int n = pack<T>::count;
	if (aligned && j + n <= width) {
		pack<T> p = *(const pack<T> *)(row + j);
#pragma unroll
		for (int i = 0; i < n; i++)
			to[i] = to_float(p.v[i]);
	} else {
#pragma unroll
		for (int i = 0; i < n; i++)
			to[i] = j + i < width ? to_float(row[j + i]) : 0.0f;
	}
}

/* The same without conversion. */
template <typename T> static __device__ __forceinline__ pack<T> load_raw(const T *row, int64_t j, int64_t width, bool aligned)
{
	const int n = pack<T>::count;
	pack<T> p = {};
	if (aligned && j + n <= width)
		return *(const pack<T> *)(row + j);
#pragma unroll
	for (int i = 0; i < n; i++)
		if (j + i < width)
			p.v[i] = row[j + i];
	return p;
}

template <typename T> static __device__ __forceinline__ void store_pack(T *row, const float *from, int64_t j, int64_t width, bool aligned)
{
	const int n = pack<T>::count;
	if (aligned && j + n <= width) {
		pack<T> p;
#pragma unroll
		for (int i = 0; i < n; i++)
			p.v[i] = from_float<T>(from[i]);
		store_whole((pack<T> *)(row + j), p);
	} else {
#pragma unroll
		for (int i = 0; i < n; i++)
			if (j + i < width)
				row[j + i] = from_float<T>(from[i]);
	}
}

/* Stores n BF16 numbers, given as bits: in one access if all are within the row, which begins on a multiple of 2 n bytes. */
template <int n> static __device__ __forceinline__ void store_halves(bf16 *row, const uint16_t *bits, int64_t j, int64_t width)
{
	struct __align__(2 * n) halves
	{
		uint16_t v[n];
	}
	all;
	if (j + n <= width) {
#pragma unroll
		for (int i = 0; i < n; i++)
			all.v[i] = bits[i];
		store_whole((struct halves *)(row + j), all);
	} else {
#pragma unroll
		for (int i = 0; i < n; i++)
			if (j + i < width)
				memcpy(row + j + i, bits + i, sizeof *bits);
	}
}

/* Returns true if all rows of `width` elements of T begin on multiples of 16 bytes; buffers always do. */
template <typename T> static __host__ __device__ __forceinline__ bool is_aligned16(int64_t width)
{
	return width % (int64_t)(16 / sizeof(T)) == 0;
}

/* ---- reductions over a warp and a block, always in the same order; every thread gets the result */

struct Sum {
	template <typename T> static __device__ __forceinline__ T combine(T a, T b)
	{
		return a + b;
	}
};

struct Max {
	template <typename T> static __device__ __forceinline__ T combine(T a, T b)
	{
		return a > b ? a : b;
	}
};

struct Min {
	template <typename T> static __device__ __forceinline__ T combine(T a, T b)
	{
		return a < b ? a : b;
	}
};

template <typename Op, typename T> static __device__ __forceinline__ T warp_reduce(T x, int lanes = WARP)
{
#ifdef EMULATE
	if (emulate_here.reduces_at_once)
		return emulate_reduce<Op>(x, lanes);
#endif
	for (int step = lanes / 2; step; step /= 2)
		x = Op::combine(x, __shfl_xor_sync(ALL_LANES, x, step));
	return x;
}

/* blockDim.x must be a multiple of WARP. `room`: shared memory, WARP entries; reusable after the next __syncthreads. */
template <typename Op, typename T> static __device__ __forceinline__ T block_reduce(T x, T nothing, T *room)
{
	int warps = blockDim.x / WARP;
	x = warp_reduce<Op>(x);
	if (warps == 1)
		return x;
	__syncthreads();
	if (threadIdx.x % WARP == 0)
		room[threadIdx.x / WARP] = x;
	__syncthreads();
	x = (int)(threadIdx.x % WARP) < warps ? room[threadIdx.x % WARP] : nothing;
	return warp_reduce<Op>(x);
}

/* ---- for the host */

static inline int64_t ceil_div(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

/* Returns the number of threads, at most `most`, of a block that goes over rows of `width` elements if each thread takes `each` elements at
 * a time. */
static inline int row_threads(int64_t width, int each, int most)
{
	int64_t threads = ceil_div(ceil_div(width, each), WARP) * WARP;
	return (int)(threads < WARP ? WARP : threads > most ? most : threads);
}

/* Allows a kernel `bytes` of dynamic shared memory per block: more than 48 KiB must be asked for. */
static inline cudaError_t allow_shared(const void *kernel, size_t bytes)
{
	return bytes <= 48 * 1024 ? cudaSuccess : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

/* Calls f<T> with the floating-point type of a view. */
#define BY_TYPE(view_dtype, f, ...) ((view_dtype) == HSPMD_F32 ? f<float>(__VA_ARGS__) : f<bf16>(__VA_ARGS__))

#endif
