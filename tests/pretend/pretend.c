/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/pretend/pretend.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/half.h"

#define MEMORY ((size_t)256 << 20)

struct pretend {
	struct hspmd_device base;
	struct hspmd_device *cpu;
	char *memory; /* what its addresses lead to: nobody can use it, and who tries ends the program */
	char *real;   /* where the contents are */
	size_t used;
	int live; /* allocations; if there are none, the memory begins anew */
	int copy_count;
	struct {
		void *to;
		const void *from;
		size_t bytes;
		int number;
	} copies[HSPMD_DEVICE_COPIES]; /* of copy_beside, not made yet */
};

const struct hspmd_device_traits pretend_traits = { .name = "pretend", .bf16 = true, .launch_s = 1e-5, .context_bytes = 1 << 20 };

static atomic_int copies;
static atomic_size_t host_bytes, offloaded;

int pretend_copies(void)
{
	return copies;
}

size_t pretend_host_bytes(void)
{
	return host_bytes;
}

size_t pretend_offloaded_bytes(void)
{
	return offloaded;
}

/* Where the contents of an address are: the device's own are elsewhere, any other is the host's. */
static void *contents(const struct pretend *p, const void *address)
{
	const char *at = address;
	return at >= p->memory && at < p->memory + MEMORY ? p->real + (at - p->memory) : (void *)(uintptr_t)address;
}

static void pretend_close(struct hspmd_device *dev)
{
	struct pretend *p = (struct pretend *)dev;
	if (!p)
		return;
	if (p->memory)
		munmap(p->memory, MEMORY);
	if (p->real)
		munmap(p->real, MEMORY);
	if (p->cpu)
		p->cpu->ops->close(p->cpu);
	free(p);
}

static int pretend_open(struct hspmd_device **dev, int index, int threads, struct hspmd_error *err)
{
	const struct hspmd_device_ops *cpu = hspmd_device_cpu(err);
	struct pretend *p = calloc(1, sizeof *p);
	(void)threads;
	if (!p)
		return hspmd_fail_memory(err, "opening a device");
	p->base.ops = &pretend_ops;
	void *memory = mmap(NULL, MEMORY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
	     *real = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	p->memory = memory == MAP_FAILED ? NULL : memory;
	p->real = real == MAP_FAILED ? NULL : real;
	if (!p->memory || !p->real || cpu->open(&p->cpu, index, 1, err)) {
		pretend_close(&p->base);
		return hspmd_fail(err, "the make-believe device cannot be opened");
	}
	*dev = &p->base;
	return 0;
}

static void *pretend_allocate(struct hspmd_device *dev, size_t bytes, struct hspmd_error *err)
{
	struct pretend *p = (struct pretend *)dev;
	size_t size = (bytes + 64) / 64 * 64;
	if (size > MEMORY - p->used) {
		hspmd_fail(err, "out of memory: %zu bytes for a tensor", bytes);
		return NULL;
	}
	p->used += size;
	p->live++;
	return p->memory + p->used - size;
}

static void pretend_release(struct hspmd_device *dev, void *data)
{
	struct pretend *p = (struct pretend *)dev;
	if (data && --p->live == 0)
		p->used = 0;
}

static void *pretend_allocate_host(struct hspmd_device *dev, size_t bytes, struct hspmd_error *err)
{
	void *data = aligned_alloc(64, (bytes + 64) / 64 * 64);
	(void)dev;
	host_bytes += bytes;
	if (!data)
		hspmd_fail_memory(err, "the host's memory");
	return data;
}

static void pretend_release_host(struct hspmd_device *dev, void *data)
{
	(void)dev;
	free(data);
}

/* Of the two sides, `own` must be the device's. */
static int copy(struct hspmd_device *dev, void *to, const void *from, const void *own, size_t bytes)
{
	struct pretend *p = (struct pretend *)dev;
	const char *at = own;
	if (bytes && (at < p->memory || at + bytes > p->memory + MEMORY))
		abort();
	memcpy(contents(p, to), contents(p, from), bytes);
	copies++;
	return 0;
}

static int pretend_to_device(struct hspmd_device *dev, void *dst, const void *host, size_t bytes, struct hspmd_error *err)
{
	(void)err;
	return copy(dev, dst, host, dst, bytes);
}

static int pretend_to_host(struct hspmd_device *dev, void *host, const void *src, size_t bytes, struct hspmd_error *err)
{
	(void)err;
	return copy(dev, host, src, src, bytes);
}

/* Most copies are made as late as they may be: a reader that did not wait sees what was there before, and a source that is written too
 * early is copied as it is then. Some are made at once, and write where something else may still be. */
static int pretend_wait_copy(struct hspmd_device *dev, int number, struct hspmd_error *err)
{
	struct pretend *p = (struct pretend *)dev;
	int made = p->copy_count;
	(void)err;
	while (made > 0 && p->copies[made - 1].number != number)
		made--;
	for (int i = 0; i < made; i++)
		memcpy(contents(p, p->copies[i].to), contents(p, p->copies[i].from), p->copies[i].bytes);
	p->copy_count -= made;
	memmove(p->copies, p->copies + made, (size_t)p->copy_count * sizeof *p->copies);
	return 0;
}

static int pretend_copy_beside(struct hspmd_device *dev, void *dst, const void *src, size_t bytes, int number, struct hspmd_error *err)
{
	struct pretend *p = (struct pretend *)dev;
	if (p->copy_count == HSPMD_DEVICE_COPIES)
		pretend_wait_copy(dev, p->copies[0].number, err);
	p->copies[p->copy_count].to = dst;
	p->copies[p->copy_count].from = src;
	p->copies[p->copy_count].bytes = bytes;
	p->copies[p->copy_count++].number = number;
	offloaded += bytes;
	return number % 4 == 3 ? pretend_wait_copy(dev, number, err) : 0;
}

static int pretend_zero(struct hspmd_device *dev, void *dst, size_t bytes, struct hspmd_error *err)
{
	(void)err;
	memset(contents((struct pretend *)dev, dst), 0, bytes);
	return 0;
}

static int pretend_copy_box(struct hspmd_device *dev, void *dst, const struct hspmd_box *dst_box, const void *src,
                            const struct hspmd_box *src_box, const struct hspmd_box *part, enum hspmd_dtype dtype, bool add,
                            struct hspmd_error *err)
{
	struct pretend *p = (struct pretend *)dev;
	return p->cpu->ops->copy_box(p->cpu, contents(p, dst), dst_box, contents(p, src), src_box, part, dtype, add, err);
}

static int64_t elements(const struct hspmd_view *v)
{
	int64_t n = 1;
	for (int d = 0; d < v->rank; d++)
		n *= v->shape[d];
	return n;
}

/* A view in fp32 of a view in bf16; other views stay. Returns -1 if memory is short. */
static int widen(struct hspmd_view *v)
{
	if (v->rank < 0 || v->dtype != HSPMD_BF16)
		return 0;
	const uint16_t *narrow = v->data;
	int64_t n = elements(v);
	float *wide = narrow ? malloc((size_t)(n ? n : 1) * sizeof *wide) : NULL;
	v->dtype = HSPMD_F32;
	v->data = wide;
	for (int64_t i = 0; wide && i < n; i++)
		wide[i] = hspmd_bf16_to_float(narrow[i]);
	return narrow && !wide ? -1 : 0;
}

static size_t pretend_workspace(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args)
{
	struct pretend *p = (struct pretend *)dev;
	struct hspmd_kernel_args wide = *args;
	for (int i = 0; op != HSPMD_OP_CAST && i < HSPMD_OP_MAX_IO; i++) {
		wide.in[i].dtype = i < args->input_count ? hspmd_dtype_master(args->in[i].dtype) : wide.in[i].dtype;
		wide.out[i].dtype = i < args->output_count ? hspmd_dtype_master(args->out[i].dtype) : wide.out[i].dtype;
	}
	return p->cpu->ops->workspace(p->cpu, op, &wide);
}

static int run_wide(struct pretend *p, enum hspmd_opcode op, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	struct hspmd_kernel_args wide = *args;
	int bad = 0;
	for (int i = 0; i < args->input_count; i++)
		bad |= widen(&wide.in[i]);
	for (int i = 0; i < args->output_count; i++)
		bad |= widen(&wide.out[i]);
	int status = bad ? hspmd_fail_memory(err, "computing in bf16") : p->cpu->ops->run(p->cpu, op, &wide, err);
	/* The CPU never has weights in bf16 that are a copy of those that the optimizer updates. */
	int copy = 1 + (op == HSPMD_OP_UPDATE ? hspmd_optimizer_types[args->attr->update.optimizer]->moments : 0);
	if (op == HSPMD_OP_UPDATE && args->output_count > copy && !status)
		memcpy(wide.out[copy].data, wide.out[0].data, (size_t)elements(&wide.out[copy]) * sizeof(float));
	for (int i = 0; i < args->output_count; i++) {
		const struct hspmd_view *v = &args->out[i];
		if (wide.out[i].data == v->data)
			continue;
		for (int64_t k = 0; !status && k < elements(v); k++)
			((uint16_t *)v->data)[k] = hspmd_bf16_from_float(((float *)wide.out[i].data)[k]);
		free(wide.out[i].data);
	}
	for (int i = 0; i < args->input_count; i++)
		if (wide.in[i].data != args->in[i].data)
			free(wide.in[i].data);
	return status;
}

static int pretend_run(struct hspmd_device *dev, enum hspmd_opcode op, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	struct pretend *p = (struct pretend *)dev;
	struct hspmd_kernel_args real = *args;
	real.workspace = contents(p, args->workspace);
	for (int i = 0; i < args->input_count; i++)
		real.in[i].data = contents(p, args->in[i].data);
	for (int i = 0; i < args->output_count; i++)
		real.out[i].data = contents(p, args->out[i].data);
	/* A cast reads and writes any two types. */
	return op == HSPMD_OP_CAST ? p->cpu->ops->run(p->cpu, op, &real, err) : run_wide(p, op, &real, err);
}

static int pretend_synchronise(struct hspmd_device *dev, struct hspmd_error *err)
{
	struct pretend *p = (struct pretend *)dev;
	return p->copy_count ? pretend_wait_copy(dev, p->copies[p->copy_count - 1].number, err) : 0;
}

const struct hspmd_device_ops pretend_ops = {
	.name = "pretend",
	.open = pretend_open,
	.close = pretend_close,
	.allocate = pretend_allocate,
	.release = pretend_release,
	.allocate_host = pretend_allocate_host,
	.release_host = pretend_release_host,
	.to_device = pretend_to_device,
	.to_host = pretend_to_host,
	.zero = pretend_zero,
	.copy_beside = pretend_copy_beside,
	.wait_copy = pretend_wait_copy,
	.copy_box = pretend_copy_box,
	.workspace = pretend_workspace,
	.run = pretend_run,
	.synchronise = pretend_synchronise,
};
