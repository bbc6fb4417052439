/* SPDX-License-Identifier: Apache-2.0 */
/* The generations of a run: what each was made of, and what it made. */
#ifndef HSPMD_CONTROLLER_REPORT_GENERATIONS_H
#define HSPMD_CONTROLLER_REPORT_GENERATIONS_H

#include <jansson.h>

#include "controller/report/report_run.h"

struct report_generation {
	int64_t generation, first_step, last_step;
	size_t steps; /* lines of metrics.jsonl, lost ones too */
	int nodes;
	double step_s;                      /* median of what the steps took, without the first; NaN: unknown */
	double took_s;                      /* all of them together */
	const struct report_plan *plan;     /* NULL: there is none */
	const struct report_change *change; /* that began it; NULL: it is the first */
};

/* Those that made a step, in their order; malloc'd. NULL: out of memory. */
struct report_generation *report_generations_make(const struct report_run *r, int *count);
/* NULL: out of memory. */
json_t *report_generations_json(const struct report_generation *list, int count);

#endif
