/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for the driver's header, as far as the CUDA device uses it: tensor maps. Also stands in for the functions of
 * runtime/device/cuda/wgmma.h (wgmma.cc), so that what a GPU may do late is done as late as it may, and what it may do early as early:
 * - A copy destroys what it will overwrite when it is asked for, and its bytes arrive when someone waits for them. Asked for while products
 *   read what it overwrites, it ends the process.
 * - Products are computed when someone waits for them, from what then lies in their tiles, which their descriptors are decoded to find.
 *   Meanwhile their accumulators hold NaN. If these or their fragments were written to, the process ends.
 * - Products see what copies have brought, and what threads had written when one of them called shared_ready.
 * - Whoever arrives at a barrier lets the other threads run first.
 * Pairs of blocks (clusters of two) run together. Dynamic shared memory is each block's own; other shared variables are not. */
#ifndef EMULATE_CUDA_H
#define EMULATE_CUDA_H

#include <stdint.h>

#include "cuda_runtime.h"
#include "runtime/tensor/fp8.h"

#define CUDA_VERSION 12000

#ifdef __cplusplus
extern "C" {
#endif

typedef int CUresult;
typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };

typedef struct CUtensorMap_st {
	/* A real one is opaque and has these, too, in 128 bytes. */
	uint64_t dim[5], stride[5]; /* stride[0]: bytes of an element */
	uint32_t box[5], rank;
	void *data;
} __attribute__((aligned(64))) CUtensorMap;

typedef enum { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9 } CUtensorMapDataType;
typedef enum { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 } CUtensorMapInterleave;
typedef enum { CU_TENSOR_MAP_SWIZZLE_128B = 3 } CUtensorMapSwizzle;
typedef enum { CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2 } CUtensorMapL2promotion;
typedef enum { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 } CUtensorMapFloatOOBfill;

/* Takes what the device uses and refuses what the driver refuses. */
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data, const cuuint64_t *dim,
                                const cuuint64_t *stride, const cuuint32_t *box, const cuuint32_t *element_stride,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill);

#ifdef __cplusplus
}

/* ---- the functions of runtime/device/cuda/wgmma.h */

uint32_t emulate_shared_address(const void *p);
static inline uint32_t shared_address(const void *p)
{
	return emulate_shared_address(p);
}

void barrier_init(uint64_t *b, int arrivals);
void barriers_ready();
void barrier_arrive(uint64_t *b);
void barrier_arrive_expecting(uint64_t *b, int bytes);
void barrier_wait(uint64_t *b, int parity);
void barrier_arrive_in_both(uint64_t *b);
void pair_wait();
void copy_box_to_both_async(void *to, const CUtensorMap *map, int x0, int x1, int x2, int x3, uint64_t *b);
void copy_box_async(void *to, const CUtensorMap *map, int x0, int x1, int x2, int x3, uint64_t *b);

void turn_wait(int group);
void turn_pass(int group);

void shared_ready();
void products_begin();
void products_commit();
void emulate_products_wait(unsigned left);
template <int left> static inline void products_wait()
{
	emulate_products_wait(left);
}

template <typename T> static inline void pin(T &)
{
}

enum emulate_numbers { EMULATE_BF16, EMULATE_E4M3, EMULATE_E5M2 };

/* A fragment or, if that is NULL, a descriptor of A. numbers: those of A; B's are E4M3 if A's are of FP8. */
void emulate_product(float *c, int columns, const uint32_t *fragment, uint64_t a, bool a_rows, uint64_t b, bool b_rows, bool add,
                     emulate_numbers numbers = EMULATE_BF16);

template <int n, bool a_rows, bool b_rows> static inline void multiply_slabs(float (&c)[n / 8][4], uint64_t a, uint64_t b, bool add)
{
	emulate_product(c[0], n, NULL, a, a_rows, b, b_rows, add);
}

template <int n, bool b_rows> static inline void multiply_fragment(float (&c)[n / 8][4], const uint32_t (&a)[4], uint64_t b, bool add)
{
	emulate_product(c[0], n, a, 0, false, b, b_rows, add);
}

template <int n, bool a_e5m2> static inline void multiply_fp8_slabs(float (&c)[n / 8][4], uint64_t a, uint64_t b, bool add)
{
	emulate_product(c[0], n, NULL, a, false, b, false, add, a_e5m2 ? EMULATE_E5M2 : EMULATE_E4M3);
}

static inline uint32_t e4m3_pair(float first, float second)
{
	return (uint32_t)hspmd_e4m3_bits(first) | (uint32_t)hspmd_e4m3_bits(second) << 8;
}

template <int count> static inline void registers_raise()
{
	static_assert(count % 8 == 0 && count >= 24 && count <= 256, "what setmaxnreg takes");
}

template <int count> static inline void registers_lower()
{
	static_assert(count % 8 == 0 && count >= 24 && count <= 256, "what setmaxnreg takes");
}

static inline float exp2_fast(float x)
{
	return exp2f(x);
}

/* ---- fibers.cc, for wgmma.cc */

/* Lets the other threads of the block run until `ready`. */
void emulate_wait_until(const std::function<bool()> &ready);
/* The number of the running thread; of the blocks that this thread of the process has begun; the block's dynamic shared memory. */
unsigned emulate_thread();
uint64_t emulate_block_number();
char *emulate_shared_bytes(size_t *bytes);
/* Called at the end of every thread, and every block. */
void emulate_thread_ends();
/* Of the pair's two blocks, the one that what follows is about, until another thread runs: shared memory, for example. Returns which it
 * was. */
size_t emulate_look_at(size_t rank);
size_t emulate_rank();
/* Returns true if a thread of that block has ended. */
bool emulate_has_ended();

void emulate_run_pairs(const char *name, dim3 grid, dim3 threads, size_t shared, const std::function<void()> &thread);
template <typename... Formal, typename... Actual>
static inline void emulate_launch_pairs(const char *name, dim3 grid, dim3 threads, size_t shared, cudaStream_t stream,
                                        void (*kernel)(Formal...), Actual... actual)
{
	emulate_own own;
	std::tuple<Formal...> values(actual...);
	emulate_enqueue(stream, [=] { emulate_run_pairs(name, grid, threads, shared, [&] { std::apply(kernel, values); }); });
}
#define LAUNCH_PAIRS(kernel, grid, threads, shared, stream, ...)                                                                           \
	emulate_launch_pairs(#kernel, grid, threads, shared, stream, kernel, __VA_ARGS__)
#define __cluster_dims__(...)
#endif

#endif
