/* SPDX-License-Identifier: Apache-2.0 */
/* Records when a device ran which instruction in its latest step, and what its communication engines ran meanwhile. */
#ifndef HSPMD_EXEC_TIMELINE_H
#define HSPMD_EXEC_TIMELINE_H

#include "runtime/program/program.h"

struct hspmd_timeline;

enum hspmd_lane { HSPMD_LANE_COMPUTE, HSPMD_LANE_TRANSFERS, HSPMD_LANE_SUMS, HSPMD_LANE_COUNT };

/* For programs of this many instructions. NULL: memory. */
struct hspmd_timeline *hspmd_timeline_create(size_t instructions);
void hspmd_timeline_destroy(struct hspmd_timeline *t);
/* Forget the step before; a new one begins. */
void hspmd_timeline_begin(struct hspmd_timeline *t, int64_t step);
/* Record an instruction; times in seconds of hspmd_now. Only one thread at a time per lane. */
void hspmd_timeline_add(struct hspmd_timeline *t, enum hspmd_lane lane, int instruction, double began, double ended);
/* Write as trace events for Perfetto (ui.perfetto.dev). process: number of this device's row; name: its label. */
int hspmd_timeline_write(const struct hspmd_timeline *t, const struct hspmd_program *p, int process, const char *name, const char *path,
                         struct hspmd_error *err);

#endif
