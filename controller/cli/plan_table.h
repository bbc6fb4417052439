/* SPDX-License-Identifier: Apache-2.0 */
/* A plan as a table for people, at most HSPMD_PLAN_COLUMNS wide whatever its names and numbers are. */
#ifndef HSPMD_CONTROLLER_CLI_PLAN_TABLE_H
#define HSPMD_CONTROLLER_CLI_PLAN_TABLE_H

#include <stdio.h>

#include "controller/solver/solver.h"

#define HSPMD_PLAN_COLUMNS 100

/* Print sentences, broken between words so that no line is wider than that; continuation lines are indented by two columns. */
void hspmd_plan_wrap(FILE *to, const char *text);

/* current: there is a current plan, from which bytes move. */
void hspmd_plan_table(FILE *to, const struct hspmd_plan *p, const struct hspmd_cluster *c, const struct hspmd_solve_report *report,
                      bool current);

#endif
