/* SPDX-License-Identifier: Apache-2.0 */
/* The executor runs a program: one loop over its instructions. A step consists of gradients, vote and commit; the state does not change
 * before all devices have answered the vote (doc/design.md, law 3). */
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
	const struct hspmd_program *program; /* borrowed, like all pointers here */
	struct hspmd_device *device;
	struct hspmd_transport *transport; /* NULL if the plan has one device */
	struct hspmd_devcomm *devcomm[2];  /* device-to-device communication of the passes, and of the rest of the step; NULL: none */
	struct hspmd_transport *overlap_transport; /* a second transport between the same members, for communication that overlaps
	                                              computation; NULL: none overlaps */
	const int *rank_of;                        /* transport rank by device number; -1: not a member */
	int device_count;                          /* number of entries of rank_of */
	const int *voters;                         /* transport ranks of the plan's devices, the same list on all devices */
	int voter_count;
	struct hspmd_sample_source samples;
	/* The program that a step will run, so that its samples can be read ahead; NULL: the one that runs. */
	const struct hspmd_program *(*program_of_step)(void *context, int64_t step);
	void *program_context;
	const struct hspmd_job *job;
	struct hspmd_timeline *timeline;     /* records what is run when; NULL: nothing is recorded */
	struct hspmd_persistent *persistent; /* memory that outlives the process, of hspmd_executor_persistent_bytes; only if the device
	                                        computes in host memory. NULL: nothing outlives it */
	void *host; /* memory of allocate_host for what the program offloads (hspmd_executor_host_bytes); NULL: the executor allocates it */
	double *seconds; /* NULL, or one entry per instruction: seconds of its latest run. The executor waits for the device only between
	                    layers and passes, so the time of an instruction may be counted with the last one of its layer. */
};

/* Bytes of the memory that outlives the process: parameters and moments, and the gradients that are needed to complete a step after its
 * vote. */
size_t hspmd_executor_persistent_bytes(const struct hspmd_program *p);
size_t hspmd_executor_persistent_arena(const struct hspmd_program *p); /* offset of the transient arena in it; 0: the arena is elsewhere */
/* Hash of the layout of that memory. Two programs with the same hash have the same layout. */
uint64_t hspmd_executor_persistent_layout(const struct hspmd_program *p);

/* Most bytes of the device's memory that an executor of the program allocates. */
size_t hspmd_executor_device_bytes(const struct hspmd_program *p);
/* Bytes of the host's memory for what the program offloads; 0: it offloads nothing. */
size_t hspmd_executor_host_bytes(const struct hspmd_program *p);

/* Allocates the program's memory on the device; state slots are not filled. NULL and err on failure. */
struct hspmd_executor *hspmd_executor_create(const struct hspmd_executor_options *o, struct hspmd_error *err);
void hspmd_executor_destroy(struct hspmd_executor *ex);
/* To be called before the transport is closed. Afterwards only local functions work (commit, slots). */
void hspmd_executor_disconnect(struct hspmd_executor *ex);

/* Training is over: free everything except the state, which stays readable. Nothing else works afterwards. */
void hspmd_executor_release_scratch(struct hspmd_executor *ex);
/* Also spill the state to host memory or disk (runtime/state/spill.h), which frees all device memory; what is offloaded stays where it is.
 * Afterwards `persistent` may be closed. -1 and err: the state is still where it was. */
int hspmd_executor_spill(struct hspmd_executor *ex, const char *folder, struct hspmd_error *err);
bool hspmd_executor_spilled(const struct hspmd_executor *ex);

/* Run `program` from the next step on: the one that the executor was created with, or another of its set (program_set.h). The state
 * stays; parameters must be gathered anew before a program of another plan computes. 0 or -1 (memory). */
int hspmd_executor_set_program(struct hspmd_executor *ex, const struct hspmd_program *program, struct hspmd_error *err);

/* Record the next steps; NULL: no longer. Between steps only, when no communication is under way. */
void hspmd_executor_set_timeline(struct hspmd_executor *ex, struct hspmd_timeline *timeline);

/* Read samples from this source, from the next pass on. */
void hspmd_executor_set_samples(struct hspmd_executor *ex, struct hspmd_sample_source samples);

/* Address of a slot's bytes: on the device, or where the state was spilled. Slots are those of the program that the executor was created
 * with. */
void *hspmd_executor_slot_data(const struct hspmd_executor *ex, int slot);
/* Returns true if the host can read and write the bytes at this address. */
bool hspmd_executor_slot_in_host(const struct hspmd_executor *ex, int slot);
/* Initialise the state (parameters at random by the job's seed, moments with zero): the same numbers under any plan. */
int hspmd_executor_initialise(struct hspmd_executor *ex, struct hspmd_error *err);
/* Gather parameters from the devices that hold their state to the devices that use them in the program that runs next: after the state
 * was filled, after every commit, and after a change to another plan's program. Does nothing if that has been done. updates: number of
 * updates that the state has had, which is the next step's number; it determines how copies are rounded. Collective. */
int hspmd_executor_gather_parameters(struct hspmd_executor *ex, int64_t updates, struct hspmd_error *err);

/* The values that a step's vote sums over all devices. */
struct hspmd_totals {
	double square_sum; /* of the gradients */
	double loss;
	double stop;       /* number of devices that were asked to stop after this step */
	double checkpoint; /* number of devices with a request for a checkpoint of the state after this step */
};
#define HSPMD_TOTALS_COUNT ((int)(sizeof(struct hspmd_totals) / sizeof(double)))

/* Bytes that this device has sent to others so far, in all steps. */
uint64_t hspmd_executor_sent_bytes(const struct hspmd_executor *ex);

struct hspmd_step_times {
	double compute_s, communication_s; /* communication_s: only the time in which the device did not compute */
};

/* Compute the gradients of step `step` (0-based) of the global batch. `own`: receives this device's part of the totals; stop and
 * checkpoint are not changed. */
int hspmd_executor_gradients(struct hspmd_executor *ex, int64_t step, struct hspmd_totals *own, struct hspmd_step_times *times,
                             struct hspmd_error *err);
/* The vote: sum all devices' `own` into `all`, in the order of the voters, so that all get the same bits. Success means that all
 * gradients are complete. */
int hspmd_executor_vote(struct hspmd_executor *ex, int64_t step, const struct hspmd_totals *own, struct hspmd_totals *all,
                        struct hspmd_error *err);
/* Update the state with the totals of the vote. Local, and cannot be aborted halfway; a failure means that the device is lost. The device
 * may still run the updates when this returns (update_groups.h): whatever asks for the state's address waits for them. If the
 * process that had `persistent` before was killed during this update, the update is completed. */
int hspmd_executor_commit(struct hspmd_executor *ex, int64_t step, const struct hspmd_totals *all, struct hspmd_error *err);

/* All three in one call. all: in: this device's `stop` and `checkpoint`; out: the totals. */
int hspmd_executor_step(struct hspmd_executor *ex, int64_t step, struct hspmd_totals *all, struct hspmd_step_times *times,
                        struct hspmd_error *err);
/* Returns true if this device alone votes and takes a step's values from its memory: hspmd_executor_step then asks for the update behind
 * the passes, without a wait of the host between them. Whatever must not see the state change must be done before. */
bool hspmd_executor_is_alone(const struct hspmd_executor *ex);
/* Returns true if the latest update has failed and may or may not have been done: nobody knows which step the state is of. */
bool hspmd_executor_is_torn(const struct hspmd_executor *ex);

#endif
