/* SPDX-License-Identifier: Apache-2.0 */
/* Records when a device ran which instruction, what its communication engines ran meanwhile, and the other parts of a step. It is bounded:
 * what does not fit is counted and left out. Recording costs two stores and no lock; what becomes of it is made later, in parts of a trace
 * (common/format/trace_spans.h) that are trace events for Perfetto in the end. */
#ifndef HSPMD_EXEC_TIMELINE_H
#define HSPMD_EXEC_TIMELINE_H

#include <jansson.h>
#include <stdio.h>

#include "common/format/trace_lanes.h"
#include "runtime/program/program.h"

struct hspmd_timeline;

/* The parts of a step that are no instructions. */
enum hspmd_step_part {
	HSPMD_PART_STEP, /* all of it, as metrics count it: until the update is done */
	HSPMD_PART_WAIT, /* for other devices, before an instruction or within one that communicates */
	HSPMD_PART_SUMS, /* wait for sums of gradients, after the last instruction */
	HSPMD_PART_VOTE,
	HSPMD_PART_UPDATE,     /* clipping and the optimizer; neither this nor the vote if hspmd_executor_is_alone */
	HSPMD_PART_PARAMETERS, /* on their way back to where the next step reads them */
	HSPMD_PART_VALIDATION,
};

/* With room for so many spans. NULL: memory. */
struct hspmd_timeline *hspmd_timeline_create(size_t spans);
void hspmd_timeline_destroy(struct hspmd_timeline *t);
/* A step of this program begins, to which the spans that follow belong. The program is borrowed until hspmd_timeline_clear(). No engine may
 * be at work. */
void hspmd_timeline_begin(struct hspmd_timeline *t, const struct hspmd_program *p, int64_t step);
/* Record an instruction; times in seconds of hspmd_now. Any thread may. */
void hspmd_timeline_add(struct hspmd_timeline *t, enum hspmd_lane lane, int instruction, double began, double ended);
/* Record a part of the step, in HSPMD_LANE_COMPUTE. */
void hspmd_timeline_add_part(struct hspmd_timeline *t, enum hspmd_step_part part, double began, double ended);

size_t hspmd_timeline_count(const struct hspmd_timeline *t); /* spans recorded, of at most as many as there is room for */
/* Returns true if another step like the recorded ones may not fit. */
bool hspmd_timeline_is_full(const struct hspmd_timeline *t);
size_t hspmd_timeline_dropped(const struct hspmd_timeline *t); /* that were left out since the beginning */

/* Where and how events are written: times count from `origin`, in seconds of hspmd_now. */
struct hspmd_trace_origin {
	const struct hspmd_trace_place *place;
	int first_process; /* of the generation */
	double seconds;
};
/* The spans from number *from on as a part of a trace, which hspmd_trace_spans_write() reads: as many as belong to one program and fit
 * into one message.
 * *from becomes the next span's number; hspmd_timeline_count() if these were all. No engine may be at work. NULL: memory; else the
 * caller frees it. */
json_t *hspmd_timeline_part(const struct hspmd_timeline *t, const struct hspmd_trace_origin *o, size_t *from);
void hspmd_timeline_clear(struct hspmd_timeline *t);

/* Write the names of the place's process and lanes. */
void hspmd_trace_write_names(const struct hspmd_trace_origin *o, FILE *f);
/* Write one event; `name` and `category` need no escapes. more: further keys (", \"args\":{...}"), or "". */
void hspmd_trace_write_span(const struct hspmd_trace_origin *o, enum hspmd_lane lane, const char *name, const char *category, double began,
                            double ended, const char *more, FILE *f);

#endif
