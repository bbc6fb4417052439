/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the graph of a config.json: single operators, one micro-batch, forward and backward. Parameters have their Hugging Face names. */
#ifndef HSPMD_MODEL_BUILD_H
#define HSPMD_MODEL_BUILD_H

#include "runtime/graph/graph.h"
#include "runtime/model/model.h"
#include "runtime/tensor/input_names.h"

struct hspmd_model_build_options {
	int64_t batch; /* samples per micro-batch */
	int64_t seq_len;
	int64_t context; /* tokens over which rotations that depend on the length are stretched, if the graph computes only some of them; 0:
	                    seq_len */
	int vocab_parts;      /* shards of the vocabulary in the head's stage, 1: not split */
	int widest;           /* devices of the largest tensor-parallel group, 0 or 1: none has several */
	double loss_scale;    /* factor of each token's loss: 1 / tokens of the global batch */
	bool reset_positions; /* learnt positions begin anew in each document: with some, a model gets the input HSPMD_TENSOR_POSITIONS */
	bool documents;       /* samples hold several documents, which do not attend to one another: adds the input HSPMD_TENSOR_SEGMENTS */
	bool parts;           /* some stage's attention takes keys and values in parts: they are separate tensors in every model */
	bool bf16;            /* compute in BF16, else F32 */
	bool fp8;             /* products of the blocks' linear layers are of FP8 operands */
	bool forward_only;    /* no backward operators (evaluation) */
};

/* NULL and err if memory is short or the sizes do not fit. The caller destroys the graph. */
struct hspmd_graph *hspmd_model_graph(const struct hspmd_model *m, const struct hspmd_model_build_options *how, struct hspmd_error *err);
/* The smallest graph with all of the model's parameters, whose shapes do not depend on sizes of samples. As above. */
struct hspmd_graph *hspmd_model_parameters_graph(const struct hspmd_model *m, struct hspmd_error *err);
/* The forward pass of one of the job's samples: a net of the user's own may take no other. As above. */
struct hspmd_graph *hspmd_model_job_graph(const struct hspmd_model *m, const struct hspmd_job *j, struct hspmd_error *err);

#endif
