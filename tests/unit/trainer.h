/* SPDX-License-Identifier: Apache-2.0 */
/* For tests: a whole job in one process, a thread a device over the memory transport. */
#ifndef TESTS_TRAINER_H
#define TESTS_TRAINER_H

#include <stdint.h>

#include "common/error.h"

/* Train a model (config.json text) on a made-up byte file under a plan (hspmd-plan-1 text, devices "n:0" ...) on `devices` CPU devices of one thread. losses[steps]. The job has
 * global_batch and seq_len of the plan. trainer_documents: the same with a text of short documents. 0, or -1 with err. */
int trainer_run(const char *model, const char *plan, int devices, int steps, double *losses, struct hspmd_error *err);
int trainer_documents(const char *model, const char *plan, int devices, int steps, double *losses, struct hspmd_error *err);

/* The models the tests train. */
extern const char trainer_gpt2[], trainer_llama[], trainer_mixtral[];

#endif
