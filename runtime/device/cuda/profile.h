/* SPDX-License-Identifier: Apache-2.0 */
/* HSPMD_CUDA_PROFILE=1: what each operator took on the GPU, told on standard error when the device is closed. Events are taken around every
 * operator, which costs a little; nothing is waited for until the end of a batch of them. */
#ifndef HSPMD_CUDA_PROFILE_H
#define HSPMD_CUDA_PROFILE_H

#include "runtime/device/cuda/cuda.h"

struct hspmd_cuda_profile;

struct hspmd_cuda_profile *hspmd_cuda_profile_open(void); /* NULL: not asked for (or no memory) */
/* All but open take NULL. */
void hspmd_cuda_profile_start(struct hspmd_cuda_profile *p, enum hspmd_opcode op, cudaStream_t stream);
void hspmd_cuda_profile_end(struct hspmd_cuda_profile *p, cudaStream_t stream);
void hspmd_cuda_profile_close(struct hspmd_cuda_profile *p);

#endif
