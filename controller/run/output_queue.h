/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that writes a job's output folder, so that the controller goes on while the folder does not answer. What it is given waits in
 * memory and is written in order, once. A file that is replaced as a whole is written only as it was last.
 *
 * If too much waits, the oldest lines of steps, lines of the log, and parts of a trace are dropped and counted. Events and lines about
 * changes never are. Nothing here is needed to take over the job (journal_memory.h). */
#ifndef HSPMD_CONTROLLER_RUN_OUTPUT_QUEUE_H
#define HSPMD_CONTROLLER_RUN_OUTPUT_QUEUE_H

#include "common/error.h"
#include "controller/run/output.h"

#define RUN_OUTPUT_QUEUE_BYTES ((size_t)64 << 20)

enum run_trace_part { RUN_TRACE_TEXT, RUN_TRACE_SPANS, RUN_TRACE_END }; /* trace_file.h */

struct run_output_waits {
	double seconds;                                 /* since the folder has last answered, if something waits for it, else 0 */
	long entries;                                   /* that wait */
	long steps_dropped, log_dropped, trace_dropped; /* lines and parts, in all */
};

struct run_output_queue;

/* `output` is the thread's until the queue is closed, except for its folder and name. failed: called in the thread when a line of
 * metrics.jsonl cannot be written; other errors are logged. NULL and err. */
struct run_output_queue *run_output_queue_open(struct run_output *output, size_t most_bytes, void (*failed)(void *context), void *context,
                                               struct hspmd_error *err);
/* These return at once. What there is no memory for is dropped and counted. */
void run_output_queue_line(struct run_output_queue *q, const json_t *line);
void run_output_queue_event(struct run_output_queue *q, const json_t *event);
void run_output_queue_sample(struct run_output_queue *q, const json_t *sample);
void run_output_queue_save(struct run_output_queue *q, const char *name, const json_t *value);
void run_output_queue_trace(struct run_output_queue *q, enum run_trace_part part, const json_t *value);
void run_output_queue_log(struct run_output_queue *q, const char *line, size_t size); /* any thread may call it */
void run_output_queue_remove_contact(struct run_output_queue *q, const char *path, const char *process);
struct run_output_waits run_output_queue_waits(struct run_output_queue *q);
/* Returns true, and why, if a line of metrics.jsonl could not be written. */
bool run_output_queue_has_failed(struct run_output_queue *q, struct hspmd_error *why);
/* Waits until all is written, but at most so long, and not again before the folder has answered: if it is fast, nothing waits longer than
 * its caller. */
void run_output_queue_settle(struct run_output_queue *q, double timeout_s);
/* Waits until all is written. -1 and err: not within timeout_s; the thread then goes on, and `output` must stay. */
int run_output_queue_close(struct run_output_queue *q, double timeout_s, struct hspmd_error *err);

#endif
