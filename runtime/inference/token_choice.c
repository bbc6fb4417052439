/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/inference/token_choice.h"

#include <math.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "runtime/device/random.h"

struct candidate {
	double weight; /* logit, then probability times a constant */
	int32_t token;
};

/* The more likely first. */
static int compare(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;
	if (x->weight != y->weight)
		return x->weight > y->weight ? -1 : 1;
	return x->token < y->token ? -1 : x->token > y->token;
}

static int32_t most_likely(const float *logits, int64_t vocab)
{
	int64_t best = -1;
	for (int64_t i = 0; i < vocab; i++)
		if (!isnan(logits[i]) && (best < 0 || logits[i] > logits[best]))
			best = i;
	return (int32_t)best;
}

/* The number of candidates that remain, with their weights, which are sorted. */
static int64_t limit(const struct hspmd_token_choice *how, struct candidate *c, int64_t count, double *sum)
{
	double most = c[0].weight, kept = 0;
	if (how->top_k && how->top_k < count)
		count = how->top_k;
	*sum = 0;
	for (int64_t i = 0; i < count; i++) {
		c[i].weight = exp((c[i].weight - most) / how->temperature);
		*sum += c[i].weight;
	}
	for (int64_t i = 0; how->top_p < 1 && i < count; i++) {
		kept += c[i].weight;
		if (kept >= how->top_p * *sum) {
			*sum = kept;
			return i + 1;
		}
	}
	return count;
}

int32_t hspmd_choose_token(const struct hspmd_token_choice *how, const float *logits, int64_t vocab, uint64_t stream, uint64_t index,
                           struct hspmd_error *err)
{
	int32_t best = most_likely(logits, vocab);
	if (best < 0 || !isfinite(logits[best]))
		return hspmd_fail(err, "the model's logits are not finite");
	if (how->temperature <= 0)
		return best;
	struct candidate *c = hspmd_calloc((size_t)vocab, sizeof *c);
	if (!c)
		return hspmd_fail_memory(err, "choosing a token");
	int64_t count = 0;
	for (int64_t i = 0; i < vocab; i++)
		if (!isnan(logits[i]))
			c[count++] = (struct candidate){ (double)logits[i], (int32_t)i };
	qsort(c, (size_t)count, sizeof *c, compare);
	double sum, at;
	uint32_t words[4];
	count = limit(how, c, count, &sum);
	hspmd_random_words(how->seed, stream, index, words);
	at = ((double)words[0] * 0x1p32 + (double)words[1]) * 0x1p-64 * sum;
	int64_t i = 0;
	while (i + 1 < count && at >= c[i].weight)
		at -= c[i++].weight;
	int32_t token = c[i].token;
	free(c);
	return token;
}
