/* SPDX-License-Identifier: Apache-2.0 */
/* A job's output folder: metrics.jsonl, events.jsonl, samples.jsonl, plan-GENERATION.json, hspmd.log, status.json, run.json. A later incarnation of the
 * job (requeue) appends. */
#ifndef HSPMD_CONTROLLER_RUN_OUTPUT_H
#define HSPMD_CONTROLLER_RUN_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"

struct run_output {
	char *folder;                /* absolute */
	char run[72];                /* random name of this run, kept over its incarnations; checkpoints bear it */
	int64_t generation;          /* last one that an earlier incarnation began; 0: none */
	int64_t resize_reported;     /* newest generation that has a resize line; 0: none */
	int64_t steps_reported;      /* steps that are done, by the last line of metrics.jsonl */
	json_t *events;              /* the last RUN_EVENTS_MAX events of earlier incarnations */
	bool resumed;                /* there was an earlier incarnation */
	int metrics, events_fd, log; /* descriptors */
};

/* Makes or opens the folder. Refuses a folder with metrics of another run, unless `resume`. begun_counts: a run without
 * metrics is resumed, too, because its steps need not be told. Returns 0 or -1. */
int run_output_open(struct run_output *o, const char *folder, bool resume, bool begun_counts, struct hspmd_error *err);
void run_output_close(struct run_output *o);
/* Return 0 or -1. A line is written by one write(). */
int run_output_line(struct run_output *o, const json_t *line, struct hspmd_error *err);
int run_output_event(struct run_output *o, const json_t *event, struct hspmd_error *err);
int run_output_sample(struct run_output *o, const json_t *sample, struct hspmd_error *err);
int run_output_save(struct run_output *o, const char *name, const json_t *value, struct hspmd_error *err);

#endif
