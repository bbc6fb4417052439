/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/rounding_case.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <cmocka.h>

#include "common/alloc.h"
#include "common/half.h"
#include "runtime/device/rounding.h"
#include "runtime/op/op.h"

/* ---- a model's parameters */

struct parameter {
	char *name;
	int64_t elements;
	uint32_t *master; /* bits */
	uint16_t *copy;
	char *has_master, *has_copy; /* per element */
	bool copied;                 /* true if some device has a copy */
};

struct rounding_case {
	int count;
	struct parameter *of;
};

struct rounding_case *rounding_case_create(void)
{
	struct rounding_case *c = calloc(1, sizeof *c);
	assert_non_null(c);
	return c;
}

void rounding_case_destroy(struct rounding_case *c)
{
	for (int i = 0; i < c->count; i++) {
		free(c->of[i].name);
		free(c->of[i].master);
		free(c->of[i].copy);
		free(c->of[i].has_master);
		free(c->of[i].has_copy);
	}
	free(c->of);
	free(c);
}

static int make_room(struct rounding_case *c, const struct hspmd_program *p, struct hspmd_error *err)
{
	if (c->of)
		return 0;
	c->of = hspmd_calloc((size_t)p->state_count, sizeof *c->of);
	for (int i = 0; c->of && i < p->state_count; i++, c->count++) {
		struct parameter *of = &c->of[i];
		of->elements = hspmd_shape_elements(&p->graph->tensors[p->states[i].tensor].shape);
		size_t n = (size_t)of->elements;
		of->name = strdup(p->states[i].name);
		of->master = hspmd_calloc(n, sizeof *of->master);
		of->copy = hspmd_calloc(n, sizeof *of->copy);
		of->has_master = calloc(n, 1);
		of->has_copy = calloc(n, 1);
		if (!of->name || !of->master || !of->copy || !of->has_master || !of->has_copy)
			return hspmd_fail_memory(err, "collecting parameters");
	}
	return c->of ? 0 : hspmd_fail_memory(err, "collecting parameters");
}

/* Returns the index in the whole parameter of element i of a box, walking the dimensions one by one. */
static int64_t index_in_whole(const struct hspmd_slot_type *slot_type, int64_t i)
{
	int64_t index = 0, step = 1;
	for (int d = slot_type->box.rank - 1; d >= 0; d--) {
		int64_t size = slot_type->box.hi[d] - slot_type->box.lo[d];
		index += (slot_type->box.lo[d] + i % size) * step;
		step *= slot_type->full.dim[d];
		i /= size;
	}
	return index;
}

/* Puts the elements of a slot where they belong; elements of 4 bytes are masters, of 2 copies. */
static int take_slot(struct parameter *of, const struct hspmd_program *p, int slot, const void *data, struct hspmd_device *dev,
                     struct hspmd_error *err)
{
	const struct hspmd_slot_type *slot_type = &p->slot_types[p->slots[slot].slot_type];
	bool master = slot_type->dtype == HSPMD_F32;
	char *host = malloc(slot_type->bytes), *has = master ? of->has_master : of->has_copy,
	     *to = master ? (char *)of->master : (char *)of->copy;
	size_t bytes = hspmd_dtype_bytes(slot_type->dtype);
	int status = host ? dev->ops->to_host(dev, host, data, slot_type->bytes, err) : hspmd_fail_memory(err, "collecting parameters");
	for (int64_t i = 0; !status && i < (int64_t)(slot_type->bytes / bytes); i++) {
		int64_t at = index_in_whole(slot_type, i);
		if (has[at] && memcmp(to + (size_t)at * bytes, host + (size_t)i * bytes, bytes))
			status = hspmd_fail(err, "%s, element %" PRId64 ": device %d holds another %s than one before", of->name, at,
			                    p->device, master ? "master" : "copy");
		has[at] = 1;
		memcpy(to + (size_t)at * bytes, host + (size_t)i * bytes, bytes);
	}
	of->copied |= !master;
	free(host);
	return status;
}

int rounding_case_take(void *context, const struct hspmd_program *p, const struct hspmd_executor *executor, struct hspmd_device *device,
                       struct hspmd_error *err)
{
	struct rounding_case *c = context;
	if (make_room(c, p, err))
		return -1;
	for (int i = 0; i < p->state_count; i++) {
		const struct hspmd_program_state *s = &p->states[i];
		const int slots[] = { s->param, s->copy, s->used };
		for (int k = 0; k < 3; k++)
			if (slots[k] >= 0 && take_slot(&c->of[i], p, slots[k], hspmd_executor_slot_data(executor, slots[k]), device, err))
				return -1;
	}
	return 0;
}

static float float_of(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

int rounding_case_check(const struct rounding_case *c, uint64_t seed, int64_t updates, struct hspmd_error *err)
{
	int copied = 0;
	for (int i = 0; i < c->count; i++) {
		const struct parameter *of = &c->of[i];
		uint64_t stream = XXH3_64bits_withSeed(of->name, strlen(of->name), (uint64_t)updates + 1);
		copied += of->copied;
		for (int64_t e = 0; e < of->elements; e++) {
			uint32_t word[4];
			hspmd_random_words(seed, stream, (uint64_t)e / 4, word);
			if (!of->has_master[e] || (of->copied && !of->has_copy[e]))
				return hspmd_fail(err, "%s, element %" PRId64 ": nobody has it", of->name, e);
			uint16_t want = hspmd_round_bf16(float_of(of->master[e]), word[e % 4] >> 16);
			if (of->copied && of->copy[e] != want)
				return hspmd_fail(err, "%s, element %" PRId64 " of %" PRId64 ": the copy of %.9g is %04x, not %04x",
				                  of->name, e, of->elements, (double)float_of(of->master[e]), of->copy[e], want);
		}
	}
	return copied ? 0 : hspmd_fail(err, "no parameter has a copy");
}

int rounding_case_compare(const struct rounding_case *a, const struct rounding_case *b, struct hspmd_error *err)
{
	for (int i = 0; i < a->count; i++) {
		const struct parameter *x = &a->of[i], *y = &b->of[i];
		if (memcmp(x->master, y->master, (size_t)x->elements * sizeof *x->master))
			return hspmd_fail(err, "%s: other masters", x->name);
		if (memcmp(x->copy, y->copy, (size_t)x->elements * sizeof *x->copy))
			return hspmd_fail(err, "%s: other copies", x->name);
	}
	return a->count == b->count ? 0 : hspmd_fail(err, "%d parameters and %d", a->count, b->count);
}

void rounding_case_count(const struct rounding_case *c, int64_t *moved, int64_t *all)
{
	*moved = *all = 0;
	for (int i = 0; i < c->count; i++)
		for (int64_t e = 0; c->of[i].copied && e < c->of[i].elements; e++, ++*all)
			*moved += c->of[i].copy[e] != hspmd_bf16_from_float(float_of(c->of[i].master[e]));
}

/* ---- operators */

/* The full tensor, and parts along the first, the last, the middle and two dimensions. */
static const struct hspmd_view views[] = {
	{ .rank = 1, .shape = { 1031 }, .full = { 1031 } },
	{ .rank = 1, .shape = { 333 }, .start = { 17 }, .full = { 1031 } },
	{ .rank = 2, .shape = { 13, 101 }, .start = { 6, 0 }, .full = { 40, 101 } },
	{ .rank = 2, .shape = { 40, 37 }, .start = { 0, 3 }, .full = { 40, 101 } },
	{ .rank = 2, .shape = { 300, 1 }, .start = { 5, 2 }, .full = { 400, 5 } },
	{ .rank = 3, .shape = { 24, 3, 10 }, .start = { 0, 0, 14 }, .full = { 24, 3, 24 } },
	{ .rank = 3, .shape = { 2, 9, 24 }, .start = { 1, 3, 0 }, .full = { 4, 20, 24 } },
	{ .rank = 3, .shape = { 3, 7, 96 }, .start = { 1, 2, 32 }, .full = { 8, 20, 160 } },
	{ .rank = 2, .shape = { 64, 256 }, .start = { 64, 256 }, .full = { 256, 1024 } },
};
#define VIEWS (sizeof views / sizeof *views)

static void must(int status, const struct hspmd_error *err)
{
	if (status)
		fail_msg("%s", err->text);
}

static int64_t elements_of(const struct hspmd_view *v)
{
	int64_t n = 1;
	for (int d = 0; d < v->rank; d++)
		n *= v->shape[d];
	return n;
}

static struct hspmd_view as(struct hspmd_view v, enum hspmd_dtype dtype, void *data)
{
	v.dtype = dtype;
	v.data = data;
	return v;
}

static struct hspmd_device *open_cpu(void)
{
	struct hspmd_error err;
	struct hspmd_device *dev;
	must(hspmd_device_find("cpu", &err)->open(&dev, 0, 1, &err), &err);
	return dev;
}

/* Draws normally distributed numbers, some replaced with special values. */
static void draw(float *x, int64_t n, uint64_t stream)
{
	static const float special[] = { NAN,   -NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 0x1.fe0002p127f, 0,
		                         -0.0f, 1,    -2.5f,    1e-40f,    -1e-45f, FLT_MIN,  0x1.ff8p-126f };
	for (int64_t i = 0; i < n; i++)
		x[i] = i % 29 == 7 ? special[(uint64_t)i / 29 % (sizeof special / sizeof *special)]
		                   : (float)hspmd_random_normal(4, stream, (uint64_t)i);
}

static void *on_gpu(struct hspmd_device *gpu, const void *host, size_t bytes)
{
	struct hspmd_error err;
	void *data = gpu->ops->allocate(gpu, bytes, &err);
	must(data ? gpu->ops->to_device(gpu, data, host, bytes, &err) : -1, &err);
	return data;
}

/* Returns a host buffer's part as rounded by the CPU device; malloc'd. */
static uint16_t *round_on_cpu(struct hspmd_device *cpu, const struct hspmd_view *v, float *x, const struct hspmd_op_attr *attr)
{
	struct hspmd_error err;
	uint16_t *halves = malloc((size_t)elements_of(v) * sizeof *halves);
	assert_non_null(halves);
	struct hspmd_kernel_args args = {
		.attr = attr, .input_count = 1, .output_count = 1, .in = { as(*v, HSPMD_F32, x) }, .out = { as(*v, HSPMD_BF16, halves) }
	};
	must(cpu->ops->run(cpu, HSPMD_OP_CAST, &args, &err), &err);
	return halves;
}

static void compare(struct hspmd_device *gpu, const char *what, size_t view, const void *got, const uint16_t *want)
{
	struct hspmd_error err;
	int64_t n = elements_of(&views[view]);
	uint16_t *halves = malloc((size_t)n * sizeof *halves);
	assert_non_null(halves);
	must(gpu->ops->to_host(gpu, halves, got, (size_t)n * sizeof *halves, &err), &err);
	for (int64_t i = 0; i < n; i++)
		if (halves[i] != want[i])
			fail_msg("%s, view %zu: element %" PRId64 " is %04x, not %04x", what, view, i, halves[i], want[i]);
	free(halves);
}

static void check_casts(struct hspmd_device *gpu, struct hspmd_device *cpu)
{
	struct hspmd_error err;
	for (size_t v = 0; v < VIEWS; v++) {
		size_t n = (size_t)elements_of(&views[v]);
		struct hspmd_op_attr attr = { .stochastic = true, .random = { .seed = 3, .stream = v } };
		float *x = malloc(n * sizeof *x);
		assert_non_null(x);
		draw(x, (int64_t)n, v);
		uint16_t *want = round_on_cpu(cpu, &views[v], x, &attr);
		void *wide = on_gpu(gpu, x, n * sizeof *x), *half = on_gpu(gpu, x, n * sizeof *want);
		struct hspmd_kernel_args args = { .attr = &attr,
			                          .input_count = 1,
			                          .output_count = 1,
			                          .in = { as(views[v], HSPMD_F32, wide) },
			                          .out = { as(views[v], HSPMD_BF16, half) } };
		must(gpu->ops->run(gpu, HSPMD_OP_CAST, &args, &err), &err);
		compare(gpu, "cast", v, half, want);
		gpu->ops->release(gpu, wide);
		gpu->ops->release(gpu, half);
		free(want);
		free(x);
	}
}

/* Checks more updates than fit into one launch, some without a copy. one_by_one: each in a launch of its own. */
static void check_updates(struct hspmd_device *gpu, struct hspmd_device *cpu, bool one_by_one)
{
	enum { COUNT = 50 };
	static struct hspmd_kernel_args all[COUNT];
	static struct hspmd_op_attr attr[COUNT];
	struct hspmd_error err;
	for (int i = 0; i < COUNT; i++) {
		const struct hspmd_view *v = &views[(size_t)i % VIEWS];
		size_t n = (size_t)elements_of(v);
		float *x = malloc(n * sizeof *x);
		assert_non_null(x);
		attr[i] = (struct hspmd_op_attr){ .scale = 0.5,
			                          .stochastic = true,
			                          .update = hspmd_optimizer_update(HSPMD_OPTIMIZER_ADAMW, (double[]){ 0.9, 0.95, 1e-8 },
			                                                           0.01, 0, 3),
			                          .random = { .seed = 6, .stream = 1000 + (uint64_t)i } };
		all[i] = (struct hspmd_kernel_args){ .attr = &attr[i], .input_count = 1, .output_count = i % 5 == 4 ? 3 : 4 };
		draw(x, (int64_t)n, (uint64_t)i);
		for (int k = 0; k < 5; k++) {
			for (size_t e = 0; k == 3 && e < n; e++)
				x[e] = fabsf(x[e]); /* the second moment */
			struct hspmd_view *to = k ? &all[i].out[k - 1] : &all[i].in[0];
			*to = as(*v, k == 4 ? HSPMD_BF16 : HSPMD_F32, on_gpu(gpu, x, n * (k == 4 ? sizeof(uint16_t) : sizeof *x)));
		}
		free(x);
	}
	if (one_by_one)
		for (int i = 0; i < COUNT; i++)
			must(gpu->ops->run(gpu, HSPMD_OP_UPDATE, &all[i], &err), &err);
	else
		must(gpu->ops->run_batch(gpu, HSPMD_OP_UPDATE, all, COUNT, &err), &err);
	for (int i = 0; i < COUNT; i++) {
		size_t view = (size_t)i % VIEWS, n = (size_t)elements_of(&views[view]);
		float *master = malloc(n * sizeof *master);
		assert_non_null(master);
		must(gpu->ops->to_host(gpu, master, all[i].out[0].data, n * sizeof *master, &err), &err);
		uint16_t *want = round_on_cpu(cpu, &views[view], master, &attr[i]);
		if (all[i].output_count > 3)
			compare(gpu, "adamw", view, all[i].out[3].data, want);
		free(want);
		free(master);
		for (int k = 0; k < 5; k++)
			gpu->ops->release(gpu, k ? all[i].out[k - 1].data : all[i].in[0].data);
	}
}

void rounding_case_operators(struct hspmd_device *gpu)
{
	struct hspmd_device *cpu = open_cpu();
	check_casts(gpu, cpu);
	check_updates(gpu, cpu, true);
	check_updates(gpu, cpu, false);
	cpu->ops->close(cpu);
}
