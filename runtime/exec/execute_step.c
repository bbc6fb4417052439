/* SPDX-License-Identifier: Apache-2.0 */
/* One step of an executor: its passes, the vote, and what is asked of the device behind them. */
#include <inttypes.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "runtime/exec/execute_internal.h"
#include "runtime/exec/parameters.h"
#include "runtime/op/op.h"

_Static_assert(HSPMD_TOTALS_COUNT == HSPMD_PERSISTENT_TOTALS, "a step's totals outlive the process");

#define VOTE_TAG ((UINT64_C(1) << 44) - 256)

/* ---- instructions */

static int read_samples(struct hspmd_executor *ex, const struct hspmd_instruction *in, int64_t step, struct hspmd_error *err)
{
	size_t bytes = hspmd_running_slot_bytes(ex, in->out[0]);
	if (ex->inputs.host)
		return ex->o.device->ops->copy_direct(ex->o.device, hspmd_running_slot(ex, in->out[0]),
		                                      ex->inputs.samples + ex->now->input_at[in - ex->p->instructions], bytes, err);
	const char *from = hspmd_executor_take_input(ex, bytes);
	if (!from && hspmd_executor_read_input(ex, ex->p, in, step, ex->samples, err))
		return -1;
	return ex->o.device->ops->to_device(ex->o.device, hspmd_running_slot(ex, in->out[0]), from ? from : ex->samples, bytes, err);
}

/* Begin or end a copy of an offloaded activation. */
static int run_copy(struct hspmd_executor *ex, const struct hspmd_instruction *in, struct hspmd_error *err)
{
	struct hspmd_device *dev = ex->o.device;
	if (in->kind == HSPMD_INSTRUCTION_AWAIT)
		return dev->ops->wait_copy(dev, in->step, err);
	return dev->ops->copy_beside(dev, hspmd_running_slot(ex, in->out[0]), hspmd_running_slot(ex, in->in[0]),
	                             hspmd_running_slot_bytes(ex, in->in[0]), in->step, err);
}

/* ---- communication */

/* The same with the jobs that are joined with it. */
static struct hspmd_engine_job job_of(const struct hspmd_executor *ex, const struct hspmd_instruction *in)
{
	struct hspmd_engine_job job = hspmd_executor_job(ex, in);
	if (!in->joined)
		return job;
	job.joined = ex->now->joined + ex->now->joined_at[in - ex->p->instructions];
	job.joined_count = in->joined;
	return job;
}

/* Gradients (and parameters, which return the same way) have their own engine, so that communication that passes wait for is never
 * queued behind a sum whose peers are late. */
static struct hspmd_engine *engine_of(const struct hspmd_executor *ex, const struct hspmd_instruction *in)
{
	if (in->kind != HSPMD_INSTRUCTION_COMM)
		return NULL;
	return in->micro_batch < 0 ? ex->overlap : ex->flow;
}

/* Returns true if the next operator uses the result of this instruction, or of one that runs with it, so that the transfer cannot overlap
 * with computation. */
static bool is_awaited(const struct hspmd_executor *ex, const struct hspmd_instruction *in)
{
	const struct hspmd_instruction *next = in + 1, *end = ex->p->instructions + ex->p->vote;
	while (next < end && next->kind != HSPMD_INSTRUCTION_RUN)
		next++;
	if (next >= end)
		return true;
	for (int k = 0; k <= in->joined; k++)
		if (in[k].out[0] >= 0 && hspmd_instruction_uses(next, in[k].out[0]))
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
	bool receives = job.out;
	for (int k = 0; k < job.joined_count; k++)
		receives |= job.joined[k].out != NULL;
	if (!receives)
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
			if (in->in[k] >= 0 && hspmd_engine_wait_range(engines[e], hspmd_running_slot(ex, in->in[k]),
			                                              hspmd_running_slot_bytes(ex, in->in[k]), false, err))
				return -1;
		for (int k = 0; engines[e] != own && k < in->output_count; k++)
			if (in->out[k] >= 0 && hspmd_engine_wait_range(engines[e], hspmd_running_slot(ex, in->out[k]),
			                                               hspmd_running_slot_bytes(ex, in->out[k]), true, err))
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
		if (engine_of(ex, in) != ex->flow || in->joins)
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
		return hspmd_executor_run_kernel(ex, in, &none, err);
	hspmd_executor_set_args(ex, in, &none, &ex->all[0]);
	for (; *i + 1 < ex->p->vote && ex->p->instructions[*i + 1].kind == HSPMD_INSTRUCTION_NORM; ++*i) {
		const struct hspmd_instruction *next = &ex->p->instructions[*i + 1];
		if (wait_for_slots(ex, next, err) || wait_for_updates(ex, *i + 1, err))
			return -1;
		hspmd_executor_set_args(ex, next, &none, &ex->all[count++]);
	}
	return ex->o.device->ops->run_batch(ex->o.device, in->opcode, ex->all, count, err);
}

/* Behind the passes: the updates of the step before have been waited for, and this step's may begin. */
static int end_passes(struct hspmd_executor *ex, struct hspmd_error *err)
{
	for (int groups = ex->now->updates ? ex->now->updates->groups : 0; ex->joined < groups; ex->joined++)
		if (ex->o.device->ops->wait_beside(ex->o.device, ex->joined, err))
			return -1;
	return hspmd_executor_hand_over_values(ex, err);
}

/* Behind the last of the instructions that run beside one another, or one that failed: what follows waits for all of them. */
static int join(struct hspmd_executor *ex, size_t i, int status, struct hspmd_error *err)
{
	const struct hspmd_instruction *in = &ex->p->instructions[i];
	struct hspmd_error ignored;
	bool beside = in->beside || (i && in[-1].beside);
	if (!beside || (!status && in->beside) || !ex->o.device->ops->join_apart)
		return status;
	return ex->o.device->ops->join_apart(ex->o.device, status ? &ignored : err) ? -1 : status;
}

/* Instruction *i of the passes, and those that run along with it (run_norms). */
static int run_instruction(void *executor, size_t *i, struct hspmd_error *err)
{
	struct hspmd_executor *ex = executor;
	const struct hspmd_instruction *in = &ex->p->instructions[*i];
	if ((!*i && hspmd_executor_take_values(ex, err)) || wait_for_updates(ex, *i, err))
		return -1;
	int status = in->kind == HSPMD_INSTRUCTION_READ   ? read_samples(ex, in, ex->step, err)
	             : in->kind == HSPMD_INSTRUCTION_RUN  ? hspmd_executor_run_kernel(ex, in, NULL, err)
	             : in->kind == HSPMD_INSTRUCTION_COMM ? run_comm(ex, in, err)
	             : in->kind == HSPMD_INSTRUCTION_NORM ? run_norms(ex, i, err)
	                                                  : run_copy(ex, in, err);
	status = join(ex, *i, status, err);
	*i += (size_t)in->joined;
	return status || *i + 1 < ex->p->vote ? status : end_passes(ex, err);
}

/* Launches instructions [i, end) as captured. 1: done; 0: they must be run one by one; -1 and err. What is captured waits for updates by
 * itself. */
static int run_captured(struct hspmd_executor *ex, size_t i, size_t end, struct hspmd_error *err)
{
	const struct hspmd_update_groups *g = ex->now->updates;
	int joined = ex->joined, need = !g ? 0 : end == ex->p->vote ? g->groups : g->need[end - 1];
	int done = hspmd_replay_run_segment(ex->now->replay, i, end, run_instruction, ex, err);
	ex->joined = done <= 0 ? joined : need > joined ? need : joined;
	return done;
}

static int read_totals(struct hspmd_executor *ex, struct hspmd_totals *own, struct hspmd_error *err)
{
	const void *from[1 + HSPMD_PROGRAM_MAX_LOSSES] = { ex->scalar };
	double got[1 + HSPMD_PROGRAM_MAX_LOSSES];
	for (int i = 0; i < ex->p->loss_count; i++)
		from[1 + i] = hspmd_running_slot(ex, ex->p->loss[i]);
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
	if (read_totals(ex, own, err))
		return -1;
	ex->running = false;
	hspmd_replay_end_step(ex->now->replay);
	if (drain(ex, err))
		return -1;
	if (ex->o.timeline)
		hspmd_timeline_add_part(ex->o.timeline, HSPMD_PART_SUMS, then, hspmd_now());
	return 0;
}

/* What was not finished may still read what the step is about to write. */
static int begin_step(struct hspmd_executor *ex, int64_t step, struct hspmd_error *err)
{
	if (ex->running && ex->o.device->ops->synchronise(ex->o.device, err))
		return -1;
	ex->running = true;
	ex->step = step;
	ex->joined = 0;
	hspmd_executor_begin_reading(ex);
	if (hspmd_executor_stage_inputs(ex, err))
		return -1;
	if (ex->o.timeline)
		hspmd_timeline_begin(ex->o.timeline, ex->p, step);
	hspmd_replay_begin_step(ex->now->replay);
	return 0;
}

/* Asks for all instructions up to the vote. */
static int run_passes(struct hspmd_executor *ex, int64_t step, struct hspmd_step_times *times, struct hspmd_error *err)
{
	const struct hspmd_program *p = ex->p;
	*times = (struct hspmd_step_times){ 0 };
	double then = hspmd_now(), measured = then;
	struct ahead ahead = { 0 };
	if (begin_step(ex, step, err))
		return -1;
	for (size_t i = 0; i < p->vote; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		int status = wait_for_slots(ex, in, err);
		if (!status)
			status = post_receives(ex, i, &ahead, err);
		double began = hspmd_now(), waited = then;
		times->communication_s += began - then;
		then = began;
		size_t end = hspmd_replay_segment_end(ex->now->replay, i), runs = i + (size_t)in->joined + 1;
		for (size_t k = i + 1; !status && k < (end > runs ? end : runs); k++)
			status = wait_for_slots(ex, &p->instructions[k], err);
		int replayed = !status && end > i ? run_captured(ex, i, end, err) : 0;
		if (replayed > 0)
			i = end - 1;
		else if (!status && !replayed)
			status = run_instruction(ex, &i, err);
		if (status || replayed < 0 || hspmd_executor_record_time(ex, i, &measured, err))
			return -1;
		double now = hspmd_now();
		if (ex->o.timeline)
			record_spans(ex, in, waited, began, now);
		*(in->kind == HSPMD_INSTRUCTION_COMM ? &times->communication_s : &times->compute_s) += now - then;
		then = now;
	}
	return 0;
}

int hspmd_executor_gradients(struct hspmd_executor *ex, int64_t step, struct hspmd_totals *own, struct hspmd_step_times *times,
                             struct hspmd_error *err)
{
	own->square_sum = own->loss = 0;
	if (run_passes(ex, step, times, err))
		return -1;
	hspmd_executor_read_ahead(ex);
	if (finish_passes(ex, own, err))
		return -1;
	ex->updating = false; /* the passes have waited for the updates before them */
	return 0;
}

bool hspmd_executor_is_alone(const struct hspmd_executor *ex)
{
	return ex->o.voter_count == 1 && ex->inputs.host && ex->all;
}

/* The updates are asked for before the host knows anything of the passes: the device clips by the norm that it has. */
static int step_alone(struct hspmd_executor *ex, int64_t step, struct hspmd_totals *all, struct hspmd_step_times *times,
                      struct hspmd_error *err)
{
	bool beside;
	all->square_sum = all->loss = 0;
	if (run_passes(ex, step, times, err) || hspmd_executor_update(ex, step, 0, &beside, err))
		return -1;
	hspmd_executor_read_ahead(ex);
	if (finish_passes(ex, all, err))
		return -1;
	ex->torn = false;
	ex->updating = beside;
	return 0;
}

int hspmd_executor_step(struct hspmd_executor *ex, int64_t step, struct hspmd_totals *all, struct hspmd_step_times *times,
                        struct hspmd_error *err)
{
	struct hspmd_totals own = *all;
	if (hspmd_executor_is_alone(ex))
		return step_alone(ex, step, all, times, err);
	return hspmd_executor_gradients(ex, step, &own, times, err) || hspmd_executor_vote(ex, step, &own, all, err) ||
	                       hspmd_executor_commit(ex, step, all, err)
	               ? -1
	               : 0;
}

bool hspmd_executor_is_torn(const struct hspmd_executor *ex)
{
	return ex->torn;
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

int hspmd_executor_gather_parameters(struct hspmd_executor *ex, int64_t updates, struct hspmd_error *err)
{
	if (ex->gathered == ex->p->which)
		return 0;
	/* An update writes copies too; a state that was filled otherwise has no copies yet. */
	if (!ex->copied && hspmd_parameters_copy(ex->p, ex->o.device, ex->bases, ex->o.job, updates, err))
		return -1;
	ex->copied = true;
	for (size_t i = ex->p->vote; i < ex->p->instruction_count; i++)
		if (ex->p->instructions[i].kind == HSPMD_INSTRUCTION_COMM && !ex->p->instructions[i].joins &&
		    run_comm(ex, &ex->p->instructions[i], err))
			return -1;
	if (drain(ex, err))
		return -1;
	ex->gathered = ex->p->which;
	return 0;
}
