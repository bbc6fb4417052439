/* SPDX-License-Identifier: Apache-2.0 */
/* What a run left in its output folder (controller/run/output.h writes it), as one model in memory for the pictures of a report. Reading is
 * forgiving: a line that cannot be read is counted, and the rest is used. */
#ifndef HSPMD_CONTROLLER_REPORT_REPORT_RUN_H
#define HSPMD_CONTROLLER_REPORT_REPORT_RUN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "common/format/cluster.h"
#include "controller/report/report_plan.h"

#define REPORT_CLUSTERS 3

/* The numbers of a step; report_value_names has their keys in metrics.jsonl. */
enum report_value {
	REPORT_LOSS,
	REPORT_VALID_LOSS,
	REPORT_LR,
	REPORT_GRAD_NORM,
	REPORT_STEP_S,
	REPORT_COMPUTE_S,
	REPORT_TOKENS,
	REPORT_TIME, /* seconds since 1970, at the end of the step */
	REPORT_VALUES
};
extern const char *const report_value_names[];

struct report_step {
	int64_t step, generation;
	int nodes, devices;           /* devices 0: not told */
	bool repeated;                /* a later line tells the same or an earlier step: this one was lost and made again */
	double values[REPORT_VALUES]; /* NaN: not told, not finite or absurd */
};

/* A line "event": "resize". Texts belong to `line`; "" where the line has none. */
struct report_change {
	json_t *line;
	int64_t generation, step, steps_lost;
	int from_nodes, nodes;
	double time, pause_s;
	double bytes_from_local, bytes_from_disk, bytes_from_peers, bytes_from_shared; /* local: without disk */
	const char *cause, *state;
};

/* A line of events.jsonl. */
struct report_event {
	json_t *line;
	int64_t generation;
	double time;
	const char *event, *text;
};

struct report_run {
	char *folder, *name; /* as given; its last part, as valid UTF-8 */
	char *job, *id;      /* the job, and the run's random name; "" where unknown */
	int64_t wanted;      /* steps that the job is to make; -1: unknown */
	struct report_step *steps;
	struct report_change *changes;
	struct report_event *events;
	struct report_plan **plans; /* by generation */
	size_t step_count, change_count, event_count, plan_count;
	size_t step_capacity, change_capacity, event_capacity, plan_capacity; /* private */
	struct hspmd_cluster *clusters[REPORT_CLUSTERS];                      /* that the folder keeps; NULL: none */
	char **warnings;                                                      /* what could not be read, a sentence each */
	size_t warning_count, warning_capacity;
};

/* NULL and err: the folder has no metrics.jsonl, or it cannot be read at all. */
struct report_run *report_run_read(const char *folder, struct hspmd_error *err);
void report_run_destroy(struct report_run *r);

/* The type of the first device of a run "node:first-last", and what memory such a device has. */
struct report_device {
	const char *type;    /* "" if no cluster in the folder has the device */
	double memory_bytes; /* 0: unknown */
};
struct report_device report_run_device(const struct report_run *r, const char *devices);

#endif
