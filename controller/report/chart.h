/* SPDX-License-Identifier: Apache-2.0 */
/* Line charts as SVG. report.js draws them again when a reader zooms; it finds the same points in the page's data. */
#ifndef HSPMD_CONTROLLER_REPORT_CHART_H
#define HSPMD_CONTROLLER_REPORT_CHART_H

#include <stdbool.h>
#include <stdio.h>

#include "controller/report/curve.h"

#define REPORT_COLOURS 6 /* of runs, in report.css: .c0 to .c5; further runs repeat them */

/* A change of the allocation is an upright line; a checkpoint and a fault are small signs at the bottom. */
enum report_mark_kind { REPORT_MARK_CHANGE, REPORT_MARK_CHECKPOINT, REPORT_MARK_FAULT };

struct report_mark {
	double x;
	int run; /* its colour */
	enum report_mark_kind kind;
	const char *label; /* short, at the top; "": none */
	const char *title; /* shown if a reader points there */
};

struct report_chart {
	const char *name; /* key of the curves in the page's data */
	const char *title;
	const char *axis;     /* what x counts; charts of one axis are zoomed together */
	int height;           /* of the drawing area; the width is the page's */
	bool from_zero;       /* y begins at 0 */
	double x_low, x_high; /* the same for all charts of an axis; curves and marks outside are not drawn */
	int curve_count, mark_count;
	const struct report_curve *curves; /* one per run, may be empty */
	const struct report_mark *marks;
};

/* Writes nothing if no curve has a point. */
void report_chart_write(FILE *out, const struct report_chart *c);

#endif
