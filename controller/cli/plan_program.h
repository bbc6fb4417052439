/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSPMD_CONTROLLER_CLI_PLAN_PROGRAM_H
#define HSPMD_CONTROLLER_CLI_PLAN_PROGRAM_H

#include "common/format/cluster.h"
#include "common/format/job.h"
#include "common/format/model.h"
#include "common/format/plan.h"

/* What programs are for. */
struct hspmd_plan_task {
	const struct hspmd_model *model;
	const struct hspmd_job *job;    /* NULL: there is no job yet */
	enum hspmd_precision precision; /* asked for, where there is no job: FP32 or BF16; of others programs are looked at as if in FP32,
	                                   and not printed */
};

/* Print the program that one device ("node:index") runs under a plan, and its memory, on standard output; `length`: for samples of so many
 * tokens (0: of the plan's); `explain`: then why it communicates as it does. With a job it is byte for byte what a worker of the job runs.
 * 0, or -1 and err. */
int hspmd_plan_print_program(const struct hspmd_cluster *cluster, const struct hspmd_plan_task *task, const struct hspmd_plan *plan,
                             const char *address, int64_t length, bool explain, struct hspmd_error *err);

/* Can it be run? At the job's lengths, too, if it has some. -1 and err when not: names plan path, tensor, annotation, or the length.
 * The program of every place in a pipeline that no pipeline before is like is made for it, the first of each stage first, and no more once
 * that has taken `limit_s` seconds; what another device finds is told by its worker, also before a step. Plans of more than 2,048 devices
 * are not looked at, with a warning. */
int hspmd_plan_check_programs(const struct hspmd_cluster *cluster, const struct hspmd_plan_task *task, const struct hspmd_plan *plan,
                              double limit_s, struct hspmd_error *err);

/* Does a plan of so much train what the job says? 0, or -1 and err, which names the plan's file and field. */
int hspmd_plan_check_job(const char *file, int64_t global_batch, int64_t seq_len, const struct hspmd_job *job, struct hspmd_error *err);

#endif
