/* SPDX-License-Identifier: Apache-2.0 */
/* HSPMD_CUDA_PROFILE=1: the time on the GPU of each operator on each shape of its operands, reported on standard error when the device is
 * closed, the dearest first. Events are recorded around every operator, which costs a little; the host waits for them only at the end of a
 * batch. */
#ifndef HSPMD_CUDA_PROFILE_H
#define HSPMD_CUDA_PROFILE_H

#include "runtime/device/cuda/cuda.h"

struct hspmd_cuda_profile;

struct hspmd_cuda_profile *hspmd_cuda_profile_open(void); /* NULL: profiling is off (or no memory) */
/* All but hspmd_cuda_profile_open accept NULL. */
void hspmd_cuda_profile_start(struct hspmd_cuda_profile *p, enum hspmd_opcode op, const struct hspmd_kernel_args *args,
                              cudaStream_t stream);
void hspmd_cuda_profile_end(struct hspmd_cuda_profile *p, cudaStream_t stream);
void hspmd_cuda_profile_close(struct hspmd_cuda_profile *p);

#endif
