/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSPMD_CUDA_CUDA_GRAPH_H
#define HSPMD_CUDA_CUDA_GRAPH_H

#include "runtime/device/cuda/cuda.h"

/* Implement capture_begin, capture_end, replay, replay_beside and graph_free of device.h. */
int hspmd_cuda_capture_begin(struct hspmd_cuda *cuda, struct hspmd_error *err);
int hspmd_cuda_capture_end(struct hspmd_cuda *cuda, struct hspmd_device_graph **captured, struct hspmd_error *err);
int hspmd_cuda_graph_replay(struct hspmd_cuda *cuda, const struct hspmd_device_graph *captured, struct hspmd_error *err);
int hspmd_cuda_graph_replay_beside(struct hspmd_cuda *cuda, const struct hspmd_device_graph *captured, cudaStream_t stream,
                                   struct hspmd_error *err);
void hspmd_cuda_graph_free(struct hspmd_cuda *cuda, struct hspmd_device_graph *captured);

#endif
