/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the graph of a config.json: single operators, one micro-batch, forward and backward. Parameters have their Hugging Face names. */
#ifndef HSPMD_MODEL_BUILD_H
#define HSPMD_MODEL_BUILD_H

#include "common/format/model.h"
#include "runtime/graph/graph.h"

struct hspmd_model_build_options {
	int64_t batch; /* samples per micro-batch */
	int64_t seq_len;
	int vocab_parts;   /* shards of the vocabulary in the head's stage, 1: not split */
	double loss_scale; /* factor of each token's loss: 1 / tokens of the global batch */
	bool documents;    /* samples hold several documents, which do not attend to one another: adds the input "segments" */
	bool parts;        /* some stage's attention takes keys and values in parts: they are separate tensors in every model */
	bool bf16;         /* compute in BF16, else F32 */
	bool forward_only; /* no backward operators (evaluation) */
};

/* The tensors that a driver fills or reads. */
#define HSPMD_TENSOR_TOKENS "tokens"     /* [B,T] I32 */
#define HSPMD_TENSOR_TARGETS "targets"   /* [B,T] I32, -1: not counted */
#define HSPMD_TENSOR_SEGMENTS "segments" /* [B,T] I32, number of the position's document within the sample; only with `documents` */

/* NULL and err if memory is short or the sizes do not fit. The caller destroys the graph. */
struct hspmd_graph *hspmd_model_graph(const struct hspmd_model *m, const struct hspmd_model_build_options *how, struct hspmd_error *err);

#endif
