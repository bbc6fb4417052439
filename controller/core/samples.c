/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of what the model says: at a step where they are due, a checkpoint is written, and a process on the first node makes them from
 * it. No worker takes part, so that losses do not change, and a failure is only told. */
#include "controller/core/controller_internal.h"

static int64_t every(const struct hspmd_controller *m)
{
	return m->config->job->samples.every_steps;
}

/* The first step after `step` at which samples are due. */
static void set_next(struct hspmd_controller *m, int64_t step)
{
	m->samples_at = every(m) ? (step / every(m) + 1) * every(m) : INT64_MAX;
}

void samples_init(struct hspmd_controller *m)
{
	set_next(m, m->config->last_step);
}

bool samples_due(const struct hspmd_controller *m)
{
	return m->steps_reported >= m->samples_at;
}

/* The process can read shared storage; without any, what is on this node. */
void samples_checkpoint_done(struct hspmd_controller *m, int64_t step, bool shared)
{
	if (step < m->samples_at || (!shared && m->config->shared) || m->shutting_down)
		return;
	set_next(m, step);
	emit(m, ACTION_SAMPLE, NULL, NULL, step);
}

void samples_checkpoint_failed(struct hspmd_controller *m)
{
	if (!samples_due(m))
		return;
	note_event(m, "samples_failed", "no samples of step %lld: there is no checkpoint of it", (long long)m->samples_at);
	set_next(m, m->steps_reported);
}

void on_sampled(struct hspmd_controller *m, const struct run_event *e)
{
	if (e->text)
		note_event(m, "samples_failed", "no samples of step %lld: %s", (long long)e->id, e->text);
	else
		note_event(m, "samples", "samples of step %lld are in samples.jsonl after %.1f s", (long long)e->id, e->seconds);
}
