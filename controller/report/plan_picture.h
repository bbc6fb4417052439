/* SPDX-License-Identifier: Apache-2.0 */
/* Plans as pictures: a row per pipeline, a block per stage, as wide as its time, in the colour of its devices' type. */
#ifndef HSPMD_CONTROLLER_REPORT_PLAN_PICTURE_H
#define HSPMD_CONTROLLER_REPORT_PLAN_PICTURE_H

#include <stdio.h>

#include "controller/report/generations.h"

#define REPORT_PLANS_MAX 60     /* pictures; of more generations the first and the last are drawn */
#define REPORT_PIPELINES_MAX 64 /* rows of a picture */

/* The part of the page on a run's generations: a table, and a picture of each plan. Writes nothing without generations. */
void report_plans_write(FILE *out, const struct report_run *r, const struct report_generation *list, int count);
/* The plans that are drawn, by generation; NULL: out of memory. */
json_t *report_plans_json(const struct report_generation *list, int count);

#endif
