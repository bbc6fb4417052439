/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of data of kind HSPMD_DATA_OWN, which a model's own reader reads. */
#ifndef HSPMD_INPUT_OWN_SAMPLES_H
#define HSPMD_INPUT_OWN_SAMPLES_H

#include <stdbool.h>

#include "runtime/input/sample_source.h"

struct hspmd_own_samples {
	/* As in struct hspmd_sample_source, but `sample` is below `count`. */
	int (*read)(void *context, const char *name, int64_t sample, int64_t start, int64_t length, void *to, struct hspmd_error *err);
	void *context;
	int64_t count; /* every epoch has each sample once; 0: no end, samples are read in order */
	uint64_t seed; /* of the order of samples */
	bool validation;
};

/* Borrows s. */
struct hspmd_sample_source hspmd_own_samples_source(const struct hspmd_own_samples *s);

#endif
