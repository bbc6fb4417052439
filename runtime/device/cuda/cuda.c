/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/device_speed.h"
#include "runtime/device/cuda/nccl/nccl.h"
#include "runtime/device/cuda/cuda_graph.h"
#include "runtime/device/cuda/attention_desc.h"
#include "runtime/device/cuda/gemm.h"
#include "runtime/device/cuda/profile.h"
#include "runtime/device/cuda/sm_partition.h"
#include "runtime/device/cuda/tensor_map.h"

static const struct hspmd_cuda_kernel *const kernels[HSPMD_OP_COUNT] = {
#define OP(opcode, name) [HSPMD_OP_##opcode] = &hspmd_cuda_##name,
#include "runtime/tensor/opcode_list.h"
};

static const struct hspmd_device_ops cuda_ops;

#define ATTENTION_CACHED (32 << 20) /* of the L2 cache's 50 MB on H100 and H200; environment HSPMD_CUDA_ATTENTION_CACHED: bytes */

/* A part of a GPU has one stream, on which nothing is beside anything. */
static cudaError_t open_beside(struct hspmd_cuda *cuda)
{
	cudaError_t status = cudaSuccess;
	if (cuda->fork)
		return status;
	if (!cuda->green_context)
		status = cudaStreamCreateWithFlags(&cuda->beside, cudaStreamNonBlocking);
	for (int g = 0; !status && g < HSPMD_DEVICE_GROUPS; g++)
		status = cudaEventCreateWithFlags(&cuda->done[g], cudaEventDisableTiming);
	return status ? status : cudaEventCreateWithFlags(&cuda->fork, cudaEventDisableTiming);
}

static void close_beside(struct hspmd_cuda *cuda)
{
	if (cuda->fork)
		cudaEventDestroy(cuda->fork);
	for (int g = 0; g < HSPMD_DEVICE_GROUPS; g++)
		if (cuda->done[g])
			cudaEventDestroy(cuda->done[g]);
	if (cuda->beside)
		cudaStreamDestroy(cuda->beside);
}

static void cuda_close(struct hspmd_device *dev)
{
	struct hspmd_cuda *cuda = (struct hspmd_cuda *)dev;
	if (!cuda)
		return;
	if (cuda->stream && cuda->mark)
		hspmd_cuda_stream_wait(cuda, NULL);
	hspmd_cuda_profile_close(cuda->profile);
	hspmd_cuda_dnn_destroy(cuda);
	hspmd_cuda_blas_destroy(cuda);
	hspmd_cuda_staging_destroy(cuda);
	close_beside(cuda);
	hspmd_cuda_apart_destroy(cuda);
	hspmd_cuda_copies_destroy(cuda);
	if (cuda->mark)
		cudaEventDestroy(cuda->mark);
	if (cuda->stream)
		cudaStreamDestroy(cuda->stream);
	hspmd_cuda_sm_partition_close(cuda);
	cudaFree(cuda->lists);
	free(cuda->communicators);
	free(cuda);
}

static int find_gpu(struct hspmd_cuda *cuda, int index, struct hspmd_error *err)
{
	int count = 0, major = 0, minor = 0;
	cudaError_t status = cudaGetDeviceCount(&count);
	if (status)
		return hspmd_cuda_failed(status, "no GPU can be used", err);
	/* =1: devices beyond the last GPU share the existing GPUs, for tests on a machine with few. */
	const char *oversubscribe = hspmd_cuda_getenv("HSPMD_CUDA_OVERSUBSCRIBE", "HSPMD_CUDA_SHARE");
	if (oversubscribe && !strcmp(oversubscribe, "1") && count > 0 && index >= 0)
		index %= count;
	if (index < 0 || index >= count)
		return hspmd_fail(err, "GPU %d of %d that can be seen (CUDA_VISIBLE_DEVICES=%s)", index, count,
		                  getenv("CUDA_VISIBLE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES") : "");
	cuda->index = index;
	if ((status = cudaSetDevice(index)) ||
	    (status = cudaDeviceGetAttribute(&cuda->multiprocessors, cudaDevAttrMultiProcessorCount, index)) ||
	    (status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index)) ||
	    (status = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index)))
		return hspmd_cuda_failed(status, "opening a GPU", err);
	if (major < 8)
		return hspmd_fail(err, "GPU %d has compute capability %d.%d; 8.0 is the least that is supported", index, major, minor);
	struct cudaDeviceProp *about = calloc(1, sizeof *about);
	bool named = about && !cudaGetDeviceProperties(about, index);
	const char *wgmma = getenv("HSPMD_CUDA_WGMMA");
	cuda->wgmma = hspmd_capability_has_wgmma(10 * major + minor) && hspmd_cuda_has_tensor_maps() && !(wgmma && !strcmp(wgmma, "0"));
	const char *cached = getenv("HSPMD_CUDA_ATTENTION_CACHED");
	cuda->attention_cached = cached ? strtoll(cached, NULL, 10) : ATTENTION_CACHED;
	snprintf(cuda->model, sizeof cuda->model, "sm%d%d-%d-%.64s", major, minor, cuda->multiprocessors, named ? about->name : "");
	free(about);
	return 0;
}

static int cuda_open(struct hspmd_device **dev, int index, int threads, struct hspmd_error *err)
{
	(void)threads;
	struct hspmd_cuda *cuda = calloc(1, sizeof *cuda);
	if (!cuda)
		return hspmd_fail_memory(err, "opening a CUDA device");
	cuda->base.ops = &cuda_ops;
	cuda->last_beside = cuda->last_copy = -1;
	int rv = find_gpu(cuda, index, err);
	if (!rv)
		rv = hspmd_cuda_sm_partition_open(cuda, index, err);
	cudaError_t status = rv || cuda->stream ? cudaSuccess : cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking);
	if (!rv && !status)
		status = cudaEventCreateWithFlags(&cuda->mark, cudaEventDisableTiming);
	if (status)
		rv = hspmd_cuda_failed(status, "opening a GPU", err);
	cuda->check = hspmd_nccl_check;
	if (!rv && !(cuda->communicators = calloc(1, sizeof *cuda->communicators)))
		rv = hspmd_fail_memory(err, "opening a CUDA device");
	if (rv || hspmd_cuda_staging_create(cuda, err) || hspmd_cuda_blas_create(cuda, err) || hspmd_cuda_dnn_create(cuda, err)) {
		cuda_close(&cuda->base);
		return -1;
	}
	cuda->profile = hspmd_cuda_profile_open();
	const char *check = getenv("HSPMD_CUDA_CHECK");
	cuda->check_each = check && !strcmp(check, "1");
	*dev = &cuda->base;
	return 0;
}

/* The current GPU is a property of the thread, and a device may be passed from one thread to another. */
static struct hspmd_cuda *enter(struct hspmd_device *dev)
{
	struct hspmd_cuda *cuda = (struct hspmd_cuda *)dev;
	cudaSetDevice(cuda->index);
	return cuda;
}

static void *cuda_allocate(struct hspmd_device *dev, size_t bytes, struct hspmd_error *err)
{
	void *data = NULL;
	enter(dev);
	cudaError_t status = cudaMalloc(&data, bytes ? bytes : 64);
	if (!status)
		return data;
	cudaGetLastError();
	hspmd_fail(err, "%zu bytes on the GPU: %s", bytes, cudaGetErrorString(status));
	return NULL;
}

static size_t cuda_free_memory(struct hspmd_device *dev)
{
	size_t left = 0, all;
	enter(dev);
	if (cudaMemGetInfo(&left, &all)) {
		cudaGetLastError();
		return SIZE_MAX;
	}
	return left;
}

static void cuda_release(struct hspmd_device *dev, void *data)
{
	struct hspmd_cuda *cuda = enter(dev);
	if (!data)
		return;
	hspmd_cuda_stream_wait(cuda, NULL); /* all users have finished then */
	cudaFree(data);
}

/* Page-locked memory has the same address on the GPU (CUDA programming guide, unified virtual address space). */
static void *cuda_allocate_host(struct hspmd_device *dev, size_t bytes, struct hspmd_error *err)
{
	void *data = NULL;
	enter(dev);
	cudaError_t status = cudaMallocHost(&data, bytes ? bytes : 64);
	if (!status)
		return data;
	cudaGetLastError();
	hspmd_fail(err, "%zu bytes of page-locked host memory: %s", bytes, cudaGetErrorString(status));
	return NULL;
}

static void cuda_release_host(struct hspmd_device *dev, void *data)
{
	enter(dev);
	if (data)
		cudaFreeHost(data);
}

static int cuda_to_device(struct hspmd_device *dev, void *dst, const void *host, size_t bytes, struct hspmd_error *err)
{
	return hspmd_cuda_upload(enter(dev), dst, host, bytes, err);
}

static int cuda_to_host(struct hspmd_device *dev, void *host, const void *src, size_t bytes, struct hspmd_error *err)
{
	return hspmd_cuda_download(enter(dev), host, src, bytes, err);
}

static int cuda_to_host_batch(struct hspmd_device *dev, void *host, const void *const *src, int count, size_t bytes,
                              struct hspmd_error *err)
{
	return hspmd_cuda_download_batch(enter(dev), host, src, count, bytes, err);
}

static int cuda_to_host_concurrent(struct hspmd_device *dev, void *host, const void *src, size_t bytes, struct hspmd_error *err)
{
	return hspmd_cuda_download_concurrent(enter(dev), host, src, bytes, err);
}

static int cuda_zero(struct hspmd_device *dev, void *dst, size_t bytes, struct hspmd_error *err)
{
	struct hspmd_cuda *cuda = enter(dev);
	cudaError_t status = cudaMemsetAsync(dst, 0, bytes, cuda->stream);
	return status ? hspmd_cuda_failed(status, "clearing memory of the GPU", err) : 0;
}

static int cuda_copy_direct(struct hspmd_device *dev, void *dst, const void *src, size_t bytes, struct hspmd_error *err)
{
	return hspmd_cuda_copy_direct(enter(dev), dst, src, bytes, err);
}

static int cuda_copy_beside(struct hspmd_device *dev, void *dst, const void *src, size_t bytes, int number, struct hspmd_error *err)
{
	return hspmd_cuda_copy_beside(enter(dev), dst, src, bytes, number, err);
}

static int cuda_wait_copy(struct hspmd_device *dev, int number, struct hspmd_error *err)
{
	return hspmd_cuda_wait_copy(enter(dev), number, err);
}

static int cuda_copy_box(struct hspmd_device *dev, void *dst, const struct hspmd_box *dst_box, const void *src,
                         const struct hspmd_box *src_box, const struct hspmd_box *part, enum hspmd_dtype dtype, bool add,
                         struct hspmd_error *err)
{
	struct hspmd_cuda *cuda = enter(dev);
	if (hspmd_cuda_copy_box(cuda, dst, dst_box, src, src_box, part, dtype, add, err))
		return -1;
	cudaError_t status = cudaGetLastError();
	return status ? hspmd_cuda_failed(status, "copying a box", err) : 0;
}

/* Makes the device's list memory at least this large. */
static int need_lists(struct hspmd_cuda *cuda, size_t bytes, struct hspmd_error *err)
{
	if (bytes <= cuda->list_bytes)
		return 0;
	void *grown;
	cudaError_t status = cudaMalloc(&grown, bytes);
	if (status)
		return hspmd_cuda_failed(status, "making room for lists of rows on the GPU", err);
	if (cuda->lists && hspmd_cuda_stream_wait(cuda, err)) {
		cudaFree(grown);
		return -1;
	}
	cudaFree(cuda->lists);
	cuda->lists = grown;
	cuda->list_bytes = bytes;
	return 0;
}

static int cuda_sum_rows(struct hspmd_device *dev, void *const *to, const int64_t *first, const void *const *from, int64_t count,
                         int64_t elements, enum hspmd_dtype dtype, struct hspmd_error *err)
{
	struct hspmd_cuda *cuda = enter(dev);
	size_t rows = (size_t)count, addends = (size_t)first[count];
	size_t sizes[] = { rows * sizeof *to, addends * sizeof *from, (rows + 1) * sizeof *first };
	const void *lists[] = { to, from, first };
	if (!count || need_lists(cuda, sizes[0] + sizes[1] + sizes[2], err))
		return count ? -1 : 0;
	char *at = cuda->lists;
	for (int i = 0; i < 3; at += sizes[i++])
		if (sizes[i] && hspmd_cuda_upload(cuda, at, lists[i], sizes[i], err))
			return -1;
	hspmd_cuda_sum_rows(cuda, cuda->lists, count, (int64_t)addends, elements, dtype);
	cudaError_t status = cudaGetLastError();
	return status ? hspmd_cuda_failed(status, "summing rows", err) : 0;
}

static size_t cuda_workspace(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args)
{
	const struct hspmd_cuda_kernel *kernel = kernels[op];
	return kernel && kernel->workspace ? kernel->workspace(enter(dev), args) : 0;
}

/* The device computes in F32 and BF16. All floating-point operands of a call share one of these types, except statistics, sums and
 * gradients of parameters. */
static int check_types(const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	for (int i = 0; i < args->input_count; i++)
		if (args->in[i].rank >= 0 && args->in[i].data && args->in[i].dtype == HSPMD_F64)
			return hspmd_fail(err, "the CUDA device computes in F32 and BF16, not in F64");
	return 0;
}

/* Puts the operator and the shapes of its operands in front of the error; returns -1. */
static int name_call(enum hspmd_opcode op, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	char call[HSPMD_CUDA_CALL_TEXT];
	hspmd_cuda_describe_call(op, args, call);
	return hspmd_error_prefix(err, "%s", call);
}

static int cuda_prepare(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args, struct hspmd_prepared **made,
                        struct hspmd_error *err)
{
	struct hspmd_cuda *cuda = enter(dev);
	const struct hspmd_cuda_kernel *kernel = kernels[op];
	if (!kernel)
		return hspmd_fail(err, "the CUDA device has no kernel for operator %d", (int)op);
	struct hspmd_prepared *p = calloc(1, sizeof *p);
	if (!p)
		return hspmd_fail_memory(err, "preparing operators");
	p->op = op;
	p->workspace = kernel->workspace ? kernel->workspace(cuda, args) : 0;
	if (kernel->prepare && kernel->prepare(cuda, args, p, err)) {
		free(p);
		return name_call(op, args, err);
	}
	*made = p;
	return 0;
}

static void cuda_prepared_free(struct hspmd_device *dev, struct hspmd_prepared *prepared)
{
	(void)dev;
	free(prepared);
}

/* Checks what a wrong program could ask for. */
static int check_call(struct hspmd_cuda *cuda, enum hspmd_opcode op, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	const struct hspmd_prepared *p = args->prepared;
	if (p && p->op != op)
		return hspmd_fail(err, "a call of operator %d was prepared for operator %d", (int)op, (int)p->op);
	size_t need = p ? p->workspace : kernels[op]->workspace ? kernels[op]->workspace(cuda, args) : 0;
	if (need > args->workspace_bytes)
		return hspmd_fail(err, "an operator was given %zu bytes of workspace and needs %zu", args->workspace_bytes, need);
	return check_types(args, err);
}

static int cuda_run_batch(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args, int count,
                          struct hspmd_error *err)
{
	struct hspmd_cuda *cuda = enter(dev);
	const struct hspmd_cuda_kernel *kernel = kernels[op];
	if (!kernel)
		return hspmd_fail(err, "the CUDA device has no kernel for operator %d", (int)op);
	for (int i = 0; i < count; i++)
		if (check_call(cuda, op, &args[i], err))
			return -1;
	int status = 0;
	hspmd_cuda_profile_start(cuda->profile, op, args, cuda->stream);
	if (kernel->run_batch)
		status = kernel->run_batch(cuda, args, count, err);
	for (int i = 0; !kernel->run_batch && !status && i < count; i++)
		status = kernel->run(cuda, &args[i], err);
	if (status)
		return name_call(op, args, err);
	hspmd_cuda_profile_end(cuda->profile, cuda->stream);
	cudaError_t launched = cudaGetLastError();
	if (launched)
		status = hspmd_cuda_failed(launched, "starting a kernel", err);
	else if (cuda->check_each)
		status = hspmd_cuda_stream_wait(cuda, err);
	return status ? name_call(op, args, err) : 0;
}

static int cuda_run(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	return cuda_run_batch(dev, op, args, 1, err);
}

/* Gets the stream for work beside that of cuda->stream, on which it begins when what was asked of cuda->stream is done. */
static int fork_beside(struct hspmd_cuda *cuda, cudaStream_t *stream, struct hspmd_error *err)
{
	cudaError_t status = open_beside(cuda);
	if (!status)
		status = cudaEventRecord(cuda->fork, cuda->stream);
	if (!status && cuda->beside)
		status = cudaStreamWaitEvent(cuda->beside, cuda->fork, 0);
	*stream = cuda->beside ? cuda->beside : cuda->stream;
	return status ? hspmd_cuda_failed(status, "work beside other work", err) : 0;
}

/* Which stream it is that runs what is captured is known when it is replayed. */
static int capture_beside(struct hspmd_cuda *cuda, enum hspmd_opcode op, const struct hspmd_kernel_args *args, int count, int group,
                          struct hspmd_error *err)
{
	cudaError_t status = open_beside(cuda);
	if (!status && cuda_run_batch(&cuda->base, op, args, count, err))
		return -1;
	if (!status)
		status = cudaEventRecordWithFlags(cuda->done[group], cuda->stream, cudaEventRecordExternal);
	cuda->captured_beside = group;
	return status ? hspmd_cuda_failed(status, "work beside other work", err) : 0;
}

static int cuda_run_beside(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args, int count, int group,
                           struct hspmd_error *err)
{
	struct hspmd_cuda *cuda = enter(dev);
	if (cuda->capturing)
		return capture_beside(cuda, op, args, count, group, err);
	/* Other threads may wait for the device's own stream meanwhile. */
	struct hspmd_cuda other = *cuda;
	if (fork_beside(cuda, &other.stream, err))
		return -1;
	other.last_beside = other.last_copy = -1;
	int rv = cuda_run_batch(&other.base, op, args, count, err);
	cudaError_t status;
	status = cudaEventRecord(cuda->done[group], other.stream);
	__atomic_store_n(&cuda->last_beside, group, __ATOMIC_RELEASE);
	return rv ? rv : status ? hspmd_cuda_failed(status, "work beside other work", err) : 0;
}

static int cuda_wait_beside(struct hspmd_device *dev, int group, struct hspmd_error *err)
{
	struct hspmd_cuda *cuda = enter(dev);
	cudaError_t status = open_beside(cuda);
	if (!status)
		status = cudaStreamWaitEvent(cuda->stream, cuda->done[group], cuda->capturing ? cudaEventWaitExternal : 0);
	return status ? hspmd_cuda_failed(status, "work beside other work", err) : 0;
}

static int cuda_run_apart(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	return hspmd_cuda_run_apart(enter(dev), op, args, err);
}

static int cuda_join_apart(struct hspmd_device *dev, struct hspmd_error *err)
{
	return hspmd_cuda_join_apart(enter(dev), err);
}

static int cuda_synchronise(struct hspmd_device *dev, struct hspmd_error *err)
{
	return hspmd_cuda_stream_wait(enter(dev), err);
}

/* After an error of a kernel CUDA answers everything that a process asks of the GPU with that error. */
static int cuda_check(struct hspmd_device *dev, struct hspmd_error *err)
{
	cudaError_t status = cudaStreamQuery(enter(dev)->stream);
	return status && status != cudaErrorNotReady ? hspmd_cuda_failed(status, "the GPU", err) : 0;
}

static char *cuda_choices(struct hspmd_device *dev)
{
	struct hspmd_cuda *cuda = enter(dev);
	char *products = hspmd_cuda_blas_choices(cuda), *attention = hspmd_cuda_dnn_choices(cuda),
	     *both = products && attention ? hspmd_asprintf("%s%s", products, attention) : NULL;
	free(products);
	free(attention);
	return both;
}

static int cuda_choose(struct hspmd_device *dev, const char *choices)
{
	struct hspmd_cuda *cuda = enter(dev);
	return hspmd_cuda_blas_choose(cuda, choices) || hspmd_cuda_dnn_choose(cuda, choices) ? -1 : 0;
}

static int cuda_capture_begin(struct hspmd_device *dev, struct hspmd_error *err)
{
	struct hspmd_cuda *cuda = enter(dev);
	if (cuda->profile || cuda->check_each)
		return hspmd_fail(err, "nothing is recorded while operators are timed or checked one by one");
	cuda->captured_beside = -1;
	cuda->capturing = !hspmd_cuda_capture_begin(cuda, err);
	return cuda->capturing ? 0 : -1;
}

static int cuda_capture_end(struct hspmd_device *dev, struct hspmd_device_graph **captured, struct hspmd_error *err)
{
	struct hspmd_cuda *cuda = enter(dev);
	cuda->capturing = false;
	return hspmd_cuda_capture_end(cuda, captured, err);
}

static int cuda_replay(struct hspmd_device *dev, const struct hspmd_device_graph *captured, struct hspmd_error *err)
{
	return hspmd_cuda_graph_replay(enter(dev), captured, err);
}

static int cuda_replay_beside(struct hspmd_device *dev, const struct hspmd_device_graph *captured, struct hspmd_error *err)
{
	struct hspmd_cuda *cuda = enter(dev);
	cudaStream_t stream;
	return fork_beside(cuda, &stream, err) ? -1 : hspmd_cuda_graph_replay_beside(cuda, captured, stream, err);
}

static void cuda_graph_free(struct hspmd_device *dev, struct hspmd_device_graph *captured)
{
	hspmd_cuda_graph_free(enter(dev), captured);
}

static const struct hspmd_device_ops cuda_ops = {
	.name = "cuda",
	.host_memory = false,
	.open = cuda_open,
	.close = cuda_close,
	.free_memory = cuda_free_memory,
	.allocate = cuda_allocate,
	.release = cuda_release,
	.allocate_host = cuda_allocate_host,
	.release_host = cuda_release_host,
	.to_device = cuda_to_device,
	.to_host = cuda_to_host,
	.to_host_batch = cuda_to_host_batch,
	.to_host_concurrent = cuda_to_host_concurrent,
	.zero = cuda_zero,
	.copy_direct = cuda_copy_direct,
	.copy_beside = cuda_copy_beside,
	.wait_copy = cuda_wait_copy,
	.copy_box = cuda_copy_box,
	.sum_rows = cuda_sum_rows,
	.workspace = cuda_workspace,
	.run = cuda_run,
	.run_batch = cuda_run_batch,
	.run_beside = cuda_run_beside,
	.wait_beside = cuda_wait_beside,
	.run_apart = cuda_run_apart,
	.join_apart = cuda_join_apart,
	.prepare = cuda_prepare,
	.prepared_free = cuda_prepared_free,
	.synchronise = cuda_synchronise,
	.check = cuda_check,
	.choices = cuda_choices,
	.choose = cuda_choose,
	.capture_begin = cuda_capture_begin,
	.capture_end = cuda_capture_end,
	.replay = cuda_replay,
	.replay_beside = cuda_replay_beside,
	.graph_free = cuda_graph_free,
	.communicators = &hspmd_nccl_communicators,
};

extern const struct hspmd_cuda_module hspmd_cuda_module;
const struct hspmd_cuda_module hspmd_cuda_module __attribute__((visibility("default"))) = { HSPMD_CUDA_MODULE_VERSION, &cuda_ops };
