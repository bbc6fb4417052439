/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cuda/autotune_timer.h"

#define WARM_RUNS 1

bool hspmd_cuda_autotune_timer_open(struct hspmd_cuda_autotune_timer *w)
{
	*w = (struct hspmd_cuda_autotune_timer){ NULL, NULL, NULL };
	if (!cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking) && !cudaEventCreate(&w->start) && !cudaEventCreate(&w->end))
		return true;
	cudaGetLastError(); /* it is no error that nothing can be measured */
	hspmd_cuda_autotune_timer_close(w);
	return false;
}

void hspmd_cuda_autotune_timer_close(struct hspmd_cuda_autotune_timer *w)
{
	if (w->start)
		cudaEventDestroy(w->start);
	if (w->end)
		cudaEventDestroy(w->end);
	if (w->stream)
		cudaStreamDestroy(w->stream);
	*w = (struct hspmd_cuda_autotune_timer){ NULL, NULL, NULL };
}

float hspmd_cuda_autotune_timer_time(const struct hspmd_cuda_autotune_timer *w, int timed, int (*run)(const void *what), const void *what)
{
	float milliseconds = -1;
	for (int i = 0; i < WARM_RUNS + timed; i++)
		if ((i == WARM_RUNS && cudaEventRecord(w->start, w->stream)) || run(what))
			return -1;
	if (cudaEventRecord(w->end, w->stream) || cudaEventSynchronize(w->end) || cudaEventElapsedTime(&milliseconds, w->start, w->end))
		return -1;
	return milliseconds;
}
