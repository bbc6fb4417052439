/* SPDX-License-Identifier: Apache-2.0 */
/* A run in a few numbers. */
#ifndef HSPMD_CONTROLLER_REPORT_SUMMARY_H
#define HSPMD_CONTROLLER_REPORT_SUMMARY_H

#include <jansson.h>

#include "controller/report/report_run.h"

struct report_summary {
	int64_t steps, repeated;       /* that count; that were lost and made again */
	int64_t first_step, last_step; /* -1: none */
	int min_nodes, max_nodes;
	double begin, end;            /* of the steps, seconds since 1970; NaN: unknown */
	double first_loss, last_loss; /* NaN: unknown */
	double tokens, pause_s;       /* of the steps that count; of all changes */
	int64_t steps_lost;           /* as the changes tell */
};

void report_summary_make(const struct report_run *r, struct report_summary *s);
json_t *report_summary_json(const struct report_summary *s); /* NULL: out of memory */

#endif
