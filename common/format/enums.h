/* SPDX-License-Identifier: Apache-2.0 */
/* Words that several formats share. */
#ifndef HSPMD_FORMAT_ENUMS_H
#define HSPMD_FORMAT_ENUMS_H

#include <stdbool.h>

/* Numeric precisions that rates are given for, in the order of the cluster file's "peak_tflops". */
enum hspmd_precision {
	HSPMD_PRECISION_FP32,
	HSPMD_PRECISION_TF32,
	HSPMD_PRECISION_BF16,
	HSPMD_PRECISION_FP16,
	HSPMD_PRECISION_FP8,
	HSPMD_PRECISION_FP64,
	HSPMD_PRECISION_COUNT
};
extern const char *const hspmd_precision_names[]; /* NULL-terminated */

/* What a device is. */
enum hspmd_device_kind { HSPMD_DEVICE_CPU, HSPMD_DEVICE_CUDA, HSPMD_DEVICE_KIND_COUNT };
extern const char *const hspmd_device_kind_names[];
/* Can hspmd's runtime compute in it on devices of the kind? fp32 on all, bf16 on GPUs, nothing else. */
bool hspmd_device_kind_computes(enum hspmd_device_kind kind, enum hspmd_precision precision);

#endif
