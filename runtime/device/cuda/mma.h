/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor cores and the loads that feed them, as inline functions (PTX ISA, "Matrix multiply-accumulate operation using mma instruction",
 * "ldmatrix", "cp.async"). The stand-in for cuda_bf16.h has its own versions. With g = lane / 4 and t = lane % 4, a lane holds
 * - of A (16 x 16) in a[0..3] the pairs at (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8);
 * - of B (16 x 8) in b[0..1] the pairs at (2t, g), (2t + 8, g), along a column;
 * - of C (16 x 8) in c[0..3] the elements (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1). */
#ifndef HSPMD_CUDA_MMA_H
#define HSPMD_CUDA_MMA_H

#include "runtime/device/cuda/kernel.h"

#ifndef EMULATE
/* C += A B */
static __device__ __forceinline__ void multiply_add(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
	             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Loads four 8 x 8 matrices from shared memory: lane 8 i + r passes the address of row r of matrix i (16 bytes); each lane receives the
 * pair at (g, 2t) of each matrix. */
static __device__ __forceinline__ void load_matrices(uint32_t *to, const bf16 *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
	             : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
	             : "r"((uint32_t)__cvta_generic_to_shared(row))
	             : "memory");
}

/* The same for the transposed matrices: the pair at (2t, g), along a column. */
static __device__ __forceinline__ void load_matrices_trans(uint32_t *to, const bf16 *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
	             : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
	             : "r"((uint32_t)__cvta_generic_to_shared(row))
	             : "memory");
}

/* Copies 16 bytes to shared memory, or writes zeros unless `valid`. The copy is complete once copies_wait<n> returns, if at least n commits
 * follow the commit of its own group. */
static __device__ __forceinline__ void copy_async(bf16 *to, const bf16 *from, bool valid)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n"
	             :
	             : "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(valid ? 16 : 0)
	             : "memory");
}

static __device__ __forceinline__ void copies_commit()
{
	asm volatile("cp.async.commit_group;\n" : : : "memory");
}

/* Waits until at most `left` of the groups that this thread committed are in progress. */
template <int left> static __device__ __forceinline__ void copies_wait()
{
	asm volatile("cp.async.wait_group %0;\n" : : "n"(left) : "memory");
}

static __device__ __forceinline__ uint32_t pack_pair(float low, float high)
{
	__nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
	return *(uint32_t *)&pair;
}
#endif

/* Row and column of c[i] in a lane's part of C. */
static __device__ __forceinline__ int fragment_row(int i)
{
	return (int)(threadIdx.x % WARP) / 4 + i / 2 * 8;
}

static __device__ __forceinline__ int fragment_column(int i)
{
	return (int)(threadIdx.x % 4) * 2 + i % 2;
}

#endif
