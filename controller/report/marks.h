/* SPDX-License-Identifier: Apache-2.0 */
/* What to mark in the charts of several runs: changes of the allocation, and over time also checkpoints and faults. */
#ifndef HSPMD_CONTROLLER_REPORT_MARKS_H
#define HSPMD_CONTROLLER_REPORT_MARKS_H

#include <stdbool.h>

#include "controller/report/chart.h"

struct report_marks {
	int count;
	struct report_mark *list; /* ascending */
	struct report_mark_words *words;
};

/* x: steps, or seconds since each run's first step. 0, or -1: out of memory; free in both cases. */
int report_marks_make(const struct report_run *const *runs, int count, bool over_time, struct report_marks *m);
void report_marks_free(struct report_marks *m);

#endif
