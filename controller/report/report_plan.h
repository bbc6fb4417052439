/* SPDX-License-Identifier: Apache-2.0 */
/* A generation's plan as a picture needs it. Unlike hspmd_plan_read() this does not need the cluster, which a run's folder does not keep
 * of every generation, and does not check what the run has checked. */
#ifndef HSPMD_CONTROLLER_REPORT_REPORT_PLAN_H
#define HSPMD_CONTROLLER_REPORT_REPORT_PLAN_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

struct report_stage {
	int first, end; /* layers */
	int device_count;
	const json_t *devices; /* runs: "node:first-last"; belongs to the plan's source */
	const json_t *recompute; /* a word, or a list of operators; NULL where not given; belongs to the source */
	const json_t *activations; /* that are offloaded: a word, or an array of operators; likewise */
	const json_t *offload;   /* a word; NULL where not given; likewise */
	double compute_s;      /* for which its slowest device computes per micro-batch; NaN: not measured */
};

struct report_pipeline {
	int micro_batches, micro_batch, stage_count;
	struct report_stage *stages;
};

struct report_plan {
	json_t *source;
	int64_t generation;
	int pipeline_count, layers, device_count; /* layers: the end of the last; device_count: in all stages, each device once */
	struct report_pipeline *pipelines;
	double step_s, compute_s, bubble_s, communication_s, sync_s; /* predicted; 0: nothing predicted */
	json_t *measured; /* entries of devices-GENERATION.json (controller/core/status_detail.c) by device; NULL: there are none */
	double busy_s;    /* for which the devices compute in a step, all together; NaN: not all are measured */
};

/* Reads plan-GENERATION.json of the folder, and devices-GENERATION.json if it is there. NULL and err: it cannot be read. */
struct report_plan *report_plan_read(const char *folder, int64_t generation, struct hspmd_error *err);
void report_plan_destroy(struct report_plan *p);
/* Splits "node:first-last" or "node:index"; length: of the node's name. Returns the number of devices, or 0: no such address. */
int report_devices_split(const char *run, size_t *length, int *first);

#endif
