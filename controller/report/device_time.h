/* SPDX-License-Identifier: Apache-2.0 */
/* A run over time: how many nodes and devices it held, the tokens per second, and what became of the devices' time. */
#ifndef HSPMD_CONTROLLER_REPORT_DEVICE_TIME_H
#define HSPMD_CONTROLLER_REPORT_DEVICE_TIME_H

#include <jansson.h>
#include <stdbool.h>

#include "controller/report/curve.h"

/* Seconds times devices. */
struct report_device_time {
	bool nodes;     /* the folder does not tell devices: nodes are counted instead */
	double total_s; /* from the begin of the first step to the end of the last, without the time between a job's end and its requeue */
	double useful_s, waiting_s; /* in steps that count: while devices computed, and while they waited for one another */
	double steps_s;             /* in steps that count of generations whose devices did not tell how long they computed */
	double lost_s, paused_s;    /* in steps that were made again; while no step ran because of a change */
	double other_s;             /* the rest: between steps */
};

/* -1: out of memory. */
int report_device_time_make(const struct report_run *r, struct report_device_time *t);
/* The part of the total that is useful: the speed beside an ideal run of the same devices in which none ever waits. NaN: not known of all
 * steps. */
double report_efficiency(const struct report_device_time *t);
json_t *report_device_time_json(const struct report_device_time *t); /* NULL: out of memory */

/* Seconds since the run's first step began; NaN for NaN, or if the run has no times. */
double report_since_begin(const struct report_run *r, double time);
/* Over those seconds: nodes, or devices; tokens per second of the steps that count, and the efficiency in percent, as means of equal
 * parts of the time. 0, or -1: out of memory. A curve without points if the folder does not tell. Free with report_curve_free. */
int report_nodes_curve(const struct report_run *r, bool devices, struct report_curve *c);
int report_tokens_curve(const struct report_run *r, struct report_curve *c);
int report_efficiency_curve(const struct report_run *r, struct report_curve *c);

#endif
