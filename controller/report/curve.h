/* SPDX-License-Identifier: Apache-2.0 */
/* Curves: points with growing x, thinned to what a picture can show. */
#ifndef HSPMD_CONTROLLER_REPORT_CURVE_H
#define HSPMD_CONTROLLER_REPORT_CURVE_H

#include <jansson.h>

#include "controller/report/report_run.h"

#define REPORT_COLUMNS 1500 /* of a picture; a thinned curve has at most two points in each, and its ends */

struct report_curve {
	int count;
	double (*points)[2]; /* x ascending */
};

/* One value over the steps that count: lost steps are left out, because they were made again. 0, or -1: out of memory. Free with
 * report_curve_free. */
int report_curve_of(const struct report_run *r, enum report_value value, struct report_curve *c);
/* Divides x into REPORT_COLUMNS equal columns and keeps of each the least and the greatest y, in their order, and the curve's ends. A
 * curve of at most two points a column stays as it is. */
void report_curve_thin(struct report_curve *c);
/* [[x, y], ...]; NULL: out of memory. */
json_t *report_curve_json(const struct report_curve *c);
void report_curve_free(struct report_curve *c);

#endif
