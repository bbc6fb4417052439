/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor maps, by which kernels for compute capability 9.0 copy tiles (wgmma.h). */
#ifndef HSPMD_CUDA_TENSOR_MAP_H
#define HSPMD_CUDA_TENSOR_MAP_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if CUDA_VERSION >= 12000
/* Describes a BF16 tensor of rank 4 in memory of the GPU: `shape` elements, of which those of dimension 0 lie side by side; stride:
 * elements between those of dimensions 1, 2 and 3, multiples of 8; data: aligned to 16 bytes. Boxes have 64 elements of dimension 0 and
 * `rows` of dimension 1. False: the driver has no such maps or refuses this one. */
bool hspmd_cuda_tensor_map(CUtensorMap *map, const void *data, const int64_t shape[4], const int64_t stride[3], int rows);
#endif

/* Returns true if the driver has such maps. */
bool hspmd_cuda_has_tensor_maps(void);

#ifdef __cplusplus
}
#endif

#endif
