/* SPDX-License-Identifier: Apache-2.0 */
/* What tensor cores of compute capability 9.0 have in addition to mma.h, as inline functions: products of a warp-group (128 threads) that
 * run beside its other instructions, and copies of tiles by the tensor memory accelerator, which arrive at barriers in shared memory (PTX
 * ISA, "Asynchronous warpgroup level matrix instructions", "mbarrier", "cp.async.bulk.tensor"). They compile for sm_90a alone; the
 * stand-in for cuda.h has its own versions, which find what a GPU would compute wrongly.
 *
 * A tile in shared memory is a slab of 64 BF16 columns, 128 bytes a row, rows one after the other, that begins on a multiple of 1024 bytes;
 * wider matrices have one slab after the other. Of FP8 numbers a slab has 128 columns. The copies swizzle it
 * (CU_TENSOR_MAP_SWIZZLE_128B: bits 4-6 of the address are XORed with bits 7-9), so that eight rows are in different banks. An accumulator
 * is laid out like C of mma.h: c[n] are columns 8 n to 8 n + 7, and warp w of the group has rows 16 w to 16 w + 15. */
#ifndef HSPMD_CUDA_WGMMA_H
#define HSPMD_CUDA_WGMMA_H

#include <cuda.h>

#include "runtime/device/cuda/mma.h"

#define GROUP_THREADS 128
#define SLAB_COLUMNS 64
#define SLAB_ROW_BYTES 128
#define SWIZZLE_BYTES 1024 /* what the pattern repeats after: 8 rows */

#ifndef EMULATE
static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers in shared memory: a phase is complete after so many arrivals and all bytes that were announced */

static __device__ __forceinline__ void barrier_init(uint64_t *b, int arrivals)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(shared_address(b)), "r"(arrivals) : "memory");
}

/* Makes initialised barriers known to the copies; the other threads learn of them by __syncthreads. */
static __device__ __forceinline__ void barriers_ready()
{
	asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint64_t *b)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(shared_address(b)) : "memory");
}

/* Arrives, and announces bytes that copies will bring in the same phase. */
static __device__ __forceinline__ void barrier_arrive_expecting(uint64_t *b, int bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(shared_address(b)), "r"(bytes) : "memory");
}

/* Waits for the end of the phase with this parity: the first phase has parity 0, and "the one before it" 1. */
static __device__ __forceinline__ void barrier_wait(uint64_t *b, int parity)
{
	uint32_t done;
	do {
		asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
		             : "=r"(done)
		             : "r"(shared_address(b)), "r"(parity)
		             : "memory");
	} while (!done);
}

/* One thread copies a box of a tensor from its element (x0, x1, x2, x3) on, x0 along a row; zeros outside of the tensor. Its bytes count at
 * the barrier when they are there. */
static __device__ __forceinline__ void copy_box_async(void *to, const CUtensorMap *map, int x0, int x1, int x2, int x3, uint64_t *b)
{
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
	             :
	             : "r"(shared_address(to)), "l"(map), "r"(shared_address(b)), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
	             : "memory");
}

/* ---- pairs of blocks on neighbouring multiprocessors (clusters of two), of which each can copy into the other's shared memory */

#define LAUNCH_PAIRS LAUNCH /* of kernels with __cluster_dims__(2, 1, 1); the first dimension of the grid is even */

/* Waits until all threads of both blocks have come here. Before, neither block may touch the other's barriers, and after it neither may end
 * while the other still does. */
static __device__ __forceinline__ void pair_wait()
{
	asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" : : : "memory");
}

/* Arrives at the barrier at this place in each of the two blocks. */
static __device__ __forceinline__ void barrier_arrive_in_both(uint64_t *b)
{
#pragma unroll
	for (int rank = 0; rank < 2; rank++)
		asm volatile("{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %0, %1;\n\t"
		             "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n\t}"
		             :
		             : "r"(shared_address(b)), "r"(rank)
		             : "memory");
}

/* Copies a box to this place in both blocks; its bytes count at the barrier at this place in each. */
static __device__ __forceinline__ void copy_box_to_both_async(void *to, const CUtensorMap *map, int x0, int x1, int x2, int x3, uint64_t *b)
{
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
	             "[%1, {%3, %4, %5, %6}], [%2], %7;"
	             :
	             : "r"(shared_address(to)), "l"(map), "r"(shared_address(b)), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "h"((short)3)
	             : "memory");
}

/* What this thread has written to shared memory counts for copies and products that begin later, after a barrier also those of other
 * threads. */
static __device__ __forceinline__ void shared_ready()
{
	asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

/* ---- products of a warp-group: all its threads call these together */

/* Before the first of some products: what the threads wrote into accumulators and fragments counts. */
static __device__ __forceinline__ void products_begin()
{
	asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}

static __device__ __forceinline__ void products_commit()
{
	asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}

/* Waits until at most `left` of the committed groups are in progress. Until then nobody may touch their accumulators and fragments, nor
 * write to the tiles that they read. */
template <int left> static __device__ __forceinline__ void products_wait()
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(left) : "memory");
}

/* The compiler must not move what is done with an accumulator or a fragment across this place: to follow a wait, or precede
 * products_begin. */
template <int n> static __device__ __forceinline__ void pin(float (&c)[n][4])
{
#pragma unroll
	for (int i = 0; i < n; i++)
		asm volatile("" : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3]) : : "memory");
}

template <int n> static __device__ __forceinline__ void pin(uint32_t (&a)[n][4])
{
#pragma unroll
	for (int i = 0; i < n; i++)
		asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3]) : : "memory");
}

#define FOUR(c, i) "+f"((c)[i][0]), "+f"((c)[i][1]), "+f"((c)[i][2]), "+f"((c)[i][3])
#define EIGHT_FOURS(c, i)                                                                                                                  \
	FOUR(c, i), FOUR(c, (i) + 1), FOUR(c, (i) + 2), FOUR(c, (i) + 3), FOUR(c, (i) + 4), FOUR(c, (i) + 5), FOUR(c, (i) + 6),            \
	        FOUR(c, (i) + 7)
/* clang-format off */
#define REGISTERS_32 \
	"{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
	"%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define REGISTERS_64 \
	"{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
	"%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
	"%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
	"%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
/* clang-format on */
#define PRODUCT(shape) "wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 "

/* c (64 x n) += A B, or = A B unless `add`: A of 64 rows and 16 columns, B of 16 rows and n columns, each a part of slabs. a_rows, b_rows:
 * each row of a slab is one of the 16 (else one of A's rows, or B's columns). */
template <int n, bool a_rows, bool b_rows>
static __device__ __forceinline__ void multiply_slabs(float (&c)[n / 8][4], uint64_t a, uint64_t b, bool add)
{
	static_assert(n == 64 || n == 128, "the widths that are needed");
	if constexpr (n == 64)
		asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t" PRODUCT("m64n64k16") REGISTERS_32
		             ", %32, %33, p, 1, 1, %35, %36;\n\t}"
		             : EIGHT_FOURS(c, 0)
		             : "l"(a), "l"(b), "r"((int)add), "n"((int)a_rows), "n"((int)b_rows));
	else
		asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t" PRODUCT("m64n128k16") REGISTERS_64
		             ", %64, %65, p, 1, 1, %67, %68;\n\t}"
		             : EIGHT_FOURS(c, 0), EIGHT_FOURS(c, 8)
		             : "l"(a), "l"(b), "r"((int)add), "n"((int)a_rows), "n"((int)b_rows));
}

/* The same with A from registers: a fragment as in mma.h of each warp's 16 rows. */
template <int n, bool b_rows>
static __device__ __forceinline__ void multiply_fragment(float (&c)[n / 8][4], const uint32_t (&a)[4], uint64_t b, bool add)
{
	static_assert(n == 64 || n == 128, "the widths that are needed");
	if constexpr (n == 64)
		asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\t" PRODUCT("m64n64k16") REGISTERS_32
		             ", {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n\t}"
		             : EIGHT_FOURS(c, 0)
		             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"((int)b_rows));
	else
		asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %69, 0;\n\t" PRODUCT("m64n128k16") REGISTERS_64
		             ", {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n\t}"
		             : EIGHT_FOURS(c, 0), EIGHT_FOURS(c, 8)
		             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"((int)b_rows));
}

/* c (64 x n) += A B, or = A B unless `add`, of FP8 numbers: A of 64 rows and 32 columns in E4M3, or in E5M2 if a_e5m2, and B of 32 rows and
 * n columns in E4M3. Each row of a slab is one of A's rows, or of B's columns: FP8 has no other layout. */
template <int n, bool a_e5m2>
static __device__ __forceinline__ void multiply_fp8_slabs(float (&c)[n / 8][4], uint64_t a, uint64_t b, bool add)
{
	static_assert(n == 128, "the width that is needed");
	if constexpr (a_e5m2)
		asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
		             "wgmma.mma_async.sync.aligned.m64n128k32.f32.e5m2.e4m3 " REGISTERS_64 ", %64, %65, p, 1, 1;\n\t}"
		             : EIGHT_FOURS(c, 0), EIGHT_FOURS(c, 8)
		             : "l"(a), "l"(b), "r"((int)add));
	else
		asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t"
		             "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 " REGISTERS_64 ", %64, %65, p, 1, 1;\n\t}"
		             : EIGHT_FOURS(c, 0), EIGHT_FOURS(c, 8)
		             : "l"(a), "l"(b), "r"((int)add));
}
#undef FOUR
#undef EIGHT_FOURS
#undef REGISTERS_32
#undef REGISTERS_64
#undef PRODUCT

/* ---- turns of a block's two computing groups at asking for products ("FlashAttention-3", section 3.1): one group's products then run
 * while the other does something else. Each group waits for its turn and passes it on equally often, one after the other; group 1 passes it
 * once before, and not after its last. */

static __device__ __forceinline__ void turn_wait(int group)
{
	asm volatile("bar.sync %0, %1;" : : "r"(1 + group), "n"(2 * GROUP_THREADS) : "memory");
}

static __device__ __forceinline__ void turn_pass(int group)
{
	asm volatile("bar.arrive %0, %1;" : : "r"(2 - group), "n"(2 * GROUP_THREADS) : "memory");
}

/* ---- registers: warp-groups that only copy give theirs to those that compute */

template <int count> static __device__ __forceinline__ void registers_raise()
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(count));
}

template <int count> static __device__ __forceinline__ void registers_lower()
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(count));
}

/* Two E4M3 codes, of the first in the lower byte. */
static __device__ __forceinline__ uint32_t e4m3_pair(float first, float second)
{
	uint16_t codes;
	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
	return codes;
}

/* 2^x, to 2 units of the last place, 0 for results that are no normal numbers. */
static __device__ __forceinline__ float exp2_fast(float x)
{
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}
#endif

/* Describes operands in swizzled slabs (PTX ISA, "Shared memory matrix layout", "Matrix descriptor"; strides in bytes, from `start` on,
 * which lies a multiple of 1024 bytes, or of 32 bytes along a row, after the first row of eight of a slab):
 * - rows of the slab are A's rows, or B's columns: `stride` leads from eight of them to the next eight; `leading` is not used;
 * - rows of the slab are the 16 that are summed over: `stride` leads from eight of them to the next eight, `leading` to the next slab. */
static __device__ __forceinline__ uint64_t slab_descriptor(const void *start, int leading)
{
	return (uint64_t)1 << 62 | (uint64_t)(SWIZZLE_BYTES >> 4) << 32 | (uint64_t)(leading >> 4) << 16 |
	       (shared_address(start) & 0x3ffff) >> 4;
}

/* The descriptor of what lies so many bytes after. */
static __device__ __forceinline__ uint64_t descriptor_after(uint64_t descriptor, int bytes)
{
	return descriptor + (uint64_t)(bytes >> 4);
}

/* ---- blocks of three warp-groups, of which one copies and two compute */

#define GROUPS 2      /* that compute */
#define GROUP_ROWS 64 /* rows of such a group */
#define COMPUTING_WARPS (GROUPS * GROUP_THREADS / WARP)
/* 240 registers for each thread that computes and 24 for those that copy are the 64 K that there are. */
#define COMPUTING_REGISTERS 240
#define COPYING_REGISTERS 24

/* Dynamic shared memory, from the first multiple of SWIZZLE_BYTES on. */
static __device__ __forceinline__ char *align_tiles(char *shared)
{
	return shared + (SWIZZLE_BYTES - (shared_address(shared) & (SWIZZLE_BYTES - 1))) % SWIZZLE_BYTES;
}

/* A stage of a ring and the parity of its present use. */
template <int stages> struct ring {
	int stage, parity;
	__device__ __forceinline__ void advance()
	{
		if (++stage == stages) {
			stage = 0;
			parity ^= 1;
		}
	}
};

/* All threads of the warp are done with a stage. in_both: of which the other block of the pair writes a part. */
static __device__ __forceinline__ void release_stage(uint64_t *b, bool in_both = false)
{
	if (threadIdx.x % WARP != 0)
		return;
	if (in_both)
		barrier_arrive_in_both(b);
	else
		barrier_arrive(b);
}

/* Four lanes have pairs of four times eight columns; afterwards each has one of the eights, in order. */
static __device__ __forceinline__ void transpose_pairs(uint32_t (&v)[4])
{
#pragma unroll
	for (int step = 1; step <= 2; step *= 2) {
		bool upper = threadIdx.x & step;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			if (i & step)
				continue;
			uint32_t given = __shfl_xor_sync(ALL_LANES, upper ? v[i] : v[i + step], step);
			v[i] = upper ? given : v[i];
			v[i + step] = upper ? v[i + step] : given;
		}
	}
}

/* Where a thread stores the eights of columns 8 n to 8 n + 31 of its accumulator after transpose_pairs. */
static __device__ __forceinline__ int eight_column(int n)
{
	return (n + (int)(threadIdx.x % 4)) * 8;
}

#endif
