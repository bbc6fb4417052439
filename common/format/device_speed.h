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

/* Sustained operations per second in this precision, or if the device has no units for it in the next wider one that it has; 0: unknown. */
double hspmd_device_flops(const struct hspmd_device_type *t, enum hspmd_precision precision);
/* Seconds of an operator beside its work, as measured, or to launch it. */
double hspmd_device_operator_seconds(const struct hspmd_device_type *t);
/* Sustained bytes per second; 0: unknown. */
double hspmd_device_memory_rate(const struct hspmd_device_type *t);

#endif
