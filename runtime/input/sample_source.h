/* SPDX-License-Identifier: Apache-2.0 */
/* The source of a graph's inputs. */
#ifndef HSPMD_INPUT_SAMPLE_SOURCE_H
#define HSPMD_INPUT_SAMPLE_SOURCE_H

#include <stdint.h>

#include "common/error.h"

/* `read` fills `to` with positions [start, start + count) of input `name` (dimension 1; a position may hold several elements) of sample
 * `number`, counted over all training (step * global batch + index in the batch). For equal arguments every caller gets the same contents
 * at any time (doc/design.md, law 1). 0, or -1 and err. */
struct hspmd_sample_source {
	int (*read)(void *context, const char *name, int64_t number, int64_t start, int64_t count, void *to, struct hspmd_error *err);
	void *context;
	/* If steps mix lengths, number may be negative: a sample whose targets all do not count. */
	/* If not all targets of a step count (targets below 0 do not): the factor of the loss of their mean (data.h). NULL: all count. */
	double (*loss_factor)(void *context, int64_t step);
};

#endif
