/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's state, shared by worker.c (generations) and worker_checkpoint.c. */
#ifndef HSPMD_WORKER_WORKER_INTERNAL_H
#define HSPMD_WORKER_WORKER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "runtime/generation/generation.h"
#include "runtime/worker/inbox.h"

#define RECENT 64 /* losses kept for whoever asks after a fault */
#define LOADED_TAG ((UINT64_C(1) << 44) - 768)

struct worker_checkpoints;

struct worker {
	struct hspmd_worker_setup setup;
	struct hspmd_inbox *inbox;
	pthread_mutex_t lock; /* of active, next and checkpoint_request, which the reading thread looks at */
	struct hspmd_generation *active, *next;
	pthread_t preparer;
	bool preparing, meeting, training, quit;
	int stopped;                /* generation that `stopped` was last told of */
	atomic_int stop;            /* generation that is to stop after its step */
	int64_t step;               /* to be run next */
	int64_t ready;              /* gradients complete, vote not known; -1: none */
	int64_t applied;            /* last step this generation changed the state with; -1: none yet */
	struct hspmd_totals totals; /* of `applied` */
	int64_t recent_step[RECENT];
	double recent_loss[RECENT], last_heartbeat;
	double busy_s; /* computed in the steps since the last pulse */
	int busy_steps;
	json_t *checkpoint_request; /* not yet served; NULL: none */
	struct worker_checkpoints *checkpoints;
	json_t *unreadable; /* what a load that failed could not read, for the fault that tells of it; NULL: none */
};

/* Tell the controller what this worker cannot do. -1: it cannot be told. */
int worker_fault(struct worker *w, int generation, const struct hspmd_error *err);

/* ---- worker_checkpoint.c */
/* In the reading thread: somebody asks; and: who asked has gone. */
void worker_request_checkpoint(struct worker *w, json_t *message);
void worker_forget_checkpoint(struct worker *w);
/* For the vote: one was asked for and not served, and the one before it, which perhaps another controller asked for, has been written. */
bool worker_checkpoint_possible(struct worker *w);
/* Everyone had been asked, and could, when they voted on this step, so that nobody waits for another: copy the state and write it in the
 * background. -1: the controller cannot be told. */
int worker_snapshot(struct worker *w);
/* No step follows whose end would serve a request that there may be: serve it now or when the writer is free, or (why_not) refuse it. -1:
 * the controller cannot be told. */
int worker_serve_late(struct worker *w, const char *why_not);
/* The state is about to change: 0 when an image of it is no longer being taken. */
int worker_before_update(struct worker *w, struct hspmd_error *err);
/* This generation's connections are about to go: no copies are sent over them any more. NULL is fine. */
void worker_detach(struct worker *w, struct hspmd_generation *g);
/* `checkpoint` outside of training, `manifest`. */
int worker_handle_checkpoint(struct worker *w, const char *type, json_t *message);
void worker_end_checkpoints(struct worker *w);

#endif
