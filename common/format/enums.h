/* SPDX-License-Identifier: Apache-2.0 */
/* Enumerations that several formats share, and their names. */
#ifndef HSPMD_FORMAT_ENUMS_H
#define HSPMD_FORMAT_ENUMS_H

#include "common/format/device_list.h"

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

/* Kinds of device. Programs decide by what a kind can (common/format/device_traits.h), not by its number; further kinds may be added. */
#define HSPMD_DEVICE_KIND_ENUM(kind, name, ...) HSPMD_DEVICE_##kind,
enum hspmd_device_kind { HSPMD_DEVICE_KINDS(HSPMD_DEVICE_KIND_ENUM) HSPMD_DEVICE_KIND_COUNT };
#define HSPMD_DEVICE_KINDS_MAX 8
extern const char *hspmd_device_kind_names[]; /* NULL-terminated */

#endif
