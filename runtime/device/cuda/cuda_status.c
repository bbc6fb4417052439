/* SPDX-License-Identifier: Apache-2.0 */
/* What all files of the CUDA device use: CUDA's status codes as errors, sizes of element types, and waits for events. */
#include <time.h>

#include "common/clock.h"
#include "runtime/device/cuda/cuda.h"
#include "runtime/device/cuda/nccl/nccl.h"

int hspmd_cuda_failed(cudaError_t status, const char *what, struct hspmd_error *err)
{
	return hspmd_fail(err, "%s: %s", what, cudaGetErrorString(status));
}

size_t hspmd_cuda_dtype_bytes(enum hspmd_dtype dtype)
{
	return dtype == HSPMD_F64 ? 8 : dtype == HSPMD_BF16 ? 2 : 4;
}

/* How long a wait spins before it sleeps, and how often it checks the communicators. */
#define SPIN_S 100e-6
#define LOOK_S 1e-3

int hspmd_cuda_event_wait(struct hspmd_cuda *cuda, cudaEvent_t event, struct hspmd_error *err)
{
	cudaError_t status;
	if (!cuda->communicators->list) {
		status = cudaEventSynchronize(event);
		return status ? hspmd_cuda_failed(status, "the GPU", err) : 0;
	}
	double since = hspmd_now(), looked = since;
	while ((status = cudaEventQuery(event)) == cudaErrorNotReady) {
		double now = hspmd_now();
		if (now - looked > LOOK_S) {
			if (cuda->check(cuda, err))
				return -1;
			looked = now;
		}
		if (now - since > SPIN_S)
			nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
	}
	return status ? hspmd_cuda_failed(status, "the GPU", err) : 0;
}
