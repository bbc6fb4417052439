/* SPDX-License-Identifier: Apache-2.0 */
/* The spans of a device on their way from the worker that recorded them to the file of the trace (`trace_part` in common/wire.h). A step
 * has hundreds, so each is only some characters long here: what does not change from step to step is sent once per part, as "kinds", and
 * numbers are differences to what came before. A number is in base64 VLQ (as in "Source Map Revision 3"): five bits per character, the
 * least significant first, and 32 more in each character but the last. A span that is where it is expected has four or five characters. */
#ifndef HSPMD_FORMAT_TRACE_SPANS_H
#define HSPMD_FORMAT_TRACE_SPANS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "common/format/trace_lanes.h"

#define HSPMD_TRACE_NO_MICRO_BATCH (-2) /* of a kind whose spans do not name one; -1: all of the step */

/* ---- writing */

/* Numbers as text. Zero it first. */
struct hspmd_vlq {
	char *text; /* not terminated */
	size_t size, capacity;
	bool failed; /* no memory: takes no more */
};
/* Returns the text as a JSON string; NULL: no memory, now or before. Frees it in any case. */
json_t *hspmd_vlq_take(struct hspmd_vlq *v);

/* The kinds of spans of a part. Zero it first. */
struct hspmd_trace_kinds {
	struct hspmd_vlq out;
	int label, micro_batch; /* of the last one */
};
/* The next kind has this label, by its number among the part's labels, and this micro-batch. */
void hspmd_trace_kinds_add(struct hspmd_trace_kinds *k, int label, int micro_batch);

/* The spans of a part. Zero it first. */
struct hspmd_trace_spans {
	struct hspmd_vlq out;
	int64_t step;
	int64_t ended[HSPMD_LANE_COUNT]; /* when the last span did; ns */
	int next[HSPMD_LANE_COUNT];      /* the kind that is expected */
};
/* The spans that follow belong to this step. */
void hspmd_trace_spans_step(struct hspmd_trace_spans *s, int64_t step);
/* kind: by its number. A step's kinds are expected one after another in each lane; aside: this one is not one of them. Times in nanoseconds
 * since the trace began. Not for HSPMD_LANE_CHANGES. */
void hspmd_trace_spans_add(struct hspmd_trace_spans *s, enum hspmd_lane lane, int kind, bool aside, int64_t began, int64_t length);

/* ---- reading */

/* Gets text as it is made, some kilobytes at a time. 0 or -1 (and err). */
typedef int hspmd_trace_sink(void *context, const char *text, size_t size, struct hspmd_error *err);

/* Writes the spans of a part as events of JSON, each with ",\n" before it. The part's keys: process, thread: integers; labels: [strings],
 * each a piece of an event (name, category, and arguments up to the comma before `step`, the last one); kinds; spans. -1: the part is
 * damaged (what stands before the damage has been written), no memory, or the sink has failed. */
int hspmd_trace_spans_write(const json_t *part, hspmd_trace_sink *sink, void *context, struct hspmd_error *err);

#endif
