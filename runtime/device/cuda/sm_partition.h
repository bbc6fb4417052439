/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSPMD_CUDA_SM_PARTITION_H
#define HSPMD_CUDA_SM_PARTITION_H

#include "runtime/device/cuda/cuda.h"

/* HSPMD_CUDA_SM_PARTITION=88,44: device 0 is 88 multiprocessors of its GPU and device 1 another 44 (as the hardware rounds them). Creates
 * cuda->stream on that part of the GPU; does nothing if the variable does not name this device. */
int hspmd_cuda_sm_partition_open(struct hspmd_cuda *cuda, int index, struct hspmd_error *err);
/* Call it after the stream was destroyed. */
void hspmd_cuda_sm_partition_close(struct hspmd_cuda *cuda);

#endif
