/* SPDX-License-Identifier: Apache-2.0 */
/* Rates of the CPU device's matrix products against the most that the machine's multiply-add instructions reach:
 *
 *     products [ROUNDS [PART-OF-A-NAME]]
 *
 * One thread. Every round runs the multiply-adds and each product once for some milliseconds, in turns, and of each the best round counts:
 * what else runs on the machine only ever makes it slower. Time is the thread's own processor time. Prints a line for each product: rows,
 * inputs and outputs of a linear layer, Gflop/s and share of the peak of the layer, of its gradient of x and of its gradient of w. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/device/cpu/cpu.h"
#include "runtime/device/random.h"

#define ROUND_S 0.004

static const struct {
	const char *of;
	int64_t rows, in, out;
} layers[] = {
	{ "gpt2-11m q, k and v", 4096, 384, 1152 }, { "gpt2-11m projection", 4096, 384, 384 },   { "gpt2-11m up", 4096, 384, 1536 },
	{ "gpt2-11m down", 4096, 1536, 384 },       { "gpt2-11m logits", 4096, 384, 256 },       { "llama-11m up", 4096, 384, 1024 },
	{ "llama-11m down", 4096, 1024, 384 },      { "gpt2-124m q, k and v", 1024, 768, 2304 }, { "gpt2-124m up", 1024, 768, 3072 },
	{ "gpt2-124m down", 1024, 3072, 768 },      { "gpt2-124m logits", 1024, 768, 50304 },    { "square", 1024, 1024, 1024 },
};
enum { LAYERS = sizeof layers / sizeof *layers, OPS = 3 };
static const enum hspmd_opcode opcodes[OPS] = { HSPMD_OP_LINEAR, HSPMD_OP_LINEAR_GRAD_X, HSPMD_OP_LINEAR_GRAD_W };

/* Flops of `count` turns of multiply-adds in registers: as many chains as hide their latency, vectors as wide as the instruction set's. */
#define CHAINS 12
#define PEAK(name, bytes, ...)                                                                                                             \
	typedef float name##_vec __attribute__((vector_size(bytes)));                                                                      \
	__attribute__((noinline, ##__VA_ARGS__)) static double name(int64_t count, float kept[CHAINS])                                     \
	{                                                                                                                                  \
		name##_vec sum[CHAINS], factor = (name##_vec){ 0 } + kept[0], term = (name##_vec){ 0 } + kept[1];                          \
		for (int c = 0; c < CHAINS; c++)                                                                                           \
			sum[c] = (name##_vec){ 0 } + kept[c];                                                                              \
		for (int64_t i = 0; i < count; i++)                                                                                        \
			_Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++) sum[c] = sum[c] * factor + term;                         \
		for (int c = 0; c < CHAINS; c++)                                                                                           \
			kept[c] += 1e-30f * sum[c][0];                                                                                     \
		return 2.0 * CHAINS * (double)(bytes / sizeof(float)) * (double)count;                                                     \
	}
PEAK(peak_generic, 16)
#ifdef __x86_64__
PEAK(peak_avx2, 32, target("avx2,fma"))
PEAK(peak_avx512, 64, target("avx512f"))
#endif

static double thread_time(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One product: arguments of an operator, and the best rate so far. */
struct product {
	enum hspmd_opcode opcode;
	struct hspmd_op_attr attr;
	struct hspmd_kernel_args args;
	double flops, best;
};

static int make_view(struct hspmd_device *dev, struct hspmd_view *v, int64_t rows, int64_t columns, uint64_t stream,
                     struct hspmd_error *err)
{
	struct hspmd_op_attr attr = { .random = { .seed = 1, .stream = stream, .deviation = 1 } };
	*v = (struct hspmd_view){ .dtype = HSPMD_F32, .rank = 2, .shape = { rows, columns }, .full = { rows, columns } };
	v->data = dev->ops->allocate(dev, (size_t)(rows * columns) * sizeof(float), err);
	struct hspmd_kernel_args fill = { .attr = &attr, .output_count = 1, .out = { *v } };
	return v->data ? dev->ops->run(dev, HSPMD_OP_NORMAL, &fill, err) : -1;
}

/* The operators of one linear layer share x, w, y and their gradients. */
static int make_layer(struct hspmd_device *dev, struct product p[OPS], int64_t rows, int64_t in, int64_t out, struct hspmd_error *err)
{
	struct hspmd_view x, w, y;
	if (make_view(dev, &x, rows, in, 1, err) || make_view(dev, &w, out, in, 2, err) || make_view(dev, &y, rows, out, 3, err))
		return -1;
	const struct hspmd_view ins[OPS][2] = { { x, w }, { y, w }, { y, x } }, outs[OPS] = { y, x, w };
	for (int i = 0; i < OPS; i++) {
		p[i] = (struct product){ .opcode = opcodes[i], .flops = 2.0 * (double)rows * (double)in * (double)out };
		p[i].args = (struct hspmd_kernel_args){
			.input_count = 2, .output_count = 1, .in = { ins[i][0], ins[i][1] }, .out = { outs[i] }
		};
		p[i].args.attr = &p[i].attr;
		p[i].args.workspace_bytes = dev->ops->workspace(dev, p[i].opcode, &p[i].args);
		p[i].args.workspace = dev->ops->allocate(dev, p[i].args.workspace_bytes, err);
		if (!p[i].args.workspace)
			return -1;
	}
	return 0;
}

static void free_layer(struct hspmd_device *dev, struct product p[OPS])
{
	for (int i = 0; i < OPS; i++) {
		dev->ops->release(dev, p[i].args.workspace);
		dev->ops->release(dev, p[i].args.out[0].data);
	}
}

static int run_product(struct hspmd_device *dev, struct product *p, struct hspmd_error *err)
{
	double began = thread_time(), now = began, flops = 0;
	for (; now - began < ROUND_S; now = thread_time(), flops += p->flops)
		if (dev->ops->run(dev, p->opcode, &p->args, err))
			return -1;
	double rate = flops / (now - began);
	p->best = rate > p->best ? rate : p->best;
	return 0;
}

static double run_peak(double (*peak)(int64_t, float *), double best)
{
	float kept[CHAINS] = { 0.5f, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };
	double began = thread_time(), now = began, flops = 0;
	for (; now - began < ROUND_S / 2; now = thread_time())
		flops += peak(10000, kept);
	return flops / (now - began) > best ? flops / (now - began) : best;
}

int main(int argc, char **argv)
{
	struct hspmd_error err = { "out of memory" };
	const struct hspmd_cpu_kernel *const *f32, *const *f64;
	int rounds = argc > 1 ? atoi(argv[1]) : 30;
	if (argc > 3 || rounds < 1) {
		fprintf(stderr, "usage: products [ROUNDS [PART-OF-A-NAME]]\n");
		return 2;
	}
	struct hspmd_device *dev = NULL;
	const char *isa = hspmd_cpu_choose(&f32, &f64, &err);
	double (*peak)(int64_t, float *) = peak_generic, best = 0;
#ifdef __x86_64__
	peak = isa && !strcmp(isa, "avx512") ? peak_avx512 : isa && !strcmp(isa, "avx2") ? peak_avx2 : peak_generic;
#endif
	if (!isa || hspmd_cpu_ops.open(&dev, 0, 1, &err))
		goto fail;
	printf("%-22s %5s %5s %5s  %15s %15s %15s\n", isa, "rows", "in", "out", "y", "dx", "dw");
	for (int i = 0; i < LAYERS; i++) {
		struct product p[OPS] = { { 0 } };
		if (argc > 2 && !strstr(layers[i].of, argv[2]))
			continue;
		int status = make_layer(dev, p, layers[i].rows, layers[i].in, layers[i].out, &err);
		for (int round = 0; !status && round < rounds; round++) {
			best = run_peak(peak, best);
			for (int k = 0; !status && k < OPS; k++)
				status = run_product(dev, &p[k], &err);
		}
		free_layer(dev, p);
		if (status)
			goto fail;
		printf("%-22s %5lld %5lld %5lld ", layers[i].of, (long long)layers[i].rows, (long long)layers[i].in,
		       (long long)layers[i].out);
		for (int k = 0; k < OPS; k++)
			printf("   %6.1f %.3f", p[k].best / 1e9, p[k].best / best);
		printf("\n");
		fflush(stdout);
	}
	printf("%-22s %26.1f Gflop/s\n", "multiply-adds alone", best / 1e9);
	dev->ops->close(dev);
	return 0;
fail:
	fprintf(stderr, "products: %s\n", err.text);
	if (dev)
		dev->ops->close(dev);
	return 1;
}
