/* SPDX-License-Identifier: Apache-2.0 */
/* One step of an executor: its passes, the vote, and the update. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "runtime/exec/execute_internal.h"
#include "runtime/exec/parameters.h"
#include "runtime/op/op.h"

_Static_assert(HSPMD_TOTALS_COUNT == HSPMD_PERSISTENT_TOTALS, "a step's totals outlive the process");

#define VOTE_TAG ((UINT64_C(1) << 44) - 256)

/* ---- instructions */

static size_t slot_bytes(const struct hspmd_executor *ex, int slot)
{
	return slot < 0 ? 0 : ex->p->slot_types[ex->p->slots[slot].slot_type].bytes;
}

/* Address of a slot of the program that runs; NULL: no slot. */
static void *slot_data(const struct hspmd_executor *ex, int slot)
{
	return slot < 0 ? NULL : ex->bases[ex->p->slots[slot].memory] + ex->p->slots[slot].offset;
}

static int read_samples(struct hspmd_executor *ex, const struct hspmd_instruction *in, int64_t step, struct hspmd_error *err)
{
	size_t bytes = slot_bytes(ex, in->out[0]);
	const char *from = hspmd_executor_take_input(ex, bytes);
	if (!from && hspmd_executor_read_input(ex, ex->p, in, step, ex->samples, err))
		return -1;
	return ex->o.device->ops->to_device(ex->o.device, slot_data(ex, in->out[0]), from ? from : ex->samples, bytes, err);
}

void hspmd_executor_set_args(const struct hspmd_executor *ex, const struct hspmd_instruction *in, const struct hspmd_op_attr *attr,
                             struct hspmd_kernel_args *args)
{
	hspmd_program_kernel_args(ex->p, in, ex->bases, args);
	if (attr)
		args->attr = attr;
	if (in->kind == HSPMD_INSTRUCTION_NORM) {
		args->out[0].data = ex->scalar;
		args->out[0].accumulate = true;
	}
	args->workspace = ex->workspace;
	args->workspace_bytes = ex->p->workspace_bytes;
	args->prepared = ex->now && ex->now->calls ? ex->now->calls[in - ex->p->instructions] : NULL;
}

static int run_kernel(struct hspmd_executor *ex, const struct hspmd_instruction *in, const struct hspmd_op_attr *attr,
                      struct hspmd_error *err)
{
	struct hspmd_kernel_args args;
	struct hspmd_op_attr scaled;
	if (ex->loss_factor != 1 && hspmd_replay_is_loss(in)) {
		scaled = *in->attr;
		scaled.scale *= ex->loss_factor;
		attr = &scaled;
	}
	hspmd_executor_set_args(ex, in, attr, &args);
	if (ex->o.device->ops->run(ex->o.device, in->opcode, &args, err))
		return hspmd_error_prefix(err, "operator %s, layer %d", hspmd_opcode_names[in->opcode], in->layer);
	return 0;
}

/* ---- communication */

static struct hspmd_engine_job job_of(const struct hspmd_executor *ex, const struct hspmd_instruction *in)
{
	const struct hspmd_program *p = ex->p;
	const struct hspmd_slot_type *slot_type = &p->slot_types[p->slots[in->in[0] >= 0 ? in->in[0] : in->out[0]].slot_type];
	const struct hspmd_slot_type *choice = in->input_count > 1 ? &p->slot_types[p->slots[in->in[1]].slot_type] : NULL;
	return (struct hspmd_engine_job){
		.transfer = in->transfer,
		.step = &in->transfer->steps[in->step],
		.dtype = slot_type->dtype,
		.in = slot_data(ex, in->in[0]),
		.out = slot_data(ex, in->out[0]),
		.in_bytes = slot_bytes(ex, in->in[0]),
		.out_bytes = slot_bytes(ex, in->out[0]),
		.choice = { choice ? slot_data(ex, in->in[1]) : NULL, choice ? choice->box : (struct hspmd_box){ 0 } },
		.tag = in->tag,
		.tensor = p->graph->tensors[slot_type->tensor].name,
		.micro_batch = in->micro_batch,
		.number = (int)(in - p->instructions),
	};
}

/* Gradients (and parameters, which return the same way) have their own engine, so that communication that passes wait for is never
 * queued behind a sum whose peers are late. */
static struct hspmd_engine *engine_of(const struct hspmd_executor *ex, const struct hspmd_instruction *in)
{
	if (in->kind != HSPMD_INSTRUCTION_COMM)
		return NULL;
	return in->micro_batch < 0 ? ex->overlap : ex->flow;
}

/* Returns true if the next operator uses the result of this instruction, so that the transfer cannot overlap with computation. */
static bool is_awaited(const struct hspmd_executor *ex, const struct hspmd_instruction *in)
{
	const struct hspmd_instruction *next = in + 1, *end = ex->p->instructions + ex->p->vote;
	while (next < end && next->kind != HSPMD_INSTRUCTION_RUN)
		next++;
	if (next >= end)
		return true;
	for (int k = 0; k < next->input_count; k++)
		if (next->in[k] == in->out[0])
			return true;
	for (int k = 0; k < next->output_count; k++)
		if (next->out[k] == in->out[0])
			return true;
	return false;
}

static int run_comm(struct hspmd_executor *ex, const struct hspmd_instruction *in, struct hspmd_error *err)
{
	struct hspmd_engine *engine = engine_of(ex, in);
	if (!engine)
		return hspmd_fail(err, "a program for one device has communication");
	struct hspmd_engine_job job = job_of(ex, in);
	if (engine == ex->overlap)
		return ex->o.seconds ? hspmd_engine_run(engine, &job, err) : hspmd_engine_issue(engine, &job, err);
	if (hspmd_comm_chooses_rows(job.step))
		return hspmd_engine_run(engine, &job, err);
	if (!job.out)
		return hspmd_engine_start(engine, &job, err);
	return ex->threaded && !is_awaited(ex, in) ? hspmd_engine_issue(engine, &job, err) : hspmd_engine_run(engine, &job, err);
}

/* Wait until all slots that are read have been received, and no slot that is written is still the source or destination of a message.
 * Steps on one engine run in order. */
static int wait_for_slots(struct hspmd_executor *ex, const struct hspmd_instruction *in, struct hspmd_error *err)
{
	struct hspmd_engine *own = engine_of(ex, in), *engines[] = { ex->flow, ex->overlap };
	for (int e = 0; ex->flow && e < 2; e++) {
		for (int k = 0; engines[e] != own && k < in->input_count; k++)
			if (in->in[k] >= 0 &&
			    hspmd_engine_wait_range(engines[e], slot_data(ex, in->in[k]), slot_bytes(ex, in->in[k]), false, err))
				return -1;
		for (int k = 0; engines[e] != own && k < in->output_count; k++)
			if (in->out[k] >= 0 &&
			    hspmd_engine_wait_range(engines[e], slot_data(ex, in->out[k]), slot_bytes(ex, in->out[k]), true, err))
				return -1;
	}
	return 0;
}

static int drain(struct hspmd_executor *ex, struct hspmd_error *err)
{
	return ex->flow && (hspmd_engine_drain(ex->overlap, err) || hspmd_engine_drain(ex->flow, err)) ? -1 : 0;
}

/* How far receives are posted ahead of the instructions: the instructions checked so far, and the last of them that receives. */
struct ahead {
	size_t looked, coming;
};

/* Post the receives of the next receiving instruction while the instructions before it compute. All in the program's order, in which a
 * device group has its messages. */
static int post_receives(struct hspmd_executor *ex, size_t now, struct ahead *ahead, struct hspmd_error *err)
{
	const struct hspmd_program *p = ex->p;
	while (ex->flow && ahead->coming <= now && ahead->looked < p->vote) {
		const struct hspmd_instruction *in = &p->instructions[ahead->looked++];
		if (engine_of(ex, in) != ex->flow)
			continue;
		struct hspmd_engine_job job = job_of(ex, in);
		int comes = hspmd_engine_post_receives(ex->flow, &job, err);
		if (comes < 0)
			return -1;
		if (comes)
			ahead->coming = ahead->looked - 1;
	}
	return 0;
}

/* The updates that instruction i and those before it depend on must be done before it runs. */
static int wait_for_updates(struct hspmd_executor *ex, size_t i, struct hspmd_error *err)
{
	int need = ex->now->updates ? ex->now->updates->need[i] : 0;
	for (; ex->joined < need; ex->joined++)
		if (ex->o.device->ops->wait_beside(ex->o.device, ex->joined, err))
			return -1;
	return 0;
}

/* The norm of a gradient and, if the device can run a batch, of all that follow directly. *i: becomes the last of them. */
static int run_norms(struct hspmd_executor *ex, size_t *i, struct hspmd_error *err)
{
	static const struct hspmd_op_attr none;
	const struct hspmd_instruction *in = &ex->p->instructions[*i];
	int count = 1;
	if (!ex->all)
		return run_kernel(ex, in, &none, err);
	hspmd_executor_set_args(ex, in, &none, &ex->all[0]);
	for (; *i + 1 < ex->p->vote && ex->p->instructions[*i + 1].kind == HSPMD_INSTRUCTION_NORM; ++*i) {
		const struct hspmd_instruction *next = &ex->p->instructions[*i + 1];
		if (wait_for_slots(ex, next, err) || wait_for_updates(ex, *i + 1, err))
			return -1;
		hspmd_executor_set_args(ex, next, &none, &ex->all[count++]);
	}
	return ex->o.device->ops->run_batch(ex->o.device, in->opcode, ex->all, count, err);
}

static int run_recorded(void *executor, size_t *i, struct hspmd_error *err)
{
	struct hspmd_executor *ex = executor;
	const struct hspmd_instruction *in = &ex->p->instructions[*i];
	if (wait_for_updates(ex, *i, err))
		return -1;
	return in->kind == HSPMD_INSTRUCTION_NORM ? run_norms(ex, i, err) : run_kernel(ex, in, NULL, err);
}

/* Launches instructions [i, end) as captured. 1: done; 0: they must be run one by one; -1 and err. What is captured waits for updates by
 * itself. */
static int run_captured(struct hspmd_executor *ex, size_t i, size_t end, struct hspmd_error *err)
{
	int joined = ex->joined, need = ex->now->updates ? ex->now->updates->need[end - 1] : 0;
	int done = hspmd_replay_run_segment(ex->now->replay, i, end, run_recorded, ex, err);
	ex->joined = done <= 0 ? joined : need > joined ? need : joined;
	return done;
}

/* If instructions are measured: record the time that the instruction took since *then. */
static int record_time(struct hspmd_executor *ex, size_t i, double *then, struct hspmd_error *err)
{
	const struct hspmd_instruction *in = &ex->p->instructions[i], *next = in + 1;
	if (!ex->o.seconds)
		return 0;
	bool last = i + 1 == ex->p->instruction_count || next->layer != in->layer || next->backward != in->backward ||
	            next->micro_batch != in->micro_batch || next->kind != in->kind;
	if (last && ex->o.device->ops->synchronise(ex->o.device, err))
		return -1;
	double now = hspmd_now();
	ex->o.seconds[i] = now - *then;
	*then = now;
	return 0;
}

static int read_totals(struct hspmd_executor *ex, struct hspmd_totals *own, struct hspmd_error *err)
{
	const void *from[1 + HSPMD_PROGRAM_MAX_LOSSES] = { ex->scalar };
	double got[1 + HSPMD_PROGRAM_MAX_LOSSES];
	for (int i = 0; i < ex->p->loss_count; i++)
		from[1 + i] = slot_data(ex, ex->p->loss[i]);
	if (hspmd_device_read_batch(ex->o.device, got, from, 1 + ex->p->loss_count, sizeof *got, err))
		return -1;
	own->square_sum = got[0];
	for (int i = 0; i < ex->p->loss_count; i++)
		own->loss += got[1 + i];
	return 0;
}

#define WAIT_LEAST_S 5e-6 /* shorter waits are not recorded */

/* waited: since when the instruction has waited for communication of others. */
static void record_spans(struct hspmd_executor *ex, const struct hspmd_instruction *in, double waited, double began, double ended)
{
	bool message = in->kind == HSPMD_INSTRUCTION_COMM; /* its own span is the engine's */
	double until = message ? ended : began;
	if (until - waited >= WAIT_LEAST_S)
		hspmd_timeline_add_part(ex->o.timeline, HSPMD_PART_WAIT, waited, until);
	if (!message)
		hspmd_timeline_add(ex->o.timeline, HSPMD_LANE_COMPUTE, (int)(in - ex->p->instructions), began, ended);
}

/* The end of a step's passes: what the device computed, and the communication that did not hold them up. */
static int finish_passes(struct hspmd_executor *ex, struct hspmd_totals *own, struct hspmd_error *err)
{
	double then = hspmd_now();
	for (int groups = ex->now->updates ? ex->now->updates->groups : 0; ex->joined < groups; ex->joined++)
		if (ex->o.device->ops->wait_beside(ex->o.device, ex->joined, err))
			return -1;
	if (read_totals(ex, own, err))
		return -1;
	ex->updating = false;
	hspmd_replay_end_step(ex->now->replay);
	if (drain(ex, err))
		return -1;
	if (ex->o.timeline)
		hspmd_timeline_add_part(ex->o.timeline, HSPMD_PART_SUMS, then, hspmd_now());
	return 0;
}

int hspmd_executor_gradients(struct hspmd_executor *ex, int64_t step, struct hspmd_totals *own, struct hspmd_step_times *times,
                             struct hspmd_error *err)
{
	const struct hspmd_program *p = ex->p;
	own->square_sum = own->loss = 0;
	*times = (struct hspmd_step_times){ 0 };
	double then = hspmd_now(), measured = then;
	struct ahead ahead = { 0 };
	ex->step = step;
	ex->joined = 0;
	hspmd_executor_begin_reading(ex);
	if (ex->o.timeline)
		hspmd_timeline_begin(ex->o.timeline, p, step);
	hspmd_replay_begin_step(ex->now->replay);
	if (ex->o.device->ops->zero(ex->o.device, ex->scalar, sizeof *ex->scalar, err))
		return -1;
	for (size_t i = 0; i < p->vote; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		int status = wait_for_slots(ex, in, err);
		if (!status)
			status = post_receives(ex, i, &ahead, err);
		double began = hspmd_now(), waited = then;
		times->communication_s += began - then;
		then = began;
		size_t end = hspmd_replay_segment_end(ex->now->replay, i);
		for (size_t k = i + 1; !status && k < end; k++)
			status = wait_for_slots(ex, &p->instructions[k], err);
		int replayed = !status && end > i ? run_captured(ex, i, end, err) : 0;
		if (!status && !replayed)
			status = wait_for_updates(ex, i, err);
		if (replayed < 0)
			status = -1;
		else if (replayed)
			i = end - 1;
		else if (!status)
			status = in->kind == HSPMD_INSTRUCTION_READ   ? read_samples(ex, in, step, err)
			         : in->kind == HSPMD_INSTRUCTION_RUN  ? run_kernel(ex, in, NULL, err)
			         : in->kind == HSPMD_INSTRUCTION_COMM ? run_comm(ex, in, err)
			                                              : run_norms(ex, &i, err);
		if (status || record_time(ex, i, &measured, err))
			return -1;
		double now = hspmd_now();
		if (ex->o.timeline)
			record_spans(ex, in, waited, began, now);
		*(in->kind == HSPMD_INSTRUCTION_COMM ? &times->communication_s : &times->compute_s) += now - then;
		then = now;
	}
	hspmd_executor_read_ahead(ex);
	return finish_passes(ex, own, err);
}

int hspmd_executor_vote(struct hspmd_executor *ex, int64_t step, const struct hspmd_totals *own, struct hspmd_totals *all,
                        struct hspmd_error *err)
{
	if (ex->o.voter_count == 1) {
		*all = *own;
		return 0;
	}
	struct hspmd_totals *each = ex->votes;
	int status = hspmd_transport_all_gather(ex->o.transport, ex->o.voters, ex->o.voter_count, VOTE_TAG, own, sizeof *own, each, err);
	if (status)
		return hspmd_error_prefix(err, "vote of step %" PRId64, step);
	double *sum = (double *)all;
	memset(all, 0, sizeof *all);
	for (int r = 0; r < ex->o.voter_count; r++)
		for (int k = 0; k < HSPMD_TOTALS_COUNT; k++)
			sum[k] += ((const double *)&each[r])[k];
	return 0;
}

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

/* The attributes of one parameter's update after step `step`; scale: of the gradient. */
static struct hspmd_op_attr *set_update(struct hspmd_executor *ex, const struct hspmd_instruction *in, double scale, int64_t step)
{
	const struct hspmd_job *job = ex->o.job;
	const struct hspmd_program_state *s = &ex->p->states[in->step];
	struct hspmd_op_attr *own = &ex->updates[in->step];
	*own = (struct hspmd_op_attr){ .scale = scale };
	own->update = hspmd_optimizer_update(ex->p->optimizer, job->optimizer.values, hspmd_job_lr(job, step),
	                                     s->decay && hspmd_job_decays(job, s->name) ? job->optimizer.weight_decay : 0, step + 1);
	own->history = ex->p->graph->tensors[s->tensor].history;
	hspmd_parameters_rounding(s, job, step + 1, own);
	return own;
}

/* Asks for all updates, group by group, and waits for none. */
static int update_beside(struct hspmd_executor *ex, double scale, int64_t step, struct hspmd_error *err)
{
	const struct hspmd_update_groups *g = ex->now->updates;
	for (int group = 0; group < g->groups; group++) {
		int count = 0;
		for (size_t u = g->begin[group]; u < g->begin[group + 1]; u++) {
			const struct hspmd_instruction *in = &ex->p->instructions[g->update[u]];
			hspmd_executor_set_args(ex, in, set_update(ex, in, scale, step), &ex->all[count++]);
		}
		if (ex->o.device->ops->run_beside(ex->o.device, HSPMD_OP_UPDATE, ex->all, count, group, err))
			return hspmd_error_prefix(err, "operator %s", hspmd_opcode_names[HSPMD_OP_UPDATE]);
	}
	ex->updating = true;
	return 0;
}

static int update_now(struct hspmd_executor *ex, double scale, int64_t step, struct hspmd_error *err)
{
	double measured = hspmd_now();
	uint64_t block = 0;
	int count = 0;
	for (size_t i = ex->p->vote; i < ex->p->instruction_count; i++) {
		const struct hspmd_instruction *in = &ex->p->instructions[i];
		if (in->kind != HSPMD_INSTRUCTION_UPDATE)
			continue;
		const struct hspmd_op_attr *own = set_update(ex, in, scale, step);
		if (ex->all && !ex->o.persistent) {
			hspmd_executor_set_args(ex, in, own, &ex->all[count++]);
			continue;
		}
		int status = ex->o.persistent ? update_persistent(ex, in, own, &block, err) : run_kernel(ex, in, own, err);
		if (status || record_time(ex, i, &measured, err))
			return -1;
	}
	if (count && ex->o.device->ops->run_batch(ex->o.device, HSPMD_OP_UPDATE, ex->all, count, err))
		return hspmd_error_prefix(err, "operator %s", hspmd_opcode_names[HSPMD_OP_UPDATE]);
	return 0;
}

int hspmd_executor_commit(struct hspmd_executor *ex, int64_t step, const struct hspmd_totals *all, struct hspmd_error *err)
{
	double clip = ex->o.job->optimizer.clip, norm = sqrt(all->square_sum), scale = clip > 0 && norm > clip ? clip / norm : 1;
	bool beside = ex->now->updates;
	if (ex->o.persistent)
		hspmd_persistent_update(ex->o.persistent, (const double *)all);
	if (beside ? update_beside(ex, scale, step, err) : update_now(ex, scale, step, err))
		return -1;
	if (ex->o.persistent)
		hspmd_persistent_updated(ex->o.persistent);
	ex->copied = true;
	ex->gathered = -1;
	return beside ? 0 : ex->o.device->ops->synchronise(ex->o.device, err);
}

int hspmd_executor_gather_parameters(struct hspmd_executor *ex, int64_t updates, struct hspmd_error *err)
{
	if (ex->gathered == ex->p->which)
		return 0;
	/* An update writes copies too; a state that was filled otherwise has no copies yet. */
	if (!ex->copied && hspmd_parameters_copy(ex->p, ex->o.device, ex->bases, ex->o.job, updates, err))
		return -1;
	ex->copied = true;
	for (size_t i = ex->p->vote; i < ex->p->instruction_count; i++)
		if (ex->p->instructions[i].kind == HSPMD_INSTRUCTION_COMM && run_comm(ex, &ex->p->instructions[i], err))
			return -1;
	if (drain(ex, err))
		return -1;
	ex->gathered = ex->p->which;
	return 0;
}
