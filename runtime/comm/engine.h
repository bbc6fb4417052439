/* SPDX-License-Identifier: Apache-2.0 */
/* Communication beside computation: a thread that runs communication steps one after another, in the order in which they were issued, while
 * its caller computes. What the steps give does not depend on when they run. All its waits are the transport's: they have its deadline and
 * end when it is aborted. A step that fails fails the engine: whoever issues or waits later gets that step's error.
 *
 * Transport and steps are used by one thread at a time, the engine's or the caller's; when nothing is issued and nothing under way
 * (hspmd_engine_drain) the transport is the caller's. One thread calls all this. */
#ifndef HSPMD_COMM_ENGINE_H
#define HSPMD_COMM_ENGINE_H

#include "runtime/comm/comm.h"

struct hspmd_engine;

/* This device's part of a step, as hspmd_comm_run has it. All pointers must last until the step is done. */
struct hspmd_engine_job {
	const struct hspmd_transfer *transfer;
	const struct hspmd_comm_step *step;
	enum hspmd_dtype dtype;
	const void *in;
	void *out;
	size_t in_bytes, out_bytes;
	uint64_t tag;
	const char *tensor; /* for errors */
	int micro_batch;    /* the same; -1: none */
	int number;         /* of the caller's, for `watch` */
};

/* Called by whoever ran a step, when it is done. */
typedef void hspmd_engine_on_done(void *context, int number, double began, double ended);

struct hspmd_engine_options {
	struct hspmd_device *device;
	struct hspmd_transport *transport;
	struct hspmd_devcomm *devcomm; /* of hspmd_comm_use_devcomm: what goes that way is enqueued when it is issued. Only where it is not
	                                  `threaded`; may be NULL */
	const int *rank_of;            /* these three as of hspmd_comm_create */
	int count, self;
	bool threaded; /* false: steps run in the caller, when they are waited for; for devices whose memory is not the host's */
	hspmd_engine_on_done *on_done; /* NULL: nobody looks */
	void *context;
};

/* Borrows device and transport. NULL and err on failure. */
struct hspmd_engine *hspmd_engine_create(const struct hspmd_engine_options *o, struct hspmd_error *err);
/* Before the transport is closed. What is running ends by itself: set the transport's abort flag first where it may be waiting for
 * someone. */
void hspmd_engine_destroy(struct hspmd_engine *e);

/* Let it be done beside what follows. Steps of one engine see one another's results. */
int hspmd_engine_issue(struct hspmd_engine *e, const struct hspmd_engine_job *job, struct hspmd_error *err);
/* As issue, for a step in which this device only sends, so that it never waits: begun in the caller where nothing is before it. */
int hspmd_engine_start(struct hspmd_engine *e, const struct hspmd_engine_job *job, struct hspmd_error *err);
/* Issue and wait for what it brings: sends may still be under way. */
int hspmd_engine_run(struct hspmd_engine *e, const struct hspmd_engine_job *job, struct hspmd_error *err);
/* Let what a step will bring come into buffers (hspmd_comm_post_receives). 1; 0: nothing comes; -1. */
int hspmd_engine_post_receives(struct hspmd_engine *e, const struct hspmd_engine_job *job, struct hspmd_error *err);
/* Wait until [data, data + bytes) may be read (what was issued has written it), and, `writing`, overwritten (it has read it and sent it
 * away). */
int hspmd_engine_wait_range(struct hspmd_engine *e, const void *data, size_t bytes, bool writing, struct hspmd_error *err);
/* Wait for all that was issued and sent. */
int hspmd_engine_drain(struct hspmd_engine *e, struct hspmd_error *err);

#endif
