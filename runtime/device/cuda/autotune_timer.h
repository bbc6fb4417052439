/* SPDX-License-Identifier: Apache-2.0 */
/* Measures how long the GPU takes for one of several ways to compute the same result, on a stream other than the program's. */
#ifndef HSPMD_CUDA_AUTOTUNE_TIMER_H
#define HSPMD_CUDA_AUTOTUNE_TIMER_H

#include "runtime/device/cuda/cuda.h"

/* All zeros: not open. */
struct hspmd_cuda_autotune_timer {
	cudaStream_t stream;
	cudaEvent_t start, end;
};

bool hspmd_cuda_autotune_timer_open(struct hspmd_cuda_autotune_timer *w);
void hspmd_cuda_autotune_timer_close(struct hspmd_cuda_autotune_timer *w); /* also if not open, or only partly */
/* Returns the milliseconds that `timed` consecutive runs take, after one run that is not counted; negative if a run fails. run() enqueues
 * on w->stream and returns 0 on success. */
float hspmd_cuda_autotune_timer_time(const struct hspmd_cuda_autotune_timer *w, int timed, int (*run)(const void *what), const void *what);

#endif
