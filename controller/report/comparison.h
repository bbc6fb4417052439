/* SPDX-License-Identifier: Apache-2.0 */
/* The losses of a run beside those of another run of the same job. */
#ifndef HSPMD_CONTROLLER_REPORT_COMPARISON_H
#define HSPMD_CONTROLLER_REPORT_COMPARISON_H

#include <stdio.h>

#include "controller/report/curve.h"

#define REPORT_TOLERANCE 1e-5 /* doc/design.md, "Laws": 1e-5 relative over 100 steps in fp32, under any plan */

struct report_comparison {
	int64_t steps;             /* that both have */
	double worst;              /* largest relative difference, |a - b| / |b| */
	int64_t worst_step;        /* -1: there is no step that both have */
	struct report_curve curve; /* relative difference per step that both have; report_curve_free */
};

/* b: the reference. 0, or -1: out of memory. */
int report_comparison_make(const struct report_run *a, const struct report_run *b, struct report_comparison *c);
void report_comparison_write(FILE *out, const struct report_comparison *c, const char *a, const char *b);
json_t *report_comparison_json(const struct report_comparison *c); /* NULL: out of memory */

#endif
