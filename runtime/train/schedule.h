/* SPDX-License-Identifier: Apache-2.0 */
/* In what order a stage runs the forward and backward passes of its micro-batches. */
#ifndef HSPMD_TRAIN_SCHEDULE_H
#define HSPMD_TRAIN_SCHEDULE_H

#include <stdbool.h>

#include "common/format/plan.h"

struct hspmd_turn {
	bool backward;
	int micro_batch;
};

/* Fill turns[0 .. 2 * micro_batches). 1f1b: PipeDream-Flush (arXiv 2006.09503, section 3.2), stage `stage` of `stages` runs min(stages - stage - 1, micro_batches) forward passes
 * ahead. gpipe (arXiv 1811.06965): all forward, then all backward in reverse order. */
void hspmd_schedule(enum hspmd_schedule schedule, int stages, int stage, int micro_batches, struct hspmd_turn *turns);

#endif
