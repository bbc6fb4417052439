/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's state, shared by worker.c (messages and generations), worker_train.c (steps), worker_checkpoint.c and worker_report.c. */
#ifndef HSPMD_WORKER_WORKER_INTERNAL_H
#define HSPMD_WORKER_WORKER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "runtime/generation/generation.h"
#include "runtime/input/own_samples.h"
#include "runtime/worker/inbox.h"

#define RECENT 64 /* number of latest losses kept, to be reported after a fault */
#define LOADED_TAG ((UINT64_C(1) << 44) - 768)

struct worker_checkpoints;
struct worker_trace;

struct worker {
	int (*handle)(struct worker *w, json_t *message); /* carries out a message. 0, or -1: the worker cannot continue */
	struct hspmd_worker_setup setup;
	struct hspmd_own_object *object; /* a model of the user's own; NULL: a built-in one */
	struct hspmd_own_samples own_samples[2]; /* that such a model reads: training and validation data */
	struct hspmd_inbox *inbox;
	pthread_mutex_t lock; /* protects active, next and checkpoint_request, which the reading thread uses too */
	struct hspmd_generation *active, *next;
	pthread_t preparer;
	json_t *lent; /* what the preparer reads, without counting references, which threads must not share; NULL: nothing */
	bool preparing, preconnecting, training, quit;
	atomic_int exchanged; /* addresses of `next`: 0: not yet, 1: known, -1: exchange_error */
	struct hspmd_error exchange_error;
	bool connecting; /* preconnecting, and the addresses are known */
	int stopped;                /* generation for which `stopped` was last sent */
	atomic_int stop;            /* generation that must stop after its current step */
	int64_t step;               /* next to be run */
	int64_t ready;              /* step whose gradients are complete and whose vote is not known; -1: none */
	int64_t applied;            /* last step whose update this generation made; -1: none yet */
	struct hspmd_totals totals; /* of `applied` */
	int64_t recent_step[RECENT];
	double recent_loss[RECENT], last_heartbeat;
	double gather_s; /* seconds of the last gathering of parameters */
	double busy_s; /* computing time of the steps since the last heartbeat */
	int busy_steps;
	double plan_busy_s; /* of these, the steps that ran the plan itself */
	int plan_steps;
	struct {
		int generation;
		int64_t peak_bytes;  /* of memory */
		uint64_t sent_bytes; /* until the last report */
	} load;
	json_t *checkpoint_request; /* not yet executed; NULL: none */
	struct worker_checkpoints *checkpoints;
	pthread_t commit[2]; /* carry out the last `write_manifest` or `committed` of this node's own folders, and of the shared one */
	bool has_commit[2];
	struct worker_trace *trace;
	atomic_int traced;  /* a trace is to be recorded, or is being recorded */
	json_t *stored;     /* `state` of the last `stored` message, and its generation; NULL: there was none */
	int stored_generation;
	json_t *unreadable; /* the file that a failed load could not read, for the `fault` message; NULL: none */
};

/* ---- worker_report.c: -1: the controller cannot be told */
/* Report to the controller that this worker cannot do something. */
int worker_fault(struct worker *w, int generation, const struct hspmd_error *err);
/* Reports that the next generation's connections between devices have been made, once. */
int worker_report_preconnected(struct worker *w);
int worker_report_stopped(struct worker *w, int generation);
/* A message with the state's step and the latest losses; NULL: out of memory. */
json_t *worker_state_report(const struct worker *w, const char *type, int generation);
/* JSON has no infinities: a number that is not finite is sent as null. */
json_t *worker_number_or_null(double x);

/* ---- worker_data.c: 0, or -1 and err */
/* Load the object of a model of the user's own, in base64; NULL: the message had none. */
int worker_load_model(struct worker *w, const char *object, struct hspmd_error *err);
int worker_open_data(struct worker *w, struct hspmd_error *err);
void worker_close_data(struct worker *w);

/* ---- worker_trace.c; -1: the controller cannot be told */
int worker_trace_create(struct worker *w, struct hspmd_error *err);
void worker_trace_destroy(struct worker *w); /* NULL is fine */
/* Called in the reading thread: carries out `trace`. */
void worker_trace_order(struct worker *w, json_t *message);
/* A part of a change to generation g has ended; `name` is a literal. Any thread. */
void worker_trace_change(struct worker *w, const struct hspmd_generation *g, const char *name, double began);
/* Around each step. */
void worker_trace_begin_step(struct worker *w);
int worker_trace_end_step(struct worker *w);
void worker_trace_part(struct worker *w, enum hspmd_step_part part, double began, double ended);
void worker_trace_pause(struct worker *w, bool pause); /* instructions that are not a step's own are not recorded */
/* Sends what was recorded of generation g, which is at rest or NULL. */
int worker_trace_flush(struct worker *w, const struct hspmd_generation *g);
/* The same after a failure, when its connections have been closed. */
void worker_trace_disconnected(struct worker *w, const struct hspmd_generation *g);
int worker_trace_end(struct worker *w); /* ends the trace, if there is one */

/* ---- worker_train.c */
/* Trains until all steps are done, a stop is requested, or something fails. -1: the worker cannot continue. */
int worker_train(struct worker *w);
/* The step has been committed. */
void worker_remember_step(struct worker *w, const struct hspmd_totals *all);
/* Records whether all gradients of the next step are complete. */
void worker_set_ready(struct worker *w, bool ready);

/* ---- worker_checkpoint.c */
/* Called in the reading thread: a request has arrived; the controller that made the request is gone. */
void worker_request_checkpoint(struct worker *w, json_t *message);
void worker_forget_checkpoint(struct worker *w);
/* For the vote: returns true if a request has not been served, and the previous checkpoint, perhaps of another controller, has been
 * written; what still goes to the shared folder counts only if the request is for nothing else. */
bool worker_checkpoint_possible(struct worker *w);
/* All workers had been asked, and were able, when they voted on this step, so that none waits for another: copy the state and write it in
 * the background. -1: the controller cannot be told. */
int worker_snapshot(struct worker *w);
/* No further step would serve a pending request: serve the request now or as soon as the writer is free, or, if why_not is given, refuse
 * it. -1: the controller cannot be told. */
int worker_serve_late(struct worker *w, const char *why_not);
/* To be called before the state changes: returns 0 when no image of it is being taken any more. */
int worker_before_update(struct worker *w, struct hspmd_error *err);
/* Returns true if that may block. */
bool worker_is_copying(const struct worker *w);
/* To be called before this generation's connections are closed: afterwards no copies are sent over them. NULL is fine. */
void worker_detach(struct worker *w, struct hspmd_generation *g);
/* Executes `checkpoint` outside of training, and `manifest`. */
int worker_handle_checkpoint(struct worker *w, const char *type, json_t *message);
void worker_end_checkpoints(struct worker *w);

/* ---- worker_choices.c; lines: as a plan's `choices` */
/* Takes over what other devices have chosen. lines NULL: nothing. */
int worker_take_choices(struct worker *w, const json_t *lines, struct hspmd_error *err);
/* What this device has chosen that is not in `known`, and the workspace_most of its program: new reference; NULL: nothing. */
json_t *worker_new_choices(struct worker *w, const json_t *known, uint32_t most);

#endif
