/* SPDX-License-Identifier: Apache-2.0 */
/* Training samples. The files' tokens are one stream; sample i is tokens [i T, i T + T], the last T of them its targets. Which sample comes
 * when depends on the seed and the position alone (DESIGN law 1): every epoch is a permutation of the samples, computed, not stored.
 * Documents may be grouped by length (length_buckets.h). */
#ifndef HSPMD_INPUT_DATA_H
#define HSPMD_INPUT_DATA_H

#include <stdint.h>

#include "common/error.h"
#include "common/format/job.h"
#include "runtime/exec/execute.h"

struct hspmd_data;

/* Opens (maps) the job's training files. NULL and err: names the file and what is wrong. */
struct hspmd_data *hspmd_data_open(const struct hspmd_job *job, int64_t vocab, struct hspmd_error *err);
/* The same of those that the loss is measured on; all samples are of seq_len. */
struct hspmd_data *hspmd_data_open_valid(const struct hspmd_job *job, int64_t vocab, struct hspmd_error *err);
void hspmd_data_close(struct hspmd_data *d);
int64_t hspmd_data_samples(const struct hspmd_data *d);
/* Index into the job's lengths of that which the samples of a step have (length_buckets.h); 0 for a job that has none. */
int hspmd_data_length_of_step(const struct hspmd_data *d, int64_t step);

/* `count` tokens beginning at offset `start` (0..T) of sample number `number` of all training (step * global batch + place in the batch):
 * for inputs start is the position, for targets one more. -1 and err when a token is not below the vocabulary (names file and offset). */
int hspmd_data_read(const struct hspmd_data *d, int64_t number, int64_t start, int64_t count, int32_t *tokens, struct hspmd_error *err);

/* The number of the document, within sample `number`, of each of `count` positions from `start` on; of data that have documents. */
int hspmd_data_segments(const struct hspmd_data *d, int64_t number, int64_t start, int64_t count, int32_t *segments,
                        struct hspmd_error *err);

/* The inputs of a language model (runtime/model/build.h): tokens, targets one position later, and segments. Borrows d. */
struct hspmd_sample_source hspmd_data_source(const struct hspmd_data *d);

#endif
