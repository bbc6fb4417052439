/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/replay.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"

/* Steps: the first, in which the device has one-time costs; timed ones; one that captures; timed ones again. */
#define FIRST_STEPS 1
#define TIMED_STEPS 2
#define LEAST 4 /* fewest instructions that are worth capturing */

struct hspmd_replay {
	const struct hspmd_program *p;
	struct hspmd_device *dev;
	struct hspmd_device_graph **of; /* [p->vote + 1], by a segment's first instruction; the last: of the updates */
	bool always, off, replaying;    /* replaying: in this step */
	bool inputs_stay, loss_varies;
	int64_t step;
	double began, best[2]; /* seconds of a step: without and with replay */
};

bool hspmd_replay_is_loss(const struct hspmd_instruction *in)
{
	return in->kind == HSPMD_INSTRUCTION_RUN &&
	       (in->opcode == HSPMD_OP_LOSS || in->opcode == HSPMD_OP_LOSS_GRAD || in->opcode == HSPMD_OP_CROSS_ENTROPY);
}

struct hspmd_replay *hspmd_replay_create(const struct hspmd_program *p, struct hspmd_device *dev, bool inputs_stay, bool loss_varies)
{
	const char *wanted = getenv("HSPMD_CUDA_GRAPHS");
	if (!dev->ops->capture_begin || (wanted && !strcmp(wanted, "0")))
		return NULL;
	struct hspmd_replay *r = calloc(1, sizeof *r);
	if (r)
		r->of = hspmd_calloc(p->vote + 1, sizeof(struct hspmd_device_graph *));
	if (!r || !r->of) {
		free(r);
		return NULL; /* not needed */
	}
	r->p = p;
	r->dev = dev;
	r->inputs_stay = inputs_stay;
	r->loss_varies = loss_varies;
	r->always = wanted && !strcmp(wanted, "1");
	return r;
}

void hspmd_replay_forget(struct hspmd_replay *r)
{
	for (size_t i = 0; r && i <= r->p->vote; i++) {
		r->dev->ops->graph_free(r->dev, r->of[i]);
		r->of[i] = NULL;
	}
}

void hspmd_replay_destroy(struct hspmd_replay *r)
{
	if (!r)
		return;
	hspmd_replay_forget(r);
	free(r->of);
	free(r);
}

void hspmd_replay_begin_step(struct hspmd_replay *r)
{
	if (!r)
		return;
	bool tried = r->always ? r->step >= FIRST_STEPS : r->step >= FIRST_STEPS + TIMED_STEPS;
	r->replaying = tried && !r->off;
	r->began = hspmd_now();
}

void hspmd_replay_end_step(struct hspmd_replay *r)
{
	int64_t recording = FIRST_STEPS + TIMED_STEPS, last = recording + TIMED_STEPS;
	if (!r || r->off)
		return;
	double took = hspmd_now() - r->began, *best = &r->best[r->replaying];
	if (r->step >= FIRST_STEPS && r->step != recording && r->step <= last && (*best <= 0 || took < *best))
		*best = took;
	if (r->step == last && !r->always && r->best[0] < r->best[1]) {
		r->off = true;
		hspmd_replay_forget(r);
	}
	r->step++;
}

static bool can_be_captured(const struct hspmd_replay *r, const struct hspmd_instruction *in)
{
	if (in->kind == HSPMD_INSTRUCTION_READ)
		return r->inputs_stay;
	if (in->kind == HSPMD_INSTRUCTION_COPY || in->kind == HSPMD_INSTRUCTION_AWAIT)
		return false; /* they begin in one segment and end in another */
	return in->kind != HSPMD_INSTRUCTION_COMM && (r->inputs_stay || !r->loss_varies || !hspmd_replay_is_loss(in));
}

size_t hspmd_replay_segment_end(const struct hspmd_replay *r, size_t first)
{
	size_t end = first;
	if (!r || !r->replaying)
		return first;
	while (end < r->p->vote && can_be_captured(r, &r->p->instructions[end]))
		end++;
	return end - first < LEAST ? first : end;
}

/* A segment whose capture fails has not been executed either. */
static struct hspmd_device_graph *record(struct hspmd_replay *r, size_t first, size_t end, hspmd_replay_run run, void *executor)
{
	struct hspmd_device_graph *made = NULL;
	struct hspmd_error err;
	int status = 0;
	if (r->dev->ops->capture_begin(r->dev, &err))
		return NULL;
	for (size_t i = first; !status && i < end; i++)
		status = run(executor, &i, &err);
	if (r->dev->ops->capture_end(r->dev, &made, &err) == 0 && !status)
		return made;
	r->dev->ops->graph_free(r->dev, made);
	return NULL;
}

static int launch(struct hspmd_replay *r, size_t first, size_t end, bool beside, hspmd_replay_run run, void *executor,
                  struct hspmd_error *err)
{
	const struct hspmd_device_ops *ops = r->dev->ops;
	if (!r->of[first])
		r->of[first] = record(r, first, end, run, executor);
	if (r->of[first])
		return (beside ? ops->replay_beside : ops->replay)(r->dev, r->of[first], err) ? -1 : 1;
	r->off = true;
	r->replaying = false;
	return 0;
}

int hspmd_replay_run_segment(struct hspmd_replay *r, size_t first, size_t end, hspmd_replay_run run, void *executor,
                             struct hspmd_error *err)
{
	return launch(r, first, end, false, run, executor, err);
}

int hspmd_replay_run_updates(struct hspmd_replay *r, bool beside, hspmd_replay_run run, void *executor, struct hspmd_error *err)
{
	return r && r->replaying && r->inputs_stay ? launch(r, r->p->vote, r->p->vote + 1, beside, run, executor, err) : 0;
}
