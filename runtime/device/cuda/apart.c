/* SPDX-License-Identifier: Apache-2.0 */
/* Operators beside others of the same step, on a stream of their own between two events: what was asked of the device before, and
 * join_apart. While the device's stream is recorded, the events make this stream a branch of the graph (CUDA programming guide,
 * "Cross-stream dependencies and events"). On a part of a GPU, which has one stream, nothing is beside anything; nor where operators are
 * timed, or waited for one by one. */
#include "runtime/device/cuda/cuda.h"

bool hspmd_cuda_can_run_apart(const struct hspmd_cuda *cuda)
{
	return !cuda->green_context && !cuda->check_each && !cuda->profile;
}

/* Blocks of the stream begin before those of the device's own stream that also wait for a multiprocessor. */
static cudaError_t create_stream(cudaStream_t *stream)
{
	int least, greatest;
	cudaError_t status = cudaDeviceGetStreamPriorityRange(&least, &greatest);
	return status ? status : cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, greatest);
}

cudaError_t hspmd_cuda_apart_create(struct hspmd_cuda *cuda)
{
	if (cuda->apart_done)
		return cudaSuccess;
	cudaError_t status = cuda->apart ? cudaSuccess : create_stream(&cuda->apart);
	if (!status && !cuda->apart_fork)
		status = cudaEventCreateWithFlags(&cuda->apart_fork, cudaEventDisableTiming);
	return status ? status : cudaEventCreateWithFlags(&cuda->apart_done, cudaEventDisableTiming);
}

void hspmd_cuda_apart_destroy(struct hspmd_cuda *cuda)
{
	if (cuda->apart_fork)
		cudaEventDestroy(cuda->apart_fork);
	if (cuda->apart_done)
		cudaEventDestroy(cuda->apart_done);
	if (cuda->apart)
		cudaStreamDestroy(cuda->apart);
}

cudaError_t hspmd_cuda_apart_fork(const struct hspmd_cuda *cuda)
{
	cudaError_t status = cudaEventRecord(cuda->apart_fork, cuda->stream);
	return status ? status : cudaStreamWaitEvent(cuda->apart, cuda->apart_fork, 0);
}

cudaError_t hspmd_cuda_apart_join(const struct hspmd_cuda *cuda)
{
	cudaError_t status = cudaEventRecord(cuda->apart_done, cuda->apart);
	return status ? status : cudaStreamWaitEvent(cuda->stream, cuda->apart_done, 0);
}

int hspmd_cuda_run_apart(struct hspmd_cuda *cuda, enum hspmd_opcode op, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	if (!args->prepared || !args->prepared->apart || !hspmd_cuda_can_run_apart(cuda))
		return cuda->base.ops->run(&cuda->base, op, args, err);
	cudaError_t status = hspmd_cuda_apart_create(cuda);
	if (!status)
		status = hspmd_cuda_apart_fork(cuda);
	if (status)
		return hspmd_cuda_failed(status, "an operator beside others", err);
	struct hspmd_cuda other = *cuda;
	other.stream = cuda->apart;
	cuda->is_apart = true;
	return cuda->base.ops->run(&other.base, op, args, err);
}

int hspmd_cuda_join_apart(struct hspmd_cuda *cuda, struct hspmd_error *err)
{
	if (!cuda->is_apart)
		return 0;
	cuda->is_apart = false;
	cudaError_t status = hspmd_cuda_apart_join(cuda);
	return status ? hspmd_cuda_failed(status, "an operator beside others", err) : 0;
}
