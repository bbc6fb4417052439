/* SPDX-License-Identifier: Apache-2.0 */
/* Documents grouped by their lengths, so that a step has samples of one length and short documents are not trained at the cost of long ones
 * (dataset decomposition: Pouransari et al., arXiv 2405.13226; like group_by_length of Hugging Face's trainer, but packed, not padded). A
 * document belongs to the shortest length that holds it, one that none holds to the longest; a group's documents follow one another, and
 * its sample i is tokens [i L, i L + L] of that. A step takes its samples from one group; groups take turns as often as they have batches,
 * in an order that depends on the seed and the epoch. */
#ifndef HSPMD_INPUT_LENGTH_BUCKETS_H
#define HSPMD_INPUT_LENGTH_BUCKETS_H

#include "common/error.h"

#include <stdint.h>

struct hspmd_length_buckets;

/* lengths: ascending, `count` of them; copied. batch: samples of a step. NULL: memory. */
struct hspmd_length_buckets *hspmd_length_buckets_create(const int64_t *lengths, int count, int64_t batch, uint64_t seed);
void hspmd_length_buckets_destroy(struct hspmd_length_buckets *g);
/* The next document: `tokens` of them from position `start` of the stream. 0 or -1 (memory). */
int hspmd_length_buckets_add(struct hspmd_length_buckets *g, int64_t start, int64_t tokens, struct hspmd_error *err);
/* All are there. -1 and err: not one group fills a batch. */
int hspmd_length_buckets_close(struct hspmd_length_buckets *g, struct hspmd_error *err);

/* Which length (its index) step `step` has. */
int hspmd_length_buckets_of_step(const struct hspmd_length_buckets *g, int64_t step);
/* Where token `offset` of sample `number` (step * batch + place) lies in the stream, and how many tokens follow it there (itself among
 * them). */
int64_t hspmd_length_buckets_find(const struct hspmd_length_buckets *g, int64_t number, int64_t offset, int64_t *run);

#endif
