/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a model's forward graph that gives the logits of some new tokens, or only their keys and values, and where its values lie in
 * one block of memory. */
#ifndef HSPMD_INFERENCE_FORWARD_H
#define HSPMD_INFERENCE_FORWARD_H

#include "runtime/model/build.h"

struct inference_forward {
	struct hspmd_graph *graph;
	int64_t count;      /* tokens that it takes */
	int tokens, logits; /* tensors */
	bool *runs;         /* per operator; others are not needed */
	int *position_dim;  /* per tensor; -1: has no positions */
	size_t *offset;     /* per tensor that an operator that runs computes, and of the tokens: in the block of memory */
	size_t arena_bytes;
	int attention_count; /* operators ATTENTION of the graph, in order: they are the same ones whatever the number of tokens */
};

struct inference_forward_options {
	int64_t count, context; /* tokens that it takes; of the whole sequence */
	bool bf16;
	bool cached; /* keys and values of earlier tokens are kept, so that `count` tokens can follow others */
	bool logits; /* of the last token are wanted; else only what later tokens need (only if cached) */
};

/* -1 and err: memory, the sizes do not fit, the model has no tokens or no logits; or (cached) an operator needs all tokens at once. */
int inference_forward_build(struct inference_forward *f, const struct hspmd_model *m, const struct inference_forward_options *o,
                            struct hspmd_error *err);
void inference_forward_free(struct inference_forward *f);

#endif
