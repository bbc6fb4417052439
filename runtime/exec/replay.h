/* SPDX-License-Identifier: Apache-2.0 */
/* Segments of a program's instructions in which the host has nothing to do are captured once and launched again in later steps, if the
 * device supports this and if it is faster: steps are timed both ways, and both give the same bits. Segments end where the device
 * communicates or copies offloaded activations; all transfers that any instruction of a segment depends on are complete before the segment
 * starts. Buffers keep their addresses, and the device takes what changes from step to step from places that stay (step_inputs.h): passes
 * without communication are one segment, and so are the updates. On a device that does not, segments also end at samples and at losses
 * whose factor varies.
 * HSPMD_CUDA_GRAPHS=0 never captures, =1 always. */
#ifndef HSPMD_EXEC_REPLAY_H
#define HSPMD_EXEC_REPLAY_H

#include "runtime/program/program.h"

struct hspmd_replay;

/* Returns true if the instruction multiplies by the factor of the step's loss (sample_source.h). */
bool hspmd_replay_is_loss(const struct hspmd_instruction *in);
/* NULL: nothing is to be captured. inputs_stay: the device takes samples and the step's values from places that stay. loss_varies: the
 * factor of the loss differs from step to step. The device and the program must outlive the result. */
struct hspmd_replay *hspmd_replay_create(const struct hspmd_program *p, struct hspmd_device *dev, bool inputs_stay, bool loss_varies);
/* Captures anew what was captured: a buffer has moved. NULL is fine. */
void hspmd_replay_forget(struct hspmd_replay *r);
void hspmd_replay_destroy(struct hspmd_replay *r); /* to be called before the program's buffers are freed */

/* Called at the beginning and the end of a step's passes. At the end all of the device's work has finished. */
void hspmd_replay_begin_step(struct hspmd_replay *r);
void hspmd_replay_end_step(struct hspmd_replay *r);

/* Returns the end of the segment that begins at instruction `first`, if this step launches captured segments; otherwise `first`. */
size_t hspmd_replay_segment_end(const struct hspmd_replay *r, size_t first);

/* The executor's function that runs instruction *i. It sets *i to the last instruction that it ran along with it. */
typedef int (*hspmd_replay_run)(void *executor, size_t *i, struct hspmd_error *err);
/* Launch this segment, capturing it first if it is new. 1: enqueued; 0: the segment cannot be captured and must be run as usual, now and
 * in later steps; -1 and err. */
int hspmd_replay_run_segment(struct hspmd_replay *r, size_t first, size_t end, hspmd_replay_run run, void *executor,
                             struct hspmd_error *err);
/* The same of the updates, all of which one call of `run` asks for; beside: by run_beside, and so they are launched. 0 also if this step
 * launches nothing that was captured; r may be NULL. */
int hspmd_replay_run_updates(struct hspmd_replay *r, bool beside, hspmd_replay_run run, void *executor, struct hspmd_error *err);

#endif
