/* SPDX-License-Identifier: Apache-2.0 */
/* A trained model on disk: a checkpoint, or a folder of Hugging Face's with config.json and safetensors. */
#ifndef HSPMD_CLI_TRAINED_MODEL_H
#define HSPMD_CLI_TRAINED_MODEL_H

#include "runtime/inference/inference.h"
#include "runtime/model/model.h"
#include "runtime/state/checkpoint_index.h"
#include "runtime/weights/weights.h"

struct trained_model {
	struct hspmd_model *model;
	int64_t step; /* of the checkpoint; -1: a folder of Hugging Face's */
	bool bf16;    /* the checkpoint's job computes in BF16, or in FP8 with elements in BF16 */
	struct hspmd_parameter_source source;
	/* private */
	struct hspmd_checkpoint_index index;
	struct hspmd_reader *reader; /* borrowed from the index */
	struct hspmd_weights *weights;
	struct hspmd_file_map map;
};

/* path: a folder with checkpoints, of which the newest complete one is chosen (step >= 0: that of this step); or a model folder. config:
 * the model's config.json; NULL: the one that is there. -1 and err; destroy with trained_model_close in either case. */
int trained_model_open(struct trained_model *t, const char *path, int64_t step, const char *config, struct hspmd_error *err);
void trained_model_close(struct trained_model *t);

#endif
