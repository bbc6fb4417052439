/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSPMD_CONTROLLER_CLI_PLAN_PROGRAM_H
#define HSPMD_CONTROLLER_CLI_PLAN_PROGRAM_H

#include "common/format/cluster.h"
#include "common/format/job.h"
#include "common/format/model.h"
#include "common/format/plan.h"

/* The task of the programs. */
struct hspmd_plan_task {
	const struct hspmd_model *model;
	const struct hspmd_job *job;    /* NULL: no job yet */
	enum hspmd_precision precision; /* without a job: the requested precision; programs in FP16 and FP64 are checked as
	                                   if in FP32, and not printed */
};

/* Print the program that one device ("node:index") runs under a plan, and its memory, to standard output. `length`: tokens per sample (0:
 * the plan's). `explain`: also print why each communication was chosen, and the least time of every instruction. With a job the program is
 * byte for byte that of the job's worker. 0, or -1 and err. */
int hspmd_plan_print_program(const struct hspmd_cluster *cluster, const struct hspmd_plan_task *task, const struct hspmd_plan *plan,
                             const char *address, int64_t length, bool explain, struct hspmd_error *err);

/* Checks that the plan can run, also at the job's lengths if it has some. -1 and err if not; err names plan path, tensor, annotation, or
 * the length. Makes the program of every position in a pipeline, but for identical pipelines only once, starting with the first device of
 * each stage; makes no further program after `limit_s` seconds. A fault of another device is reported by its worker, also before the first
 * step. Plans of more than 16,384 devices are not checked, with a warning. */
int hspmd_plan_check_programs(const struct hspmd_cluster *cluster, const struct hspmd_plan_task *task, const struct hspmd_plan *plan,
                              double limit_s, struct hspmd_error *err);

/* 0 if a plan of these sizes trains what the job says; else -1 and err, which names the plan's file and field. */
int hspmd_plan_check_job(const char *file, int64_t global_batch, int64_t seq_len, const struct hspmd_job *job, struct hspmd_error *err);

#endif
