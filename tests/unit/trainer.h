/* SPDX-License-Identifier: Apache-2.0 */
/* For tests: a whole job in one process, a thread a device over the memory transport. */
#ifndef TESTS_TRAINER_H
#define TESTS_TRAINER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"

struct hspmd_device;
struct hspmd_executor;
struct hspmd_program;

struct trainer_options {
	const char *model, *plan; /* config.json and hspmd-plan-1 as text; devices "n:0" ... */
	int devices, steps;
	unsigned gpus;       /* bit d: device d is a CUDA device, else a CPU device of one thread */
	const char *cluster; /* hspmd-cluster-1 as text, whose devices the plan names; NULL: one node "n" of `devices` */
	bool documents;      /* a text of short documents */
	bool bf16;
	bool stochastic; /* with bf16: how parameters are rounded */
	double clip;     /* of the gradient's norm; 0: the job's default, below 0: none */
	/* As in struct hspmd_train_local_options; NULL: nobody looks at the state. */
	int (*on_end)(void *context, const struct hspmd_program *program, const struct hspmd_executor *executor,
	              struct hspmd_device *device, struct hspmd_error *err);
	void *context;
};

#define TRAINER_SEED 7 /* of every job */

/* Train on a made-up byte file. losses[steps]. The job has global_batch and seq_len of the plan. 0, or -1 with err. */
int trainer_train(const struct trainer_options *o, double *losses, struct hspmd_error *err);
/* The same on CPU devices; trainer_documents: with documents. */
int trainer_run(const char *model, const char *plan, int devices, int steps, double *losses, struct hspmd_error *err);
int trainer_documents(const char *model, const char *plan, int devices, int steps, double *losses, struct hspmd_error *err);

/* The models the tests train. */
extern const char trainer_gpt2[], trainer_llama[], trainer_mixtral[];

#endif
