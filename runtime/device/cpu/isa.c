/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "runtime/device/cpu/cpu.h"

#define TABLES(isa)                                                                                                                        \
	extern const struct hspmd_cpu_kernel *const hspmd_cpu_kernels_f32_##isa[HSPMD_OP_COUNT];                                           \
	extern const struct hspmd_cpu_kernel *const hspmd_cpu_kernels_f64_##isa[HSPMD_OP_COUNT];

TABLES(generic)
#ifdef __x86_64__
TABLES(avx2)
TABLES(avx512)
#endif

static const struct {
	const char *name;
	const struct hspmd_cpu_kernel *const *f32, *const *f64;
} isas[] = { /* fastest first */
#ifdef __x86_64__
	     { "avx512", hspmd_cpu_kernels_f32_avx512, hspmd_cpu_kernels_f64_avx512 },
	     { "avx2", hspmd_cpu_kernels_f32_avx2, hspmd_cpu_kernels_f64_avx2 },
#endif
	     { "generic", hspmd_cpu_kernels_f32_generic, hspmd_cpu_kernels_f64_generic }
};

static bool machine_has(const char *name)
{
#ifdef __x86_64__
	bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
	if (!strcmp(name, "avx2"))
		return avx2;
	if (!strcmp(name, "avx512"))
		return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
		       __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#endif
	return !strcmp(name, "generic");
}

const char *hspmd_cpu_choose(const struct hspmd_cpu_kernel *const **f32, const struct hspmd_cpu_kernel *const **f64,
                             struct hspmd_error *err)
{
	const char *wanted = getenv("HSPMD_CPU_ISA");
	for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
		if (wanted && *wanted ? strcmp(wanted, isas[i].name) != 0 : !machine_has(isas[i].name))
			continue;
		if (!machine_has(isas[i].name))
			break;
		*f32 = isas[i].f32;
		*f64 = isas[i].f64;
		return isas[i].name;
	}
	hspmd_fail(err, "HSPMD_CPU_ISA=%s: this build and machine have no such instruction set (generic%s%s)", wanted ? wanted : "",
	           machine_has("avx2") ? ", avx2" : "", machine_has("avx512") ? ", avx512" : "");
	return NULL;
}
