/* SPDX-License-Identifier: Apache-2.0 */
/* Samples for a net whose data are unknown. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/input/data.h"
#include "runtime/measure/measure.h"
#include "runtime/op/op.h"

struct random_input {
	char *name;
	bool integers;
	int64_t values; /* integers are below it */
	int64_t width;  /* elements of a position */
};

struct hspmd_random_samples {
	int count;
	struct random_input inputs[];
};

/* The number of rows or classes among which an operator's integers choose; of other operators, 2: any net takes zeros and ones. */
static int64_t values_of(const struct hspmd_graph *g, const struct hspmd_op *op)
{
	const struct hspmd_op_type *type = hspmd_op_types[op->opcode];
	return type->choices ? type->choices(g, op) : 2;
}

/* The least of what its forward operators take. */
static int64_t values_below(const struct hspmd_graph *g, int tensor)
{
	int64_t least = INT32_MAX;
	for (size_t i = 0; i < g->op_count; i++)
		for (int k = 0; !g->ops[i].backward && k < g->ops[i].input_count; k++)
			if (g->ops[i].in[k] == tensor && values_of(g, &g->ops[i]) < least)
				least = values_of(g, &g->ops[i]);
	return least;
}

struct hspmd_random_samples *hspmd_random_samples_create(const struct hspmd_graph *g, struct hspmd_error *err)
{
	struct hspmd_random_samples *s = calloc(1, sizeof *s + g->tensor_count * sizeof *s->inputs);
	for (size_t i = 0; s && i < g->tensor_count; i++) {
		const struct hspmd_tensor *t = &g->tensors[i];
		if (t->role != HSPMD_TENSOR_INPUT)
			continue;
		struct random_input *in = &s->inputs[s->count++];
		*in = (struct random_input){ strdup(t->name), t->dtype == HSPMD_I32, 0, 1 };
		in->values = values_below(g, (int)i);
		for (int d = 2; d < t->shape.rank; d++)
			in->width *= t->shape.dim[d];
		if (!in->name) {
			hspmd_random_samples_destroy(s);
			s = NULL;
		}
	}
	if (!s)
		hspmd_fail_memory(err, "making up samples");
	return s;
}

void hspmd_random_samples_destroy(struct hspmd_random_samples *s)
{
	for (int i = 0; s && i < s->count; i++)
		free(s->inputs[i].name);
	free(s);
}

int hspmd_random_samples_read(void *samples, const char *name, int64_t number, int64_t start, int64_t count, void *to,
                              struct hspmd_error *err)
{
	const struct hspmd_random_samples *s = samples;
	int i = 0;
	while (i < s->count && strcmp(s->inputs[i].name, name))
		i++;
	if (i == s->count)
		return hspmd_fail(err, "the net has no input %s", name);
	if (hspmd_input_is_noise(name)) {
		hspmd_sample_noise(1, true, number, start, count, to);
		return 0;
	}
	const struct random_input *in = &s->inputs[i];
	uint64_t x = 0x9e3779b97f4a7c15u * ((uint64_t)number << 32 | (uint64_t)(start + 1));
	for (int64_t e = 0; e < count * in->width; e++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		if (in->integers)
			((int32_t *)to)[e] = (int32_t)(x % (uint64_t)in->values);
		else
			((float *)to)[e] = (float)(x >> 40) / (float)(1 << 24);
	}
	return 0;
}
