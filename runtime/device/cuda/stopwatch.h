/* SPDX-License-Identifier: Apache-2.0 */
/* How long the GPU takes for one of several ways to compute the same, on a stream beside the program's. */
#ifndef HSPMD_CUDA_STOPWATCH_H
#define HSPMD_CUDA_STOPWATCH_H

#include "runtime/device/cuda/cuda.h"

/* Zeroed: not open. */
struct hspmd_cuda_stopwatch {
	cudaStream_t stream;
	cudaEvent_t start, end;
};

bool hspmd_cuda_stopwatch_open(struct hspmd_cuda_stopwatch *w);
void hspmd_cuda_stopwatch_close(struct hspmd_cuda_stopwatch *w); /* also one that is not, or not wholly, open */
/* Milliseconds of `timed` runs one after the other, after one that is not counted; negative: it does not run. run() enqueues on w->stream, 0 where it could. */
float hspmd_cuda_stopwatch_time(const struct hspmd_cuda_stopwatch *w, int timed, int (*run)(const void *what), const void *what);

#endif
