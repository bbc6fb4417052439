/* SPDX-License-Identifier: Apache-2.0 */
/* How fast a device of a cluster computes and moves bytes: for the planner and for the search for programs alike. */
#ifndef HSPMD_FORMAT_DEVICE_SPEED_H
#define HSPMD_FORMAT_DEVICE_SPEED_H

#include "common/format/cluster.h"

/* Fraction of a data sheet's peak that large matrix products sustain; used if `tflops` was not measured. It lies between what whole
 * training steps reach, 44-52 % (137 to 163 of an A100's 312 TFLOP/s; Megatron-LM, arXiv 2104.04473, table 1), and 100 %: the geometric
 * mean of 48 % and 100 %. */
#define HSPMD_SUSTAINED_FLOPS 0.7

/* Fraction of a data sheet's memory rate that streaming kernels reach: 83 % on V100, 69 % on T4 (Jia et al., arXiv 1804.06826 and
 * 1903.07486, memory throughput; at second hand); their mean. */
#define HSPMD_SUSTAINED_MEMORY 0.76

/* How many times a device that packs the factors of its products (product_blocks) moves each byte of a convolution's windows: it writes
 * them, reads them and writes them packed; the backward pass moves them in the other direction. That the product then reads what was
 * packed is part of its measured rate. */
#define HSPMD_WINDOW_TRAFFIC 3.0

/* Sustained operations per second in this precision, or if the device has no units for it in the next wider one that it has; 0: unknown. */
double hspmd_device_flops(const struct hspmd_device_type *t, enum hspmd_precision precision);
/* Returns true if GPUs of this compute capability, ten times, have products of warp-groups (wgmma): those of 9.0 alone. */
bool hspmd_capability_has_wgmma(int compute_capability);
/* Returns true if units for FP8 multiply the FP8 operands of a job whose elements are of precision `elements`: if these are BF16, and those
 * of experts only by products of warp-groups. Otherwise they are multiplied as elements. */
bool hspmd_device_multiplies_fp8(const struct hspmd_device_type *t, enum hspmd_precision elements, bool of_experts);
/* Sustained operations per second of these products. */
double hspmd_device_fp8_flops(const struct hspmd_device_type *t, enum hspmd_precision elements, bool of_experts);
/* Seconds of an operator beside its work, as measured, or to launch it. */
double hspmd_device_operator_seconds(const struct hspmd_device_type *t);
/* Returns true if the device packs the factors of its products before it multiplies. */
bool hspmd_device_packs(const struct hspmd_device_type *t);
/* Bytes that the device moves to lay out so many bytes of a convolution's windows. */
double hspmd_device_window_traffic(const struct hspmd_device_type *t, double windows);
/* Sustained bytes per second; 0: unknown. */
double hspmd_device_memory_rate(const struct hspmd_device_type *t);

#endif
