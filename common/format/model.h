/* SPDX-License-Identifier: Apache-2.0 */
/* A Hugging Face config.json, reduced to the values that decide shapes and arithmetic; or a model of the user's own (runtime/model/own.h),
 * whose block_count is the number of its layers less 2, and whose vocab is 0 if it has no tokens. Plain data.
 * Layer 0 is the embedding, layers 1 .. block_count the transformer blocks, layer block_count + 1 the final norm with the head. */
#ifndef HSPMD_FORMAT_MODEL_H
#define HSPMD_FORMAT_MODEL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"

/* A type of model (runtime/model/model_type.h), which has read the config.json and builds the graph. */
struct hspmd_model_type;

struct hspmd_model {
	const struct hspmd_model_type *type;
	char *name; /* _name_or_path if given, else the model_type */
	int block_count;
	int64_t hidden, vocab;
	int64_t max_positions;
	bool learnt_positions; /* the model has weights for max_positions positions, and no sample can be longer */
	bool tied;             /* head shares the embedding */
	bool dropout;          /* training drops elements at random */
	bool reads_samples;    /* can read data of kind HSPMD_DATA_OWN, ... */
	bool only_own_samples; /* ... and no others */
	json_t *config;        /* the file as read, for export; owned */
	void *own;             /* what only the type's own files read; owned */
	void (*release)(void *own); /* NULL: `own` is one allocation */
};

void hspmd_model_destroy(struct hspmd_model *m);

int hspmd_model_layers(const struct hspmd_model *m); /* block_count + 2 */

#endif
