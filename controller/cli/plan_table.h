/* SPDX-License-Identifier: Apache-2.0 */
/* A plan as a table for people, at most 100 columns wide. */
#ifndef HSPMD_CONTROLLER_CLI_PLAN_TABLE_H
#define HSPMD_CONTROLLER_CLI_PLAN_TABLE_H

#include <stdio.h>

#include "controller/solver/solver.h"

/* current: there is a present plan, from which bytes move. */
void hspmd_plan_table(FILE *to, const struct hspmd_plan *p, const struct hspmd_cluster *c, const struct hspmd_solve_report *report, bool current);

#endif
