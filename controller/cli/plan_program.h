/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSPMD_CONTROLLER_CLI_PLAN_PROGRAM_H
#define HSPMD_CONTROLLER_CLI_PLAN_PROGRAM_H

#include "common/format/cluster.h"
#include "common/format/job.h"
#include "common/format/model.h"
#include "common/format/plan.h"

/* Print the program that one device ("node:index") runs under a plan, and its memory, on standard output; `length`: for samples of so many tokens (0: of the
 * plan's); `explain`: then why it communicates as it does. */
int hspmd_plan_print_program(const struct hspmd_cluster *cluster, const struct hspmd_model *model, const struct hspmd_plan *plan, const char *address,
			     int64_t length, bool explain, struct hspmd_error *err);

/* Can it be run? At the job's lengths, too, if it has some (NULL: there is no job yet). -1 and err when not: names plan path, tensor, annotation, or the length.
 * The program of every place in a pipeline that no pipeline before is like is made for it, the first of each stage first, and no more once that has taken
 * `limit_s` seconds; what another device finds is told by its worker, also before a step. Plans of more than 2,048 devices are not looked at, with a warning. */
int hspmd_plan_check_programs(const struct hspmd_cluster *cluster, const struct hspmd_model *model, const struct hspmd_plan *plan, const struct hspmd_job *job,
			      double limit_s, struct hspmd_error *err);

#endif
