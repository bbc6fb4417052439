/* SPDX-License-Identifier: Apache-2.0 */
/* Executing a program: one loop over its instructions. A step is gradients, vote, commit; nothing of the state changes before the vote has
 * been answered by everyone (DESIGN law 3). */
#ifndef HSPMD_EXEC_EXECUTE_H
#define HSPMD_EXEC_EXECUTE_H

#include "common/format/job.h"
#include "runtime/comm/engine.h"
#include "runtime/input/sample_source.h"
#include "runtime/state/persistent.h"
#include "runtime/program/program.h"
#include "runtime/exec/timeline.h"

struct hspmd_executor;

struct hspmd_executor_options {
	const struct hspmd_program *program; /* borrowed, like all here */
	struct hspmd_device *device;
	struct hspmd_transport *transport; /* NULL: the plan has one device */
	struct hspmd_devcomm *devcomm[2];  /* what of passes, and of the rest, goes straight between devices; NULL: nothing */
	struct hspmd_transport
	        *overlap_transport; /* another between the same members, for what goes on beside computation; NULL: nothing does */
	const int *rank_of;         /* transport rank of a device number, -1: not a member */
	int device_count;           /* entries of rank_of */
	const int *voters;          /* transport ranks of the plan's devices, the same list everywhere */
	int voter_count;
	struct hspmd_sample_source samples;
	const struct hspmd_job *job;
	struct hspmd_timeline *timeline;     /* NULL, or what the latest step did when */
	struct hspmd_persistent *persistent; /* holds what must outlive the process, of hspmd_executor_persistent_bytes; the device's memory
	                                        is the host's. NULL: nothing does */
	double *seconds; /* NULL, or an entry per instruction: what it took when it last ran. The device is waited for where layer or pass
	                  * change, so an instruction before may have done its work in the time of the last one of its layer. */
};

/* What outlives the process: parameters and moments, and the gradients with which a step that was voted for can be ended. */
size_t hspmd_executor_persistent_bytes(const struct hspmd_program *p);
size_t hspmd_executor_persistent_arena(const struct hspmd_program *p); /* where the arena begins in it; 0: it lies elsewhere */
/* Two programs of one layout have the same there. */
uint64_t hspmd_executor_persistent_layout(const struct hspmd_program *p);

/* Allocates the program's memory on the device; state slots are not filled. NULL and err on failure. */
struct hspmd_executor *hspmd_executor_create(const struct hspmd_executor_options *o, struct hspmd_error *err);
void hspmd_executor_destroy(struct hspmd_executor *ex);
/* The transport is about to be closed: only what is local works from now on (commit, slots). */
void hspmd_executor_disconnect(struct hspmd_executor *ex);

/* It trains no more: what it has beside its state goes. The state can still be read, and nothing else be done. */
void hspmd_executor_release_scratch(struct hspmd_executor *ex);
/* Its state waits elsewhere, too (runtime/state/spill.h), and the device has all of its memory for another. What was borrowed of
 * `persistent` may be closed then. -1: still where it was. */
int hspmd_executor_spill(struct hspmd_executor *ex, const char *folder, struct hspmd_error *err);
bool hspmd_executor_spilled(const struct hspmd_executor *ex);

/* From the next step on run `program`: the one it was created with, or that at another length (seq_len.h). The state stays. 0 or -1
 * (memory). */
int hspmd_executor_set_program(struct hspmd_executor *ex, const struct hspmd_program *program, struct hspmd_error *err);

/* From the next pass on read samples from there. */
void hspmd_executor_set_samples(struct hspmd_executor *ex, struct hspmd_sample_source samples);

/* Where a slot's bytes are: on the device, or where the state was spilled. */
void *hspmd_executor_slot_data(const struct hspmd_executor *ex, int slot);
/* Fill one state (parameter, zero moments) at random as the job's seed says: the same numbers under any plan. */
int hspmd_executor_initialise(struct hspmd_executor *ex, struct hspmd_error *err);
/* Bring parameters from where their state lies to where they are used: after the state was filled, and after every commit. updates: how
 * many the state has had, which is the step that comes next; it says how copies are rounded. Collective. */
int hspmd_executor_gather_parameters(struct hspmd_executor *ex, int64_t updates, struct hspmd_error *err);

/* What a step's vote sums over all devices. */
struct hspmd_totals {
	double square_sum; /* of the gradient */
	double loss;
	double stop;       /* how many devices were asked to stop after this step */
	double checkpoint; /* how many were asked to keep a snapshot of this step's end */
};
#define HSPMD_TOTALS_COUNT ((int)(sizeof(struct hspmd_totals) / sizeof(double)))

struct hspmd_step_times {
	double compute_s, communication_s; /* the latter: in which nothing was computed */
};

/* Gradients of step `step` (0-based) of the global batch. `own`: this device's part of the totals (stop and checkpoint untouched). */
int hspmd_executor_gradients(struct hspmd_executor *ex, int64_t step, struct hspmd_totals *own, struct hspmd_step_times *times,
                             struct hspmd_error *err);
/* The vote: everyone's `own` summed into `all` in the order of the voters, the same bits everywhere; finishing means that all gradients are
 * complete. */
int hspmd_executor_vote(struct hspmd_executor *ex, int64_t step, const struct hspmd_totals *own, struct hspmd_totals *all,
                        struct hspmd_error *err);
/* Change the state with the totals of the vote; local, cannot be aborted halfway. A failure here means that the device is lost. Where
 * `persistent` was torn in this step it is ended. */
int hspmd_executor_commit(struct hspmd_executor *ex, int64_t step, const struct hspmd_totals *all, struct hspmd_error *err);

#endif
