/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU device: kernels for F32 and F64, each compiled for several instruction sets and chosen when the device is opened (environment
 * HSPMD_CPU_ISA = "generic", "avx2", "avx512" selects a lesser one). Every kernel gives the same bits for any number of threads. Buffers
 * are host memory. */
#ifndef HSPMD_CPU_CPU_H
#define HSPMD_CPU_CPU_H

#include "common/thread_pool.h"
#include "runtime/device/device.h"

extern const struct hspmd_device_ops hspmd_cpu_ops;

struct hspmd_cpu {
	struct hspmd_device base;
	struct hspmd_thread_pool *pool;
	const struct hspmd_cpu_kernel *const *f32, *const *f64; /* by opcode; NULL: none */
};

struct hspmd_cpu_kernel {
	void (*run)(struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args);
	size_t (*workspace)(const struct hspmd_cpu *cpu, const struct hspmd_kernel_args *args); /* NULL: needs none */
};

/* The fastest tables that this machine can run, and the name of their instruction set. NULL and err if HSPMD_CPU_ISA names one that is
 * unknown or that the machine lacks. */
const char *hspmd_cpu_choose(const struct hspmd_cpu_kernel *const **f32, const struct hspmd_cpu_kernel *const **f64,
                             struct hspmd_error *err);

/* Copies of a box between packed buffers (device.h). */
int hspmd_cpu_copy_box(struct hspmd_device *dev, void *dst, const struct hspmd_box *dst_box, const void *src,
                       const struct hspmd_box *src_box, const struct hspmd_box *part, enum hspmd_dtype dtype, bool add,
                       struct hspmd_error *err);

#endif
