/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSPMD_CUDA_GRAPH_H
#define HSPMD_CUDA_GRAPH_H

#include "runtime/device/cuda/cuda.h"

/* As record, recorded, replay and forget of device.h. */
int hspmd_cuda_record(struct hspmd_cuda *cuda, struct hspmd_error *err);
int hspmd_cuda_recorded(struct hspmd_cuda *cuda, struct hspmd_recording **recording, struct hspmd_error *err);
int hspmd_cuda_replay(struct hspmd_cuda *cuda, const struct hspmd_recording *recording, struct hspmd_error *err);
void hspmd_cuda_forget(struct hspmd_cuda *cuda, struct hspmd_recording *recording);

#endif
