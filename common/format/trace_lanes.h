/* SPDX-License-Identifier: Apache-2.0 */
/* Where a device's work is drawn in a trace for Perfetto: a process per pipeline, and in it some threads ("lanes") per device, in the order
 * of the plan. Predicted and measured traces place and name them alike, so that one can be laid over the other. */
#ifndef HSPMD_FORMAT_TRACE_LANES_H
#define HSPMD_FORMAT_TRACE_LANES_H

#include "common/format/cluster.h"
#include "common/format/plan.h"

enum hspmd_lane {
	HSPMD_LANE_COMPUTE,   /* instructions, waits and the ends of steps; one after another, within a span for the whole step */
	HSPMD_LANE_TRANSFERS, /* messages between stages, and collectives within one */
	HSPMD_LANE_SUMS,      /* sums of gradients, and parameters on their way back */
	HSPMD_LANE_CHANGES,   /* measured only: what a change of the plan takes, beside training or in the pause */
	HSPMD_LANE_COUNT
};

/* Processes per generation in a trace of several. A larger number of pipelines would share the last one. */
#define HSPMD_TRACE_PROCESSES 65536

struct hspmd_trace_place {
	int pipeline, stage; /* the first stage of the device; both -1: it is in none, and only hands over state */
	int process;         /* the pipeline */
	int thread;          /* of HSPMD_LANE_COMPUTE; the other lanes follow */
	char process_name[96];
	char device[128]; /* address */
	int layers[2];    /* of that stage */
};

/* The place of a member of a stage: `member` counts the devices of the stage. stage: less than the number of ranks of the pipeline. */
struct hspmd_trace_place hspmd_trace_place_of(const struct hspmd_plan *plan, const struct hspmd_cluster *cluster, int pipeline, int stage,
                                              int member);
/* The place of a device of the cluster; `device` -1: one outside of it. spare: tells devices without a stage apart. */
struct hspmd_trace_place hspmd_trace_place_find(const struct hspmd_plan *plan, const struct hspmd_cluster *cluster, int device,
                                                const char *address, int spare);
/* Writes the lane's name; returns text. */
const char *hspmd_trace_lane_name(const struct hspmd_trace_place *at, enum hspmd_lane lane, char *text, size_t size);

#endif
