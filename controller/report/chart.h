/* SPDX-License-Identifier: Apache-2.0 */
/* Line charts as SVG. report.js draws them again when a reader zooms; it finds the same points in the page's data. */
#ifndef HSPMD_CONTROLLER_REPORT_CHART_H
#define HSPMD_CONTROLLER_REPORT_CHART_H

#include <stdio.h>

#include "controller/report/curve.h"

#define REPORT_COLOURS 6 /* of runs, in report.css: .c0 to .c5; further runs repeat them */

/* An upright line, where the allocation changed. */
struct report_mark {
	double x;
	int run;           /* its colour */
	const char *label; /* short, at the top; "": none */
	const char *title; /* shown if a reader points there */
};

struct report_chart {
	const char *name; /* key of the curves in the page's data */
	const char *title;
	const char *x_label;
	int height; /* of the drawing area; the width is the page's */
	int curve_count, mark_count;
	const struct report_curve *curves; /* one per run, may be empty */
	const struct report_mark *marks;
};

/* Writes nothing if no curve has a point. */
void report_chart_write(FILE *out, const struct report_chart *c);
/* A round step (1, 2 or 5 times a power of ten) that divides `span` into at most `parts` parts. */
double report_tick(double span, int parts);

#endif
