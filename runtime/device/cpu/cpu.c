/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/alloc.h"
#include "common/cores.h"

static void cpu_close(struct hspmd_device *dev)
{
	struct hspmd_cpu *cpu = (struct hspmd_cpu *)dev;
	if (!cpu)
		return;
	hspmd_thread_pool_destroy(cpu->pool);
	free(cpu);
}

static int cpu_open(struct hspmd_device **dev, int index, int threads, struct hspmd_error *err)
{
	(void)index;
	if (threads < 0)
		return hspmd_fail(err, "a CPU device cannot have %d threads", threads);
	struct hspmd_cpu *cpu = hspmd_calloc(1, sizeof *cpu);
	if (!cpu)
		return hspmd_fail_memory(err, "opening a CPU device");
	cpu->base.ops = &hspmd_cpu_ops;
	if (!hspmd_cpu_choose(&cpu->f32, &cpu->f64, err) ||
	    !(cpu->pool = hspmd_thread_pool_create(threads ? threads : hspmd_usable_cores(), err))) {
		cpu_close(&cpu->base);
		return -1;
	}
	*dev = &cpu->base;
	return 0;
}

/* Large allocations use large pages if the system has them: fewer page faults and TLB misses. */
#define LARGE_PAGE ((size_t)2 << 20)

static void *cpu_allocate(struct hspmd_device *dev, size_t bytes, struct hspmd_error *err)
{
	(void)dev;
	void *data = NULL;
	bool large = bytes >= 8 * LARGE_PAGE;
	if (posix_memalign(&data, large ? LARGE_PAGE : 64, bytes ? bytes : 64)) {
		hspmd_fail(err, "out of memory: %zu bytes for a tensor", bytes);
		return NULL;
	}
#ifdef MADV_HUGEPAGE
	if (large)
		madvise(data, bytes, MADV_HUGEPAGE);
#endif
	return data;
}

static void cpu_release(struct hspmd_device *dev, void *data)
{
	(void)dev;
	free(data);
}

static int cpu_copy(struct hspmd_device *dev, void *dst, const void *src, size_t bytes, struct hspmd_error *err)
{
	(void)dev;
	(void)err;
	memcpy(dst, src, bytes);
	return 0;
}

static int cpu_zero(struct hspmd_device *dev, void *dst, size_t bytes, struct hspmd_error *err)
{
	(void)dev;
	(void)err;
	memset(dst, 0, bytes);
	return 0;
}

static int cpu_synchronise(struct hspmd_device *dev, struct hspmd_error *err)
{
	(void)dev;
	(void)err;
	return 0;
}

/* The type in which a call computes: that of its first floating input, else of its first output (random numbers, constants). */
static enum hspmd_dtype compute_type(const struct hspmd_kernel_args *args)
{
	for (int i = 0; i < args->input_count; i++)
		if (args->in[i].rank >= 0 && args->in[i].dtype != HSPMD_I32)
			return args->in[i].dtype;
	return args->out[0].dtype;
}

static const struct hspmd_cpu_kernel *find_kernel(const struct hspmd_cpu *cpu, enum hspmd_opcode op, const struct hspmd_kernel_args *args)
{
	enum hspmd_dtype type = compute_type(args);
	if (op == HSPMD_OP_CAST) /* reads and writes any two types, so it is in one table only */
		return cpu->f32[op];
	return type == HSPMD_F32 ? cpu->f32[op] : type == HSPMD_F64 ? cpu->f64[op] : NULL;
}

static size_t cpu_workspace(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args)
{
	const struct hspmd_cpu *cpu = (const struct hspmd_cpu *)dev;
	const struct hspmd_cpu_kernel *kernel = find_kernel(cpu, op, args);
	return kernel && kernel->workspace ? kernel->workspace(cpu, args) : 0;
}

static int cpu_run(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	struct hspmd_cpu *cpu = (struct hspmd_cpu *)dev;
	const struct hspmd_cpu_kernel *kernel = find_kernel(cpu, op, args);
	if (!kernel)
		return hspmd_fail(err, "the CPU device has no kernel for %s on %s", hspmd_opcode_names[op],
		                  hspmd_dtype_names[compute_type(args)]);
	size_t need = kernel->workspace ? kernel->workspace(cpu, args) : 0;
	if (need > args->workspace_bytes)
		return hspmd_fail(err, "%s was given %zu bytes of workspace and needs %zu", hspmd_opcode_names[op], args->workspace_bytes,
		                  need);
	kernel->run(cpu, args);
	return 0;
}

const struct hspmd_device_ops hspmd_cpu_ops = {
	.name = "cpu",
	.host_memory = true,
	.open = cpu_open,
	.close = cpu_close,
	.allocate = cpu_allocate,
	.release = cpu_release,
	.to_device = cpu_copy,
	.to_host = cpu_copy,
	.zero = cpu_zero,
	.copy_box = hspmd_cpu_copy_box,
	.workspace = cpu_workspace,
	.run = cpu_run,
	.synchronise = cpu_synchronise,
};

const struct hspmd_device_ops *hspmd_device_cpu(struct hspmd_error *err)
{
	(void)err;
	return &hspmd_cpu_ops;
}
