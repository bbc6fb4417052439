/* SPDX-License-Identifier: Apache-2.0 */
/* The report that comes with a plan: warnings, shortages and counters. */
#ifndef HSPMD_SIM_SOLVE_REPORT_H
#define HSPMD_SIM_SOLVE_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "common/format/cluster.h"
#include "common/format/plan.h"
#include "controller/solver/cost/costs.h"

/* A device that has less memory than a plan needs there. */
struct hspmd_shortage {
	int device, pipeline, stage;
	double need_bytes, have_bytes;
	bool host; /* of its host's memory */
};

/* Zero it before use; hspmd_solve_report_clear() frees what it owns. */
struct hspmd_solve_report {
	int warning_count;
	char **warnings;   /* one line each: what was interpolated, what was left out */
	bool timed_out;    /* the time limit ended the search early */
	int64_t evaluated; /* number of plans simulated */
	double elapsed_s;
	int shortage_count; /* number of devices on which the plan does not fit; the first HSPMD_SHORTAGE_MAX are listed */
	struct hspmd_shortage *shortages;
	double moved_bytes; /* bytes of training state that change device between the request's `current` and the plan; NaN if no current */
	/* Step time of the best plan with a program of its own that was found; 0: none, or none was asked for; INFINITY: none is as
	 * fast. */
	double program_s;
	double whole_s;     /* if the plan has such a program: step time of the best plan without; 0: unknown */
	double price_per_hour; /* of the nodes that the plan uses; 0: unknown */
};
#define HSPMD_SHORTAGE_MAX 64

void hspmd_solve_report_clear(struct hspmd_solve_report *r);

/* The following functions are for the solver's own components. */

/* Count a shortage, and list it if there is room. Returns 0, or -1 with err if memory runs out. */
int hspmd_report_shortage(struct hspmd_solve_report *r, const struct hspmd_shortage *s, struct hspmd_error *err);
/* Move the warnings of the cost tables into the report. They stay where they are if memory runs out. */
void hspmd_report_take_warnings(struct hspmd_solve_report *r, struct hspmd_costs *c);
/* Add a copy of the text as a warning; dropped if memory runs out. */
void hspmd_report_warn(struct hspmd_solve_report *r, const char *text);
/* Warn if the plan computes in another precision than the requested one. */
void hspmd_report_precision(struct hspmd_solve_report *r, const struct hspmd_cluster *c, const struct hspmd_plan *p,
                            enum hspmd_precision requested);

#endif
