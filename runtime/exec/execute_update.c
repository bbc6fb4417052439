/* SPDX-License-Identifier: Apache-2.0 */
/* The end of an executor's step: the update of the parameters. */
#include <math.h>

#include "common/clock.h"
#include "runtime/exec/execute_internal.h"
#include "runtime/exec/parameters.h"
#include "runtime/op/op.h"

/* `count` elements starting with `first`, as a row. */
static struct hspmd_view part_of(const struct hspmd_view *v, int64_t first, int64_t count)
{
	return (struct hspmd_view){ .data = v->data ? (char *)v->data + (size_t)first * hspmd_dtype_bytes(v->dtype) : NULL,
		                    .dtype = v->dtype,
		                    .rank = v->data ? 1 : -1,
		                    .shape = { count },
		                    .full = { count } };
}

/* Update one parameter, block by block. *block: number of its first block; on return, of the one after its last. */
static int update_persistent(struct hspmd_executor *ex, const struct hspmd_instruction *in, const struct hspmd_op_attr *attr,
                             uint64_t *block, struct hspmd_error *err)
{
	const struct hspmd_slot_type *slot_type = &ex->p->slot_types[ex->p->slots[in->out[0]].slot_type];
	int moments = hspmd_optimizer_types[ex->p->optimizer]->moments;
	int64_t size = (int64_t)hspmd_dtype_bytes(slot_type->dtype), elements = (int64_t)slot_type->bytes / size,
	        most = (int64_t)HSPMD_PERSISTENT_BLOCK / size;
	for (int64_t first = 0; first < elements; first += most, ++*block) {
		int64_t count = elements - first < most ? elements - first : most;
		struct hspmd_kernel_args args;
		hspmd_program_kernel_args(ex->p, in, ex->bases, &args);
		for (int k = 0; k < args.input_count; k++)
			args.in[k] = part_of(&args.in[k], first, count);
		for (int k = 0; k < args.output_count; k++)
			args.out[k] = part_of(&args.out[k], first, count);
		args.attr = attr;
		if (!hspmd_persistent_block(ex->o.persistent, *block,
		                            (void *const[]){ args.out[0].data, args.out[1].data, moments > 1 ? args.out[2].data : NULL },
		                            (size_t)(count * size)))
			continue;
		if (ex->o.device->ops->run(ex->o.device, in->opcode, &args, err))
			return hspmd_error_prefix(err, "operator %s, layer %d", hspmd_opcode_names[in->opcode], in->layer);
		hspmd_persistent_block_done(ex->o.persistent, *block);
	}
	return 0;
}

/* What all updates of a step share. */
struct step_update {
	int64_t step;
	double scale; /* of the gradients */
};

/* The attributes of one parameter's update. */
static struct hspmd_op_attr *set_update(struct hspmd_executor *ex, const struct hspmd_instruction *in, const struct step_update *of)
{
	const struct hspmd_job *job = ex->o.job;
	const struct hspmd_program_state *s = &ex->p->states[in->step];
	struct hspmd_op_attr *own = &ex->updates[in->step];
	*own = (struct hspmd_op_attr){ .scale = of->scale };
	own->update = hspmd_optimizer_update(ex->p->optimizer, job->optimizer.values, hspmd_job_lr(job, of->step),
	                                     s->decay && hspmd_job_decays(job, s->name) ? job->optimizer.weight_decay : 0, of->step + 1);
	own->history = ex->p->graph->tensors[s->tensor].history;
	hspmd_parameters_rounding(s, job, of->step + 1, own);
	if (ex->inputs.host)
		own->random.stream = (uint64_t)in->step;
	return own;
}

/* Asks for all updates, group by group, and waits for none. */
static int update_beside(struct hspmd_executor *ex, const struct step_update *of, struct hspmd_error *err)
{
	const struct hspmd_update_groups *g = ex->now->updates;
	for (int group = 0; group < g->groups; group++) {
		int count = 0;
		for (size_t u = g->begin[group]; u < g->begin[group + 1]; u++) {
			const struct hspmd_instruction *in = &ex->p->instructions[g->update[u]];
			hspmd_executor_set_args(ex, in, set_update(ex, in, of), &ex->all[count++]);
		}
		if (ex->o.device->ops->run_beside(ex->o.device, HSPMD_OP_UPDATE, ex->all, count, group, err))
			return hspmd_error_prefix(err, "operator %s", hspmd_opcode_names[HSPMD_OP_UPDATE]);
	}
	return 0;
}

static int update_in_order(struct hspmd_executor *ex, const struct step_update *of, struct hspmd_error *err)
{
	double measured = hspmd_now();
	uint64_t block = 0;
	int count = 0;
	for (size_t i = ex->p->vote; i < ex->p->instruction_count; i++) {
		const struct hspmd_instruction *in = &ex->p->instructions[i];
		if (in->kind != HSPMD_INSTRUCTION_UPDATE)
			continue;
		const struct hspmd_op_attr *own = set_update(ex, in, of);
		if (ex->all && !ex->o.persistent) {
			hspmd_executor_set_args(ex, in, own, &ex->all[count++]);
			continue;
		}
		int status = ex->o.persistent ? update_persistent(ex, in, own, &block, err) : hspmd_executor_run_kernel(ex, in, own, err);
		if (status || hspmd_executor_record_time(ex, i, &measured, err))
			return -1;
	}
	if (count && ex->o.device->ops->run_batch(ex->o.device, HSPMD_OP_UPDATE, ex->all, count, err))
		return hspmd_error_prefix(err, "operator %s", hspmd_opcode_names[HSPMD_OP_UPDATE]);
	return 0;
}

static int ask_for_updates(struct hspmd_executor *ex, const struct step_update *of, struct hspmd_error *err)
{
	return ex->now->updates ? update_beside(ex, of, err) : update_in_order(ex, of, err);
}

/* All numbers come from the values that the device has. */
static int capture_updates(void *executor, size_t *i, struct hspmd_error *err)
{
	struct hspmd_executor *ex = executor;
	(void)i;
	return ask_for_updates(ex, &(struct step_update){ ex->step, 1 }, err);
}

int hspmd_executor_update(struct hspmd_executor *ex, int64_t step, double square_sum, bool *beside, struct hspmd_error *err)
{
	double clip = ex->o.job->optimizer.clip, norm = sqrt(square_sum);
	struct step_update of = { step, clip > 0 && norm > clip ? clip / norm : 1 };
	*beside = ex->now->updates;
	ex->torn = true;
	int launched = hspmd_replay_run_updates(ex->now->replay, *beside, capture_updates, ex, err);
	if (launched < 0 || (!launched && ask_for_updates(ex, &of, err)))
		return -1;
	ex->copied = true;
	ex->gathered = -1;
	return 0;
}

int hspmd_executor_commit(struct hspmd_executor *ex, int64_t step, const struct hspmd_totals *all, struct hspmd_error *err)
{
	bool beside;
	if (ex->o.persistent)
		hspmd_persistent_update(ex->o.persistent, (const double *)all);
	if (hspmd_executor_set_update_values(ex, step, all->square_sum, err) ||
	    hspmd_executor_update(ex, step, all->square_sum, &beside, err))
		return -1;
	if (ex->o.persistent)
		hspmd_persistent_updated(ex->o.persistent);
	ex->updating = beside;
	if (!beside && ex->o.device->ops->synchronise(ex->o.device, err))
		return -1;
	ex->torn = false;
	return 0;
}
