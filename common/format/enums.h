/* SPDX-License-Identifier: Apache-2.0 */
/* Enumerations that several formats share, and their names. */
#ifndef HSPMD_FORMAT_ENUMS_H
#define HSPMD_FORMAT_ENUMS_H

#include <stdbool.h>

/* Numeric precisions of rates, in the order of the cluster file's "peak_tflops". */
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

/* Kinds of device. */
enum hspmd_device_kind { HSPMD_DEVICE_CPU, HSPMD_DEVICE_CUDA, HSPMD_DEVICE_KIND_COUNT };
extern const char *const hspmd_device_kind_names[];
/* Returns true if hspmd's runtime can compute in this precision on such devices: fp32 on all, bf16 on GPUs, nothing else. */
bool hspmd_device_kind_computes(enum hspmd_device_kind kind, enum hspmd_precision precision);

#endif
