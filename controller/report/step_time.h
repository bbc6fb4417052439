/* SPDX-License-Identifier: Apache-2.0 */
/* Where the time of a step goes on every device. A measured trace (hspmd-trace(1)) tells it in full; without one the devices' own counters
 * (devices-GENERATION.json, controller/core/status_detail.c) tell how long each computed. */
#ifndef HSPMD_CONTROLLER_REPORT_STEP_TIME_H
#define HSPMD_CONTROLLER_REPORT_STEP_TIME_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct report_run;

#define REPORT_STEP_DEVICES_MAX 64 /* that are shown; the first ones */

/* Seconds of a mean step; they add up to step_s, but for what a device does between. */
struct report_device_step {
	char device[128];
	int64_t steps; /* that were recorded */
	double step_s, compute_s;
	double bubble_s;   /* waits for stages that have not computed yet */
	double messages_s; /* waits while a message or a collective is on its way */
	double sync_s;     /* waits for sums of gradients, and for the vote */
};

struct report_step_time {
	char source[64];    /* name of the file; "": nothing is known */
	bool traced;        /* from a trace; else only steps, compute_s and, of the generation, step_s */
	int64_t generation; /* that the devices were in; of a trace: its first */
	struct report_device_step *devices;
	size_t count, capacity;
};

/* From the folder's newest trace, else of the generation that made most steps. 0, or -1: out of memory. Free with report_step_time_free. */
int report_step_time_make(const struct report_run *r, struct report_step_time *t);
void report_step_time_free(struct report_step_time *t);
void report_step_time_write(FILE *out, const struct report_run *r, const struct report_step_time *t);
json_t *report_step_time_json(const struct report_step_time *t); /* NULL: out of memory */

#endif
