/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/device_speed.h"

#include <math.h>

#include "common/format/device_traits.h"

double hspmd_device_flops(const struct hspmd_device_type *t, enum hspmd_precision precision)
{
	/* A device without units for the precision computes in the next wider precision that it has. */
	static const enum hspmd_precision instead[HSPMD_PRECISION_COUNT][4] = {
		{ HSPMD_PRECISION_FP32, HSPMD_PRECISION_FP32, HSPMD_PRECISION_FP32, HSPMD_PRECISION_FP32 },
		{ HSPMD_PRECISION_TF32, HSPMD_PRECISION_FP32, HSPMD_PRECISION_FP32, HSPMD_PRECISION_FP32 },
		{ HSPMD_PRECISION_BF16, HSPMD_PRECISION_FP16, HSPMD_PRECISION_TF32, HSPMD_PRECISION_FP32 },
		{ HSPMD_PRECISION_FP16, HSPMD_PRECISION_BF16, HSPMD_PRECISION_TF32, HSPMD_PRECISION_FP32 },
		{ HSPMD_PRECISION_FP8, HSPMD_PRECISION_BF16, HSPMD_PRECISION_FP16, HSPMD_PRECISION_FP32 },
		{ HSPMD_PRECISION_FP64, HSPMD_PRECISION_FP64, HSPMD_PRECISION_FP64, HSPMD_PRECISION_FP64 },
	};
	for (int i = 0; i < 4; i++) {
		enum hspmd_precision p = instead[precision][i];
		if (t->tflops[p] > 0)
			return t->tflops[p] * 1e12;
		if (t->peak_tflops[p] > 0)
			return t->peak_tflops[p] * 1e12 * HSPMD_SUSTAINED_FLOPS;
	}
	return 0;
}

bool hspmd_capability_has_wgmma(int compute_capability)
{
	return compute_capability == 90;
}

bool hspmd_device_multiplies_fp8(const struct hspmd_device_type *t, enum hspmd_precision elements, bool of_experts)
{
	return elements == HSPMD_PRECISION_BF16 && (!of_experts || hspmd_capability_has_wgmma(t->compute_capability));
}

double hspmd_device_fp8_flops(const struct hspmd_device_type *t, enum hspmd_precision elements, bool of_experts)
{
	double rate = hspmd_device_flops(t, elements);
	return hspmd_device_multiplies_fp8(t, elements, of_experts) ? fmax(rate, hspmd_device_flops(t, HSPMD_PRECISION_FP8)) : rate;
}

double hspmd_device_operator_seconds(const struct hspmd_device_type *t)
{
	return t->operator_s > 0 ? t->operator_s : hspmd_device_traits(t->kind)->launch_s;
}

bool hspmd_device_packs(const struct hspmd_device_type *t)
{
	return t->product_blocks.depth > 0;
}

double hspmd_device_window_traffic(const struct hspmd_device_type *t, double windows)
{
	return hspmd_device_packs(t) ? HSPMD_WINDOW_TRAFFIC * windows : 0;
}

double hspmd_device_memory_rate(const struct hspmd_device_type *t)
{
	return t->gbytes_per_s * 1e9 * HSPMD_SUSTAINED_MEMORY;
}
