/* SPDX-License-Identifier: Apache-2.0 */
/* Segments of a program's instructions that the host has nothing to do with are recorded once and started again in later steps, where the
 * device can do that and it is faster: steps are timed both ways, and all have the same bits. Segments end where the device communicates;
 * what has come and gone for any instruction of one is settled before it. Buffers stay where they are, and everything that changes from
 * step to step comes with instructions that are not recorded (samples, the optimizer). HSPMD_CUDA_GRAPHS=0 never records, =1 always. */
#ifndef HSPMD_EXEC_REPLAY_H
#define HSPMD_EXEC_REPLAY_H

#include "runtime/program/program.h"

struct hspmd_replay;

/* NULL: nothing is to be recorded. The device and the program outlive it. */
struct hspmd_replay *hspmd_replay_create(const struct hspmd_program *p, struct hspmd_device *dev);
void hspmd_replay_destroy(struct hspmd_replay *r); /* before the program's buffers go */

/* Around a step's passes; all of the device's work is done at its end. */
void hspmd_replay_begin_step(struct hspmd_replay *r);
void hspmd_replay_end_step(struct hspmd_replay *r);

/* The end of the segment that begins at instruction `first` and is done from a recording in this step; `first` where there is none. */
size_t hspmd_replay_segment_end(const struct hspmd_replay *r, size_t first);

/* How the executor runs instruction *i, which becomes the last of those that it runs at once. */
typedef int (*hspmd_replay_run)(void *executor, size_t *i, struct hspmd_error *err);
/* Do that segment, recording it where it is new. 1: enqueued; 0: it cannot be recorded, and is to be run as ever, from now on; -1 and
 * err. */
int hspmd_replay_run_segment(struct hspmd_replay *r, size_t first, size_t end, hspmd_replay_run run, void *executor,
                             struct hspmd_error *err);

#endif
