/* SPDX-License-Identifier: Apache-2.0 */
/* The report: one HTML page that needs no other file and no network. Every picture is SVG in the page, and its data stand beside it as
 * JSON, in <script type="application/json" id="run-0"> for the first run, "run-1" for the next. */
#ifndef HSPMD_CONTROLLER_REPORT_PAGE_H
#define HSPMD_CONTROLLER_REPORT_PAGE_H

#include <stdio.h>

#include "controller/report/report_run.h"

#define REPORT_RUNS_MAX 32

/* 1 <= count <= REPORT_RUNS_MAX. 0, or -1 and err: out of memory. What `out` cannot take is the caller's to find (ferror). */
int report_page_write(FILE *out, const struct report_run *const *runs, int count, struct hspmd_error *err);

#endif
