/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/device.h"

#include <string.h>

#include "runtime/device/cpu/cpu.h"
#include "runtime/device/cuda/module.h"

static const bool extra[][HSPMD_OP_COUNT] = {
	[HSPMD_DEVICE_CPU] = { false },
	[HSPMD_DEVICE_CUDA] = {
#define OP_FUSED(opcode, name) [HSPMD_OP_##opcode] = true,
#define OP_TABLE(opcode, name) [HSPMD_OP_##opcode] = true,
#include "runtime/tensor/opcode_list.h"
	},
};

bool hspmd_device_has_kernel(enum hspmd_device_kind kind, enum hspmd_opcode opcode)
{
	return extra[kind][opcode];
}

int hspmd_device_read_batch(struct hspmd_device *dev, void *host, const void *const *src, int count, size_t bytes, struct hspmd_error *err)
{
	if (dev->ops->to_host_batch)
		return dev->ops->to_host_batch(dev, host, src, count, bytes, err);
	int status = 0;
	for (int i = 0; !status && i < count; i++)
		status = dev->ops->to_host(dev, (char *)host + (size_t)i * bytes, src[i], bytes, err);
	return status;
}

const struct hspmd_device_ops *hspmd_device_find(const char *name, struct hspmd_error *err)
{
	if (!strcmp(name, hspmd_device_kind_names[HSPMD_DEVICE_CPU]))
		return &hspmd_cpu_ops;
	if (!strcmp(name, hspmd_device_kind_names[HSPMD_DEVICE_CUDA]))
		return hspmd_cuda_load(err);
	hspmd_fail(err, "no device kind '%s'; there are: cpu, cuda", name);
	return NULL;
}
