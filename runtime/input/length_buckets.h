/* SPDX-License-Identifier: Apache-2.0 */
/* Documents in buckets by length, so that a step has samples of one length and short documents are not trained at the cost of long ones
 * (dataset decomposition: Pouransari et al., arXiv 2405.13226; like group_by_length of Hugging Face's trainer, but packed, not padded). A
 * document belongs to the bucket of the shortest length that holds it, or of the longest length if none does. The documents of a bucket
 * follow one another, and its sample i is tokens [i L, i L + L] of them. A step takes its samples from one bucket; each bucket serves as
 * many steps per epoch as it has batches, in an order that depends on the seed and the epoch.
 *
 * Steps may mix lengths instead: an epoch is then one permutation of all samples, of which each step takes the next ones, whatever their
 * lengths; those at the end of an epoch that fill no batch are left out.
 *
 * Sets with weights (blend.h) have buckets of their own. Lengths, and the sets within a length, are then blends: each set's part of the
 * tokens of all steps is its weight's, and is divided among the lengths as the tokens of its samples are. */
#ifndef HSPMD_INPUT_LENGTH_BUCKETS_H
#define HSPMD_INPUT_LENGTH_BUCKETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

struct hspmd_length_buckets;

/* A contiguous run of one bucket's documents in the stream of its set. */
struct hspmd_token_run {
	int64_t start, before; /* tokens of the bucket before it */
};

/* lengths: `count` of them, ascending; copied. weights: of `sets` sets; NULL: there is one. batch: samples per step. NULL: memory. */
struct hspmd_length_buckets *hspmd_length_buckets_create(const int64_t *lengths, int count, const double *weights, int sets, int64_t batch,
                                                         uint64_t seed);
void hspmd_length_buckets_destroy(struct hspmd_length_buckets *g);
/* Steps mix lengths. Before the adding of documents ends. */
void hspmd_length_buckets_mix(struct hspmd_length_buckets *g);
/* Adds the next document of a set: `tokens` tokens from position `start` of the set's stream. 0 or -1 (memory). */
int hspmd_length_buckets_add(struct hspmd_length_buckets *g, int set, int64_t start, int64_t tokens, struct hspmd_error *err);
/* Runs are handed to `sink`, in the order in which they begin, and not kept: the buckets then know their tokens only, and find nothing.
 * Before the first document. */
typedef int hspmd_run_sink(void *context, int length, int set, const struct hspmd_token_run *run, struct hspmd_error *err);
void hspmd_length_buckets_hand_on(struct hspmd_length_buckets *g, hspmd_run_sink *sink, void *context);
/* Instead of adding documents: the runs of a bucket that lie elsewhere, for as long as g exists. */
void hspmd_length_buckets_lend(struct hspmd_length_buckets *g, int length, int set, const struct hspmd_token_run *runs, size_t count,
                               int64_t tokens);
/* Ends the adding of documents. -1 and err: no bucket fills a batch; a set with a weight has no sample (*set: which; else -1); memory. */
int hspmd_length_buckets_close(struct hspmd_length_buckets *g, int *set, struct hspmd_error *err);

/* Tokens of the documents that were added to the buckets of the length with this index, in all sets. */
int64_t hspmd_length_buckets_tokens(const struct hspmd_length_buckets *g, int length);
/* One bucket's tokens and number of runs; false: there is no such length or set. *of: the length. */
bool hspmd_length_buckets_bucket(const struct hspmd_length_buckets *g, int length, int set, int64_t *of, int64_t *tokens, size_t *runs);

/* Index of the length of sample `number` (step * batch + index in the batch): of all samples of its step, unless steps mix lengths. */
int hspmd_length_buckets_of_sample(const struct hspmd_length_buckets *g, int64_t number);
/* Position of token `offset` of sample `number` (step * batch + index in the batch) in the stream of its set; *run: the number of tokens
 * that follow contiguously, including that one. */
int64_t hspmd_length_buckets_find(const struct hspmd_length_buckets *g, int64_t number, int64_t offset, int *set, int64_t *run);

#endif
