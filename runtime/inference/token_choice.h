/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of the next token from logits: the most likely one, or one drawn at random, with the limits that Hugging Face's generate() has,
 * in its order: temperature, top-k, top-p (Holtzman et al., "The Curious Case of Neural Text Degeneration", arXiv 1904.09751). */
#ifndef HSPMD_INFERENCE_TOKEN_CHOICE_H
#define HSPMD_INFERENCE_TOKEN_CHOICE_H

#include <stdint.h>

#include "common/error.h"

struct hspmd_token_choice {
	double temperature; /* 0: the most likely token */
	int64_t top_k;      /* only so many of the most likely tokens; 0: all */
	double top_p;       /* only the fewest of the most likely tokens whose probabilities add up to this; 1: all */
	uint64_t seed;
};

/* Returns the token, or -1 with err (memory, or no logit is a number). Of equally likely tokens the one with the smaller number counts as
 * more likely. The draw is a pure function of (seed, stream, index): stream is the number of the prompt, index that of the token in the
 * sequence. */
int32_t hspmd_choose_token(const struct hspmd_token_choice *how, const float *logits, int64_t vocab, uint64_t stream, uint64_t index,
                           struct hspmd_error *err);

#endif
