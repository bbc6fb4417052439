/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/step_inputs.h"

#include <string.h>

#include "common/alloc.h"
#include "runtime/exec/execute_internal.h"
#include "runtime/exec/parameters.h"

size_t hspmd_executor_input_bytes(const struct hspmd_program *p)
{
	return sizeof(struct hspmd_step_values) + (size_t)p->state_count * sizeof(((struct hspmd_step_values *)0)->streams[0]);
}

int hspmd_executor_open_inputs(struct hspmd_executor *ex, struct hspmd_error *err)
{
	struct hspmd_device *dev = ex->o.device;
	struct hspmd_step_inputs *in = &ex->inputs;
	bool streams = ex->o.job->rounding == HSPMD_ROUNDING_STOCHASTIC;
	in->bytes = sizeof *in->host + (streams ? (size_t)ex->p->state_count * sizeof in->host->streams[0] : 0);
	if (dev->ops->copy_direct &&
	    (!(in->host = dev->ops->allocate_host(dev, in->bytes, err)) || !(in->update = dev->ops->allocate(dev, in->bytes, err))))
		return -1;
	if (!(in->passes = dev->ops->allocate(dev, in->bytes, err)))
		return -1;
	ex->scalar = &in->passes->square_sum;
	return 0;
}

void hspmd_executor_close_inputs(struct hspmd_executor *ex)
{
	struct hspmd_device *dev = ex->o.device;
	struct hspmd_step_inputs *in = &ex->inputs;
	if (in->passes)
		dev->ops->release(dev, in->passes);
	if (in->update)
		dev->ops->release(dev, in->update);
	if (in->host)
		dev->ops->release_host(dev, in->host);
	if (in->samples)
		dev->ops->release_host(dev, in->samples);
	ex->scalar = NULL;
}

int hspmd_executor_make_input_room(struct hspmd_executor *ex, struct hspmd_prepared_program *of, bool *moved, struct hspmd_error *err)
{
	struct hspmd_step_inputs *in = &ex->inputs;
	struct hspmd_device *dev = ex->o.device;
	const struct hspmd_program *p = of->program;
	*moved = false;
	if (!in->host)
		return 0;
	if (!(of->input_at = hspmd_calloc(p->vote + 1, sizeof *of->input_at)))
		return hspmd_fail_memory(err, "preparing a program");
	for (size_t i = 0; i < p->vote; i++)
		of->input_at[i + 1] = of->input_at[i] + hspmd_program_read_size(p, &p->instructions[i]);
	if (of->input_at[p->vote] <= in->capacity)
		return 0;
	char *larger = dev->ops->allocate_host(dev, of->input_at[p->vote], err);
	if (!larger)
		return -1;
	if (in->samples)
		dev->ops->release_host(dev, in->samples);
	in->samples = larger;
	in->capacity = of->input_at[p->vote];
	*moved = true;
	return 0;
}

/* loss_factor: of the step whose passes take these values. */
static void fill(const struct hspmd_executor *ex, int64_t step, double square_sum, double loss_factor)
{
	const struct hspmd_job *job = ex->o.job;
	struct hspmd_step_values *v = ex->inputs.host;
	struct hspmd_optimizer_update u = hspmd_optimizer_update(ex->p->optimizer, job->optimizer.values, hspmd_job_lr(job, step),
	                                                         job->optimizer.weight_decay, step + 1);
	v->square_sum = square_sum;
	v->clip = job->optimizer.clip;
	v->loss_factor = loss_factor;
	v->keep = u.keep;
	memcpy(v->rates, u.rates, sizeof v->rates);
	for (int i = 0; ex->inputs.bytes > sizeof *v && i < ex->p->state_count; i++) {
		struct hspmd_op_attr attr = { 0 };
		hspmd_parameters_rounding(&ex->p->states[i], job, step + 1, &attr);
		v->streams[i] = attr.random.stream;
	}
}

int hspmd_executor_stage_inputs(struct hspmd_executor *ex, struct hspmd_error *err)
{
	const struct hspmd_program *p = ex->p;
	struct hspmd_step_inputs *in = &ex->inputs;
	if (!in->host)
		return 0;
	fill(ex, ex->step, 0, ex->loss_factor);
	for (size_t i = 0; i < p->vote; i++) {
		size_t bytes = hspmd_program_read_size(p, &p->instructions[i]);
		char *to = in->samples + ex->now->input_at[i];
		const char *from = bytes ? hspmd_executor_take_input(ex, bytes) : NULL;
		if (from)
			memcpy(to, from, bytes);
		else if (bytes && hspmd_executor_read_input(ex, p, &p->instructions[i], ex->step, to, err))
			return -1;
	}
	return 0;
}

int hspmd_executor_take_values(struct hspmd_executor *ex, struct hspmd_error *err)
{
	struct hspmd_device *dev = ex->o.device;
	const struct hspmd_step_inputs *in = &ex->inputs;
	return in->host ? dev->ops->copy_direct(dev, in->passes, in->host, in->bytes, err)
	                : dev->ops->zero(dev, ex->scalar, sizeof *ex->scalar, err);
}

int hspmd_executor_hand_over_values(struct hspmd_executor *ex, struct hspmd_error *err)
{
	struct hspmd_device *dev = ex->o.device;
	const struct hspmd_step_inputs *in = &ex->inputs;
	return in->host ? dev->ops->copy_direct(dev, in->update, in->passes, in->bytes, err) : 0;
}

int hspmd_executor_set_update_values(struct hspmd_executor *ex, int64_t step, double square_sum, struct hspmd_error *err)
{
	struct hspmd_device *dev = ex->o.device;
	const struct hspmd_step_inputs *in = &ex->inputs;
	if (!in->host)
		return 0;
	fill(ex, step, square_sum, 1);
	return dev->ops->to_device(dev, in->update, in->host, in->bytes, err);
}
