/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/device.h"

#include <string.h>

#include "runtime/device/cpu/cpu.h"

static const struct hspmd_device_ops *const built_in[] = {
	&hspmd_cpu_ops,
};

const char *const hspmd_dtype_words[] = { "F32", "BF16", "F64", "I32", NULL };

size_t hspmd_dtype_bytes(enum hspmd_dtype dtype)
{
	static const size_t bytes[HSPMD_DTYPE_COUNT] = { [HSPMD_F32] = 4, [HSPMD_BF16] = 2, [HSPMD_F64] = 8, [HSPMD_I32] = 4 };
	return bytes[dtype];
}

const struct hspmd_device_ops *hspmd_device_find(const char *name, struct hspmd_error *err)
{
	char have[64] = "";
	for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++) {
		if (!strcmp(built_in[i]->name, name))
			return built_in[i];
		if (i)
			strcat(have, ", ");
		strcat(have, built_in[i]->name);
	}
	hspmd_fail(err, "no device kind '%s' in this build, which has: %s", name, have);
	return NULL;
}
