/* SPDX-License-Identifier: Apache-2.0 */
/* When a device did what in its last step: its instructions, and beside them what its engines for communication ran. */
#ifndef HSPMD_EXEC_TIMELINE_H
#define HSPMD_EXEC_TIMELINE_H

#include "runtime/program/program.h"

struct hspmd_timeline;

enum hspmd_lane { HSPMD_LANE_COMPUTE, HSPMD_LANE_TRANSFERS, HSPMD_LANE_SUMS, HSPMD_LANE_COUNT };

/* For programs of so many instructions. NULL: memory. */
struct hspmd_timeline *hspmd_timeline_create(size_t instructions);
void hspmd_timeline_destroy(struct hspmd_timeline *t);
/* A step begins: what was is forgotten. */
void hspmd_timeline_begin(struct hspmd_timeline *t, int64_t step);
/* An instruction was run, in seconds of hspmd_now. One thread at a time a lane. */
void hspmd_timeline_add(struct hspmd_timeline *t, enum hspmd_lane lane, int instruction, double began, double ended);
/* As trace events for Perfetto (ui.perfetto.dev); process: number and name of this device's row. */
int hspmd_timeline_write(const struct hspmd_timeline *t, const struct hspmd_program *p, int process, const char *name, const char *path,
                         struct hspmd_error *err);

#endif
