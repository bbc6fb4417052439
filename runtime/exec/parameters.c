/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/parameters.h"

#include <string.h>
#include <xxhash.h>

/* A parameter's own stream of random numbers. use 0: for its initial values; otherwise for rounding its copy after use - 1 updates. */
static uint64_t stream_of(const struct hspmd_program_state *s, uint64_t use)
{
	return XXH3_64bits_withSeed(s->name, strlen(s->name), use);
}

static int fill(const struct hspmd_program *p, struct hspmd_device *dev, char *const *bases, enum hspmd_opcode opcode, int slot,
                const struct hspmd_op_attr *attr, struct hspmd_error *err)
{
	struct hspmd_kernel_args args = { .attr = attr, .output_count = 1 };
	args.out[0] = hspmd_program_slot_view(p, slot, bases);
	return dev->ops->run(dev, opcode, &args, err);
}

int hspmd_parameters_initialise(const struct hspmd_program *p, struct hspmd_device *dev, char *const *bases, const struct hspmd_job *job,
                                struct hspmd_error *err)
{
	static const struct hspmd_op_attr zero;
	for (int i = 0; i < p->state_count; i++) {
		const struct hspmd_program_state *s = &p->states[i];
		const struct hspmd_tensor *t = &p->graph->tensors[s->tensor];
		if (s->param < 0)
			continue;
		struct hspmd_op_attr attr = { .scale = t->init_mean };
		attr.random.seed = job->seed;
		attr.random.stream = stream_of(s, 0);
		attr.random.mean = t->init_mean;
		attr.random.deviation = t->init_std;
		int status = fill(p, dev, bases, t->init_std > 0 ? HSPMD_OP_NORMAL : HSPMD_OP_FILL, s->param, &attr, err);
		for (int k = 0; !status && k < hspmd_optimizer_types[p->optimizer]->moments; k++)
			status = fill(p, dev, bases, HSPMD_OP_FILL, s->moments[k], &zero, err);
		if (status)
			return -1;
	}
	return 0;
}

void hspmd_parameters_rounding(const struct hspmd_program_state *s, const struct hspmd_job *job, int64_t updates,
                               struct hspmd_op_attr *attr)
{
	attr->stochastic = job->rounding == HSPMD_ROUNDING_STOCHASTIC;
	attr->random.seed = job->seed;
	attr->random.stream = attr->stochastic ? stream_of(s, (uint64_t)updates + 1) : 0;
}

int hspmd_parameters_copy(const struct hspmd_program *p, struct hspmd_device *dev, char *const *bases, const struct hspmd_job *job,
                          int64_t updates, struct hspmd_error *err)
{
	for (int i = 0; i < p->state_count; i++) {
		const struct hspmd_program_state *s = &p->states[i];
		struct hspmd_op_attr attr = { 0 };
		struct hspmd_kernel_args args = { .attr = &attr, .input_count = 1, .output_count = 1 };
		if (s->copy < 0)
			continue;
		hspmd_parameters_rounding(s, job, updates, &attr);
		args.in[0] = hspmd_program_slot_view(p, s->param, bases);
		args.out[0] = hspmd_program_slot_view(p, s->copy, bases);
		if (dev->ops->run(dev, HSPMD_OP_CAST, &args, err))
			return hspmd_error_prefix(err, "copy of %s", s->name);
	}
	return 0;
}
