/* SPDX-License-Identifier: Apache-2.0 */
/* Training within one process: one thread per device of the plan, messages through memory. For programs that use libhspmd directly, for
 * small experiments and tests; training that spans processes and survives their end is `hspmd run`. */
#ifndef HSPMD_EXEC_TRAIN_LOCAL_H
#define HSPMD_EXEC_TRAIN_LOCAL_H

#include "runtime/exec/execute.h"

struct hspmd_train_local_options {
	struct hspmd_graph_source source;
	const struct hspmd_cluster *cluster;
	const struct hspmd_plan *plan;
	const struct hspmd_job *job;        /* seed, global_batch, optimizer, rounding; other fields are not used */
	struct hspmd_sample_source samples; /* called from several threads at once */
	int64_t steps;
	/* Steps may have several sequence lengths up to the plan's: step s has lengths[length_of_step(length_context, s)], and runs the
	 * plan's `shorter` plan for it if there is one. lengths NULL:
	 * all steps have the plan's length. */
	const int64_t *lengths;
	int length_count;
	int (*length_of_step)(void *context, int64_t step);
	void *length_context;
	/* If steps mix these lengths: sample n (step * global batch + index in the batch) has
	 * lengths[length_of_sample(length_context, n)], and length_of_step is not asked. NULL: they do not. */
	int (*length_of_sample)(void *context, int64_t number);
	int threads;           /* per CPU device; 0: 1 */
	const int *threads_of; /* by device of the cluster, if they differ; NULL: all have `threads` */
	double timeout_s;      /* of one wait for a peer; 0: 60 */
	/* Called after every step, from one thread, with the loss of the global batch. NULL: not called. */
	void (*on_loss)(void *context, int64_t step, double loss);
	void *context;
	/* Called at the end from every device's thread, one at a time, to read its part of the state. 0 or -1. NULL: not called. */
	int (*on_end)(void *context, const struct hspmd_program *program, const struct hspmd_executor *executor,
	              struct hspmd_device *device, struct hspmd_error *err);
};

/* 0, or -1 and the first error of any device. */
int hspmd_train_local(const struct hspmd_train_local_options *options, struct hspmd_error *err);

#endif
