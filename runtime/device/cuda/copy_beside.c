/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between the GPU's memory and page-locked memory of the host, on a stream of their own, by the GPU's copy engines (CUDA programming
 * guide, overlap of data transfer and kernel execution). On a part of a GPU, which has one stream, nothing is beside anything. */
#include "runtime/device/cuda/cuda.h"

static cudaError_t create(struct hspmd_cuda *cuda)
{
	cudaError_t status = cudaSuccess;
	if (cuda->copy_fork)
		return status;
	if (!cuda->green_context)
		status = cudaStreamCreateWithFlags(&cuda->copies, cudaStreamNonBlocking);
	for (int i = 0; !status && i < HSPMD_DEVICE_COPIES; i++)
		status = cudaEventCreateWithFlags(&cuda->copied[i], cudaEventDisableTiming);
	return status ? status : cudaEventCreateWithFlags(&cuda->copy_fork, cudaEventDisableTiming);
}

void hspmd_cuda_copies_destroy(struct hspmd_cuda *cuda)
{
	if (cuda->copy_fork)
		cudaEventDestroy(cuda->copy_fork);
	for (int i = 0; i < HSPMD_DEVICE_COPIES; i++)
		if (cuda->copied[i])
			cudaEventDestroy(cuda->copied[i]);
	if (cuda->copies)
		cudaStreamDestroy(cuda->copies);
}

int hspmd_cuda_copy_beside(struct hspmd_cuda *cuda, void *dst, const void *src, size_t bytes, int number, struct hspmd_error *err)
{
	cudaError_t status = create(cuda);
	cudaStream_t stream = cuda->copies ? cuda->copies : cuda->stream;
	if (!status)
		status = cudaEventRecord(cuda->copy_fork, cuda->stream);
	if (!status)
		status = cudaStreamWaitEvent(stream, cuda->copy_fork, 0);
	if (!status)
		status = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream);
	if (!status)
		status = cudaEventRecord(cuda->copied[number], stream);
	__atomic_store_n(&cuda->last_copy, status ? cuda->last_copy : number, __ATOMIC_RELEASE);
	return status ? hspmd_cuda_failed(status, "copying between the GPU and the host", err) : 0;
}

int hspmd_cuda_wait_copy(struct hspmd_cuda *cuda, int number, struct hspmd_error *err)
{
	cudaError_t status = cudaStreamWaitEvent(cuda->stream, cuda->copied[number], 0);
	return status ? hspmd_cuda_failed(status, "copying between the GPU and the host", err) : 0;
}
