/* SPDX-License-Identifier: Apache-2.0 */
/* Communication that overlaps computation: a thread runs communication steps one after another, in the order in which they were issued,
 * while its caller computes. The results do not depend on when the steps run. All waits are the transport's: they have its deadline and
 * end when it is aborted. A step that fails makes the engine fail: later calls that issue or wait return that step's error.
 *
 * Transport and steps are used by one thread at a time, the engine's or the caller's. If nothing is issued and nothing is running
 * (hspmd_engine_drain), the caller may use the transport. All functions must be called from one thread. */
#ifndef HSPMD_COMM_ENGINE_H
#define HSPMD_COMM_ENGINE_H

#include "runtime/comm/comm.h"

struct hspmd_engine;

/* This device's part of a step, as in hspmd_comm_run. All pointers must stay valid until the step is done. */
struct hspmd_engine_job {
	const struct hspmd_transfer *transfer;
	const struct hspmd_comm_step *step;
	enum hspmd_dtype dtype;
	const void *in;
	void *out;
	size_t in_bytes, out_bytes;
	struct hspmd_row_choice choice; /* of a dispatch or combine, whose job is to be run, not issued: what it reads is not noted */
	uint64_t tag;
	/* Further jobs whose steps are joined with this one (hspmd_comm_run_joined): of the same dtype and tag, without `joined` of their
	 * own. Receives of joined steps are not posted early. */
	const struct hspmd_engine_job *joined;
	int joined_count;
	const char *tensor; /* for errors */
	int micro_batch;    /* for errors; -1: none */
	int number;         /* chosen by the caller, for on_done */
};

/* Called when a step is done, by the thread that ran it. */
typedef void hspmd_engine_on_done(void *context, int number, double began, double ended);

struct hspmd_engine_options {
	struct hspmd_device *device;
	struct hspmd_transport *transport;
	struct hspmd_devcomm *devcomm; /* of hspmd_comm_use_devcomm: steps that use it are enqueued when they are issued. Only if not
	                                  `threaded`; may be NULL */
	const int *rank_of;            /* rank_of, count, self: as in hspmd_comm_create */
	int count, self;
	bool threaded; /* false: steps run in the caller when it waits for them; for devices that do not compute in host memory */
	hspmd_engine_on_done *on_done; /* may be NULL */
	void *context;
};

/* Borrows device and transport. NULL and err on failure. */
struct hspmd_engine *hspmd_engine_create(const struct hspmd_engine_options *o, struct hspmd_error *err);
/* To be called before the transport is closed. A running step ends by itself: if it may be waiting for a peer, set the transport's abort
 * flag first. */
void hspmd_engine_destroy(struct hspmd_engine *e);

/* Queue the step to run concurrently with what follows. Steps on one engine see each other's results. */
int hspmd_engine_issue(struct hspmd_engine *e, const struct hspmd_engine_job *job, struct hspmd_error *err);
/* As hspmd_engine_issue, for a step in which this device only sends and so never waits: if the queue is empty, it starts in the caller. */
int hspmd_engine_start(struct hspmd_engine *e, const struct hspmd_engine_job *job, struct hspmd_error *err);
/* Issue the step and wait until its results have been received; sends may still be in transit. */
int hspmd_engine_run(struct hspmd_engine *e, const struct hspmd_engine_job *job, struct hspmd_error *err);
/* Start to receive a step's messages into buffers (hspmd_comm_post_receives). 1; 0: the step receives nothing; -1 and err. */
int hspmd_engine_post_receives(struct hspmd_engine *e, const struct hspmd_engine_job *job, struct hspmd_error *err);
/* Wait until [data, data + bytes) may be read: the issued steps have written it. `writing`: until it may be overwritten: they have also
 * read it and completed sends from it. */
int hspmd_engine_wait_range(struct hspmd_engine *e, const void *data, size_t bytes, bool writing, struct hspmd_error *err);
/* Wait until all issued steps, and all sends, are done. */
int hspmd_engine_drain(struct hspmd_engine *e, struct hspmd_error *err);
/* Bytes that this device has sent so far (hspmd_comm_sent_bytes). NULL: 0. */
uint64_t hspmd_engine_sent_bytes(const struct hspmd_engine *e);

#endif
