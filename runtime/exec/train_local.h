/* SPDX-License-Identifier: Apache-2.0 */
/* Training within one process: a thread a device of the plan, messages through memory. For programs that use libhspmd directly, for small
 * experiments and tests; what spans processes and survives them is `hspmd run`. */
#ifndef HSPMD_EXEC_TRAIN_LOCAL_H
#define HSPMD_EXEC_TRAIN_LOCAL_H

#include "runtime/exec/execute.h"

struct hspmd_train_local_options {
	struct hspmd_graph_source source;
	const struct hspmd_cluster *cluster;
	const struct hspmd_plan *plan;
	const struct hspmd_job *job;        /* seed, global_batch, optimizer, rounding; other fields are not looked at */
	struct hspmd_sample_source samples; /* called from several threads at once */
	int64_t steps;
	/* Steps may be of several sequence lengths up to the plan's: step s of lengths[which(length_context, s)]. lengths NULL: all are of
	 * the plan's. */
	const int64_t *lengths;
	int length_count;
	int (*length_of_step)(void *context, int64_t step);
	void *length_context;
	int threads;           /* of each CPU device; 0: 1 */
	const int *threads_of; /* by device of the cluster, where they differ; NULL: they do not */
	double timeout_s;      /* of one wait for a peer; 0: 60 */
	/* After every step, from one thread: the loss of the global batch. NULL: nothing is told. */
	void (*on_loss)(void *context, int64_t step, double loss);
	void *context;
	/* At the end, from every device's thread, one at a time: its share of the state may be taken. 0 or -1. NULL: nobody wants it. */
	int (*on_end)(void *context, const struct hspmd_program *program, const struct hspmd_executor *executor,
	              struct hspmd_device *device, struct hspmd_error *err);
};

/* 0, or -1 with the first thing that went wrong. */
int hspmd_train_local(const struct hspmd_train_local_options *options, struct hspmd_error *err);

#endif
