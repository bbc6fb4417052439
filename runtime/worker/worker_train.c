/* SPDX-License-Identifier: Apache-2.0 */
/* The worker while a generation runs: its steps, and what it reports of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "runtime/worker/inbox.h"
#include "runtime/worker/worker_internal.h"

void worker_remember_step(struct worker *w, const struct hspmd_totals *all)
{
	w->totals = *all;
	w->applied = w->step++;
	w->ready = -1;
	w->recent_step[w->applied % RECENT] = w->applied;
	w->recent_loss[w->applied % RECENT] = all->loss;
}

/* Adds the device's memory and traffic to a report; NULL stays NULL. */
static json_t *with_load(struct worker *w, json_t *report)
{
	const struct hspmd_generation *g = w->active;
	if (w->load.generation != g->number) {
		w->load.generation = g->number;
		w->load.peak_bytes = hspmd_generation_peak_bytes(g);
		w->load.sent_bytes = 0;
	}
	uint64_t sent = hspmd_executor_sent_bytes(g->executor), since = w->load.sent_bytes;
	w->load.sent_bytes = sent;
	if (report && (json_object_set_new(report, "memory_bytes", json_integer(w->load.peak_bytes)) ||
	               json_object_set_new(report, "sent_bytes", json_integer((json_int_t)(sent - since))))) {
		json_decref(report);
		return NULL;
	}
	return report;
}

/* If steps run several plans: which one this was, and what it took to bring the parameters there. NULL stays NULL. */
static json_t *with_plan(const struct worker *w, json_t *report, int64_t step, double gather_s, double compute_s)
{
	const struct hspmd_plan *plan = w->active->plan;
	if (!report || !plan->shorter_count)
		return report;
	int which = hspmd_generation_step_plan(w->active, step);
	if (!json_object_set_new(report, "plan_seq_len", json_integer(hspmd_plan_of(plan, which)->seq_len)) &&
	    !json_object_set_new(report, "gather_s", json_real(gather_s)) &&
	    (which || !json_object_set_new(report, "plan_compute_s", json_real(compute_s))))
		return report;
	json_decref(report);
	return NULL;
}

/* gather_s: seconds until the parameters were where the step used them; valid: the validation loss, NaN if it was not measured. */
static int report_step(struct worker *w, const struct hspmd_totals *all, double gather_s, double step_s,
                       const struct hspmd_step_times *times, double valid)
{
	const struct hspmd_generation *g = w->active;
	int64_t done = w->step - 1;
	if (g->rank == g->voters[0]) {
		json_t *report = json_pack("{ss,si,sI,so,sI,sf,sf,so,sf,so*}", "type", "step", "generation", g->number, "step",
		                           (json_int_t)done, "loss", worker_number_or_null(all->loss), "tokens",
		                           (json_int_t)hspmd_generation_step_tokens(g, done), "step_s", step_s, "lr",
		                           hspmd_job_lr(w->setup.job, done), "grad_norm", worker_number_or_null(sqrt(all->square_sum)),
		                           "compute_s", times->compute_s, "valid_loss", isfinite(valid) ? json_real(valid) : NULL);
		return hspmd_inbox_send(w->inbox, with_load(w, with_plan(w, report, done, gather_s, times->compute_s)));
	}
	w->busy_s += times->compute_s;
	w->busy_steps++;
	if (!hspmd_generation_step_plan(g, done)) {
		w->plan_busy_s += times->compute_s;
		w->plan_steps++;
	}
	if (hspmd_now() - w->last_heartbeat < 1)
		return 0;
	w->last_heartbeat = hspmd_now();
	double mean = w->busy_s / w->busy_steps;
	int steps = w->busy_steps;
	w->busy_s = 0;
	w->busy_steps = 0;
	json_t *of_plan = g->plan->shorter_count && w->plan_steps ? json_real(w->plan_busy_s / w->plan_steps) : NULL;
	w->plan_busy_s = 0;
	w->plan_steps = 0;
	return hspmd_inbox_send(w->inbox,
	                        with_load(w, json_pack("{ss,si,sI,sf,si,so*}", "type", "heartbeat", "generation", g->number, "step",
	                                               (json_int_t)done, "compute_s", mean, "steps", steps, "plan_compute_s", of_plan)));
}

/* Record whether all gradients are complete. */
void worker_set_ready(struct worker *w, bool ready)
{
	w->ready = ready ? w->step : -1;
	if (w->active && w->active->persistent)
		hspmd_persistent_ready(w->active->persistent, ready);
}

/* The same on all workers; false if the generation is to stop. */
static bool is_to_measure(const struct worker *w, const struct hspmd_totals *all)
{
	const struct hspmd_job *job = w->setup.job;
	return w->setup.valid_count && (w->step == job->steps || (w->step % job->valid_every == 0 && !(all->stop > 0)));
}

/* The number of a batch's targets that count, in batches. */
static double weight_of(const struct hspmd_sample_source *valid, int64_t batch)
{
	double factor = valid->loss_factor ? valid->loss_factor(valid->context, batch) : 1;
	return factor > 0 ? 1 / factor : 0;
}

static int gather_parameters(struct worker *w, struct hspmd_error *err)
{
	double then = hspmd_now();
	int status = hspmd_executor_gather_parameters(w->active->executor, w->step, err);
	w->gather_s = hspmd_now() - then;
	worker_trace_part(w, HSPMD_PART_PARAMETERS, then, then + w->gather_s);
	return status;
}

/* The mean loss over validation samples. Runs passes and discards their gradients: the state does not change. */
static int measure(struct worker *w, double *loss, struct hspmd_error *err)
{
	const struct hspmd_worker_setup *s = &w->setup;
	struct hspmd_generation *g = w->active;
	int64_t batches = hspmd_data_valid_batches(s->job, s->valid_count, s->valid != NULL);
	double sum = 0, then = hspmd_now();
	for (int64_t b = 0; b < batches; b++)
		sum += weight_of(&s->valid_samples, b);
	if (hspmd_generation_use_step(g, NULL, err) || gather_parameters(w, err))
		return -1;
	int status = 0;
	hspmd_executor_set_samples(g->executor, s->valid_samples);
	worker_trace_pause(w, true);
	*loss = 0;
	for (int64_t b = 0; !status && b < batches; b++) {
		struct hspmd_totals own = { 0 }, all = { 0 };
		struct hspmd_step_times times;
		if (hspmd_executor_gradients(g->executor, b, &own, &times, err) ||
		    hspmd_executor_vote(g->executor, w->step, &own, &all, err))
			status = hspmd_error_prefix(err, "measuring the loss on data.valid");
		double weight = weight_of(&s->valid_samples, b);
		*loss += weight > 0 ? all.loss / (sum / weight) : 0;
	}
	hspmd_executor_set_samples(g->executor, s->samples);
	worker_trace_pause(w, false);
	worker_trace_part(w, HSPMD_PART_VALIDATION, then, hspmd_now());
	return status;
}

/* What this worker says in a step's vote. */
static void set_requests(struct worker *w, struct hspmd_totals *own)
{
	own->stop = atomic_load(&w->stop) == w->active->number;
	own->checkpoint = worker_checkpoint_possible(w);
}

/* A step in three calls, because others vote, or an image of the state is still being copied. */
static int vote_and_update(struct worker *w, struct hspmd_totals *all, struct hspmd_step_times *times, struct hspmd_error *err)
{
	struct hspmd_executor *ex = w->active->executor;
	struct hspmd_totals own = { 0 };
	if (hspmd_executor_gradients(ex, w->step, &own, times, err))
		return -1;
	set_requests(w, &own);
	worker_set_ready(w, true);
	double computed = hspmd_now();
	if (hspmd_executor_vote(ex, w->step, &own, all, err))
		return -1;
	double voted = hspmd_now();
	if (worker_before_update(w, err) || hspmd_executor_commit(ex, w->step, all, err))
		return -1;
	worker_trace_part(w, HSPMD_PART_VOTE, computed, voted);
	worker_trace_part(w, HSPMD_PART_UPDATE, voted, hspmd_now());
	return 0;
}

/* Run one step. 0; or -1 and err: nothing has changed except what `ready` and `step` say, and hspmd_executor_is_torn. */
static int train_step(struct worker *w, struct hspmd_totals *all, struct hspmd_error *err)
{
	struct hspmd_executor *ex = w->active->executor;
	struct hspmd_step_times times;
	double then = hspmd_now(), valid = NAN, gathered = w->gather_s;
	bool alone = hspmd_executor_is_alone(ex) && !worker_is_copying(w);
	worker_set_ready(w, false);
	worker_trace_begin_step(w);
	*all = (struct hspmd_totals){ 0 };
	if (alone ? hspmd_executor_step(ex, w->step, all, &times, err) : vote_and_update(w, all, &times, err))
		return -1;
	if (alone)
		set_requests(w, all);
	worker_remember_step(w, all);
	double updated = hspmd_now();
	worker_trace_part(w, HSPMD_PART_STEP, then, updated);
	if (is_to_measure(w, all) && measure(w, &valid, err))
		return -1;
	if (report_step(w, all, gathered, updated - then, &times, valid))
		return hspmd_fail(err, "the controller cannot be reached");
	return hspmd_generation_use_step(w->active, &w->step, err) || gather_parameters(w, err) ? -1 : 0;
}

/* For tests that observe what happens during steps: the minimum seconds from the start of one step to the start of the next, or the name
 * of a file that contains them (as long as the file exists). 0: no minimum. */
static double test_pace(void)
{
	const char *s = getenv("HSPMD_TEST_STEP_S");
	double pace = 0;
	FILE *f = s && *s == '/' ? fopen(s, "re") : NULL;
	if (f && fscanf(f, "%lf", &pace) != 1)
		pace = 0;
	if (f)
		fclose(f);
	else if (s)
		pace = strtod(s, NULL);
	return pace > 0 && pace < 3600 ? pace : 0;
}

/* Handle the messages that have arrived, and those that arrive before `until`, unless the steps are to stop. */
static int hear_between_steps(struct worker *w, struct hspmd_generation *g, double until)
{
	for (json_t *m; (m = hspmd_inbox_next_before(w->inbox, until));) {
		int status = w->handle(w, m);
		json_decref(m);
		if (status || atomic_load(&g->abort) || w->quit)
			return status;
		if (atomic_load(&w->stop) == g->number)
			until = 0;
	}
	return 0;
}

/* Train until all steps are done, a stop is requested, or something fails. */
static int run_steps(struct worker *w)
{
	struct hspmd_generation *g = w->active;
	struct hspmd_error err = { "" };
	if (g->program->stage < 0)
		return 0; /* this worker only handed over state */
	while (w->step < w->setup.job->steps) {
		struct hspmd_totals all;
		double began = hspmd_now(), pace = test_pace();
		if (train_step(w, &all, &err))
			return atomic_load(&g->abort) ? 0 : worker_fault(w, g->number, &err);
		if (worker_trace_end_step(w) || (all.checkpoint >= g->voter_count && worker_snapshot(w)) || worker_report_preconnected(w))
			return -1;
		if (all.stop > 0 && w->step < w->setup.job->steps)
			return worker_trace_flush(w, g) || worker_report_stopped(w, g->number) ? -1 : 0;
		int status = hear_between_steps(w, g, pace > 0 ? began + pace : 0);
		if (status || atomic_load(&g->abort) || w->quit)
			return status;
	}
	return hspmd_inbox_send(w->inbox, worker_state_report(w, "finished", g->number));
}

int worker_train(struct worker *w)
{
	w->training = true;
	int status = run_steps(w);
	w->training = false;
	return status || w->quit
	               ? status
	               : worker_serve_late(w, atomic_load(&w->active->abort) ? "its generation was called off before a step's end" : NULL);
}
