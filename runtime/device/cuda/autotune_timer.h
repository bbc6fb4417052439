/* SPDX-License-Identifier: Apache-2.0 */
/* How long the GPU takes for one of several ways to compute the same, on a stream beside the program's. */
#ifndef HSPMD_CUDA_AUTOTUNE_TIMER_H
#define HSPMD_CUDA_AUTOTUNE_TIMER_H

#include "runtime/device/cuda/cuda.h"

/* Zeroed: not open. */
struct hspmd_cuda_autotune_timer {
	cudaStream_t stream;
	cudaEvent_t start, end;
};

bool hspmd_cuda_autotune_timer_open(struct hspmd_cuda_autotune_timer *w);
void hspmd_cuda_autotune_timer_close(struct hspmd_cuda_autotune_timer *w); /* also one that is not, or not wholly, open */
/* Milliseconds of `timed` runs one after the other, after one that is not counted; negative: it does not run. run() enqueues on w->stream,
 * 0 where it could. */
float hspmd_cuda_autotune_timer_time(const struct hspmd_cuda_autotune_timer *w, int timed, int (*run)(const void *what), const void *what);

#endif
