/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for CUDA's runtime, for tests on machines without a GPU: the CUDA device's sources compile against it and run on the CPU.
 * - Kernels: the threads of a block are fibers, which yield at barriers and at warp-wide operations. Between two of these a fiber runs
 *   without interruption. HSPMD_EMULATE_ORDER (0 ascending, 1 descending, else a seed) determines the order of the fibers, so that a
 *   missing barrier shows as a result that depends on the order; with 1 blocks run in descending order, too, so that what a block writes
 *   over the results of another shows.
 * - Streams: a stream's work is queued and done when someone waits for it, so that a missing wait shows too; a branch of a graph is done
 *   when the graph's own stream waits for it. With HSPMD_EMULATE_STREAMS=early all streams but the oldest, and branches, do their work as
 *   soon as what they wait for allows it, so that work that does not wait for what it reads shows. With HSPMD_EMULATE_EAGER=1 one thread
 *   per stream does the work at once, as work that waits for another process needs.
 * - Memory: blocks end at a page that cannot be accessed.
 * - Faults, by files that a test makes and the environment names: HSPMD_EMULATE_FAULT: the kernel that removes it fails, and with it the
 *   device for good; HSPMD_EMULATE_HANG: no event is reached while it exists; HSPMD_EMULATE_HOLD: nobody learns a measured time.
 * - Illegal use (a barrier that not all threads reach, an unaligned access of 16 bytes) ends the process with a message. */
#ifndef EMULATE_CUDA_RUNTIME_H
#define EMULATE_CUDA_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#define EMULATE 1

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
	cudaSuccess = 0,
	cudaErrorInvalidValue = 1,
	cudaErrorMemoryAllocation = 2,
	cudaErrorNoDevice = 100,
	cudaErrorNotReady = 600,
	cudaErrorIllegalAddress = 700
} cudaError_t;
typedef struct emulate_stream *cudaStream_t;
typedef struct emulate_event *cudaEvent_t;
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3, cudaMemcpyDefault = 4 };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16, cudaDevAttrComputeCapabilityMajor = 75, cudaDevAttrComputeCapabilityMinor = 76 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
typedef enum { CUDA_R_32F = 0, CUDA_R_16BF = 14, CUDA_R_8F_E4M3 = 28, CUDA_R_8F_E5M2 = 29 } cudaDataType_t;
typedef struct emulate_graph *cudaGraph_t;
typedef struct emulate_graph *cudaGraphExec_t;
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
enum {
	cudaStreamNonBlocking = 1,
	cudaEventDisableTiming = 2,
	cudaEventBlockingSync = 1,
	cudaEventWaitExternal = 1,
	cudaEventRecordExternal = 1
};

const char *cudaGetErrorString(cudaError_t status);
cudaError_t cudaGetLastError(void);
cudaError_t cudaGetDeviceCount(int *count); /* HSPMD_EMULATE_GPUS, or 8; each of HSPMD_EMULATE_MULTIPROCESSORS, or 3 */
cudaError_t cudaSetDevice(int index);
struct cudaDeviceProp {
	char name[256];
};
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *about, int index);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int index);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaMalloc(void **data, size_t bytes);
cudaError_t cudaMemGetInfo(size_t *left, size_t *all); /* of HSPMD_EMULATE_MEMORY bytes */
cudaError_t cudaFree(void *data);
cudaError_t cudaMallocHost(void **data, size_t bytes);
cudaError_t cudaFreeHost(void *data);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
/* Only cudaEventRecordExternal, and only while the stream is recorded: each launch of the graph records the event. */
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
/* Visible outside of the module, for libraries that stand in for others. */
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*work)(void *), void *argument) __attribute__((visibility("default")));
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end);
/* The stream's work is recorded instead of done; nobody may wait for the stream meanwhile. A stream that waits for an event that was
 * recorded so becomes a branch of the graph; the stream must wait for the branch's end before the recording ends. */
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value);

#ifdef __cplusplus
}

#include <functional>
#include <math.h>
#include <string.h>
#include <tuple>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
/* One block runs at a time in a process: what kernels read all the time need not be found by the thread. */
#define __shared__ static
#define DYNAMIC_SHARED(type, name) type *name = (type *)emulate_shared()
#define LAUNCH(kernel, grid, threads, shared, stream, ...) emulate_launch(#kernel, grid, threads, shared, stream, kernel, __VA_ARGS__)

struct dim3 {
	unsigned x, y, z;
	constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
	{
	}
};

struct float2 {
	float x, y;
};
struct alignas(16) float4 {
	float x, y, z, w;
};
static inline float __fmul_rn(float a, float b)
{
	return a * b;
}
static inline float __fadd_rn(float a, float b)
{
	return a + b;
}
static inline float __fsub_rn(float a, float b)
{
	return a - b;
}
static inline float2 make_float2(float x, float y)
{
	return { x, y };
}

struct emulate_place {
	dim3 thread, block, threads, blocks;
	bool reduces_at_once; /* emulate_reduce may be used: HSPMD_EMULATE_ORDER is 0 */
};
extern emulate_place emulate_here;
#define threadIdx emulate_here.thread
#define blockIdx emulate_here.block
#define blockDim emulate_here.threads
#define gridDim emulate_here.blocks

/* While one of these lives, the thread's locks and allocations are the emulator's own (counts.h). Not inline: the first access to a
 * thread-local variable may change vector registers (glibc before 2.40), in which a launch has its numbers. */
struct emulate_own {
	emulate_own();
	~emulate_own();
};

void emulate_enqueue(cudaStream_t stream, std::function<void()> work);
void emulate_run_kernel(const char *name, dim3 grid, dim3 threads, size_t shared, const std::function<void()> &thread);
void *emulate_shared();
void __syncthreads();
/* Passes `bytes` of `own` to the warp. Returns what lane 0 passed; lane i's bytes follow i * 64 bytes later. At most 64 bytes; all lanes
 * must take part. combine, if given: called once with all lanes' bytes, before any lane goes on; it may change them. */
char *emulate_exchange(const void *own, size_t bytes, void (*combine)(char *slots) = NULL);
/* Asynchronous copies of 16 bytes by the running thread (from NULL: zeros), in groups; the wait performs those of all groups but the last
 * `left`. */
void emulate_copy_later(void *to, const void *from);
void emulate_copies_commit();
void emulate_copies_wait(int left);
[[noreturn]] void emulate_end(const char *why);

template <typename... Formal, typename... Actual>
static inline void emulate_launch(const char *name, dim3 grid, dim3 threads, size_t shared, cudaStream_t stream, void (*kernel)(Formal...),
                                  Actual... actual)
{
	emulate_own own;
	std::tuple<Formal...> values(actual...);
	emulate_enqueue(stream, [=] { emulate_run_kernel(name, grid, threads, shared, [&] { std::apply(kernel, values); }); });
}

static inline void __syncwarp()
{
	emulate_exchange("", 0);
}

template <typename T> static inline T __shfl_xor_sync(unsigned, T x, int mask)
{
	T result;
	unsigned lane = (emulate_here.thread.x % 32) ^ (unsigned)mask;
	memcpy(&result, emulate_exchange(&x, sizeof x) + lane * 64, sizeof result);
	return result;
}

/* What warp_reduce of runtime/device/cuda/kernel.h returns, to the bit, by one exchange in place of one for each step: w[i] is of the lane
 * whose number differs from this one's in the bits of i. In other orders of threads (reduces_at_once) warp_reduce itself runs. */
template <typename Op, typename T> static inline T emulate_reduce(T x, int lanes)
{
	const char *all = emulate_exchange(&x, sizeof x);
	unsigned lane = emulate_here.thread.x % 32;
	T w[32];
	for (unsigned i = 0; i < (unsigned)lanes; i++)
		memcpy(&w[i], all + (lane ^ i) * 64, sizeof x);
	for (int step = lanes / 2; step; step /= 2)
		for (int i = 0; i < step; i++)
			w[i] = Op::combine(w[i], w[i + step]);
	return w[0];
}

static inline int atomicMax(int *at, int value)
{
	int was = *at;
	*at = was > value ? was : value;
	return was;
}
#endif

#endif
