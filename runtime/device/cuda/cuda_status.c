/* SPDX-License-Identifier: Apache-2.0 */
/* What all files of the CUDA device use: CUDA's status codes as errors, calls as text, sizes of element types, and waits for
 * events. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "runtime/device/cuda/cuda.h"
#include "runtime/device/cuda/nccl/nccl.h"

int hspmd_cuda_failed(cudaError_t status, const char *what, struct hspmd_error *err)
{
	return hspmd_fail(err, "%s: %s", what, cudaGetErrorString(status));
}

static const char *const names[HSPMD_OP_COUNT] = {
#define OP(opcode, name) [HSPMD_OP_##opcode] = #name,
#include "runtime/tensor/opcode_list.h"
};

static const char *dtype_name(enum hspmd_dtype type)
{
	return type == HSPMD_BF16 ? "bf16" : type == HSPMD_F32 ? "f32" : type == HSPMD_F64 ? "f64" : "i32";
}

/* Appends " bf16[2,128,768]"; what does not fit is cut off. */
static void append_view(char text[HSPMD_CUDA_CALL_TEXT], const struct hspmd_view *v)
{
	size_t at = strlen(text);
	if (v->rank < 0)
		return;
	snprintf(text + at, HSPMD_CUDA_CALL_TEXT - at, " %s[", dtype_name(v->dtype));
	for (int d = 0; d < v->rank; d++) {
		at = strlen(text);
		snprintf(text + at, HSPMD_CUDA_CALL_TEXT - at, "%s%lld", d ? "," : "", (long long)v->shape[d]);
	}
	at = strlen(text);
	snprintf(text + at, HSPMD_CUDA_CALL_TEXT - at, "]");
}

void hspmd_cuda_describe_call(enum hspmd_opcode op, const struct hspmd_kernel_args *args, char text[HSPMD_CUDA_CALL_TEXT])
{
	snprintf(text, HSPMD_CUDA_CALL_TEXT, "%s", names[op]);
	for (int i = 0; i < args->input_count; i++)
		append_view(text, &args->in[i]);
	size_t at = strlen(text);
	snprintf(text + at, HSPMD_CUDA_CALL_TEXT - at, " ->");
	for (int i = 0; i < args->output_count; i++)
		append_view(text, &args->out[i]);
}

size_t hspmd_cuda_dtype_bytes(enum hspmd_dtype dtype)
{
	return dtype == HSPMD_F64 ? 8 : dtype == HSPMD_BF16 ? 2 : 4;
}

/* How long a wait spins before it sleeps, and how often it checks the communicators. */
#define SPIN_S 100e-6
#define LOOK_S 1e-3
/* No step of any use keeps a GPU busy for so long: what has not ended by then never will. */
#define LONGEST_WAIT_S 600

static double longest_wait(void)
{
	const char *text = getenv("HSPMD_CUDA_WAIT_S");
	double seconds = text ? strtod(text, NULL) : 0;
	return seconds > 0 ? seconds : LONGEST_WAIT_S;
}

/* `communicators`: check those of the device meanwhile. */
static int wait_for(struct hspmd_cuda *cuda, cudaEvent_t event, bool communicators, struct hspmd_error *err)
{
	double since = hspmd_now(), looked = since;
	cudaError_t status;
	while ((status = cudaEventQuery(event)) == cudaErrorNotReady) {
		double now = hspmd_now();
		if (now - looked > LOOK_S) {
			if (communicators && cuda->communicators->list && cuda->check(cuda, err))
				return -1;
			if (now - since > longest_wait())
				return hspmd_fail(err,
				                  "the GPU has not done its work for %.0f s: a kernel hangs, or the driver does "
				                  "(HSPMD_CUDA_CHECK=1 names it)",
				                  now - since);
			looked = now;
		}
		if (now - since > SPIN_S)
			nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
	}
	return status ? hspmd_cuda_failed(status, "the GPU", err) : 0;
}

int hspmd_cuda_event_wait(struct hspmd_cuda *cuda, cudaEvent_t event, struct hspmd_error *err)
{
	return wait_for(cuda, event, true, err);
}

int hspmd_cuda_event_wait_alone(struct hspmd_cuda *cuda, cudaEvent_t event, struct hspmd_error *err)
{
	return wait_for(cuda, event, false, err);
}

int hspmd_cuda_stream_wait(struct hspmd_cuda *cuda, struct hspmd_error *err)
{
	cudaError_t status = cudaSuccess;
	int beside = __atomic_load_n(&cuda->last_beside, __ATOMIC_ACQUIRE);
	if (beside >= 0)
		status = cudaStreamWaitEvent(cuda->stream, cuda->done[beside], 0);
	int copy = __atomic_load_n(&cuda->last_copy, __ATOMIC_ACQUIRE);
	if (!status && copy >= 0)
		status = cudaStreamWaitEvent(cuda->stream, cuda->copied[copy], 0);
	if (!status)
		status = cudaEventRecord(cuda->mark, cuda->stream);
	return status ? hspmd_cuda_failed(status, "the GPU", err) : hspmd_cuda_event_wait(cuda, cuda->mark, err);
}
