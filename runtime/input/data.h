/* SPDX-License-Identifier: Apache-2.0 */
/* Training samples. The files' tokens are one stream; sample i is tokens [i T, i T + T], of which the last T are the targets. The order of
 * samples depends only on the seed and the position (doc/design.md, law 1): every epoch is a permutation of the samples, computed, not
 * stored. Documents may be grouped by length (length_buckets.h). Files with weights are a stream each, and are mixed (blend.h). */
#ifndef HSPMD_INPUT_DATA_H
#define HSPMD_INPUT_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "common/format/job.h"
#include "runtime/input/sample_source.h"

struct hspmd_data;

/* Opens (maps) the job's training files. Borrows the job. index: a file that hspmd_data_make_index has made, so that the documents of a
 * job with lengths need not be read; if it does not fit, or with NULL, they are. NULL and an err that names the file and the fault. */
struct hspmd_data *hspmd_data_open(const struct hspmd_job *job, int64_t vocab, const char *index, struct hspmd_error *err);
#define HSPMD_DATA_INDEX_FILE "lengths.safetensors" /* in a job's output folder */
/* Make the file in which hspmd_data_open finds where the documents of each length are, unless it is there. Reads all documents. A job
 * without lengths needs none. 0; -1 and err that names the file and the fault: the data can be opened without. */
int hspmd_data_make_index(const struct hspmd_job *job, int64_t vocab, const char *index, struct hspmd_error *err);
/* For data.lengths "auto": chooses the lengths of steps by those of the training files' documents, which are all read unless `index` (may
 * be NULL) was made of them: seq_len, and those of its halves, quarters and so on whose documents have enough tokens to be worth steps of
 * their own. Depends on job and files only.
 * Fills lengths[HSPMD_DATA_LENGTHS_MOST], ascending; returns their number, or -1 and err. */
#define HSPMD_DATA_LENGTHS_MOST 8
int hspmd_data_choose_lengths(const struct hspmd_job *job, int64_t vocab, const char *index, int64_t *lengths, struct hspmd_error *err);
/* The same for the files on which the validation loss is measured; all samples have seq_len tokens. If the job measures all of them, the
 * last sample may be a part of one, and neither its rest nor samples after it count. */
struct hspmd_data *hspmd_data_open_valid(const struct hspmd_job *job, int64_t vocab, struct hspmd_error *err);
/* Batches of `samples` validation samples that each measurement of the loss takes. By default few, since with the step itself it must not
 * take much longer than a step. parts: targets beyond the last sample do not count; a model's own reader has none to give. */
int64_t hspmd_data_valid_batches(const struct hspmd_job *job, int64_t samples, bool parts);
/* Reads what the first measurement will read, at most some hundred million tokens, so that a mistake in the validation files is told before
 * the training begins. 0; -1 and err that names the file and the fault. */
int hspmd_data_check_valid(const struct hspmd_job *job, int64_t vocab, struct hspmd_error *err);
void hspmd_data_close(struct hspmd_data *d);
int64_t hspmd_data_samples(const struct hspmd_data *d);
/* Index, in the job's lengths, of the length of a step's samples (length_buckets.h), or of its first sample's if steps mix lengths; 0 if
 * the job has no lengths. */
int hspmd_data_length_of_step(const struct hspmd_data *d, int64_t step);
/* The same of sample `number`, counted over all training. */
int hspmd_data_length_of_sample(const struct hspmd_data *d, int64_t number);
/* Tokens of the global batch of a step. */
int64_t hspmd_data_step_tokens(const struct hspmd_data *d, int64_t step);

/* Reads `count` tokens from offset `start` (0..T) of sample `number`, counted over all training (step * global batch + index in the batch).
 * For inputs start is the position, for targets one more. -1 and err if a token is not below the vocabulary (names file and offset). */
int hspmd_data_read(const struct hspmd_data *d, int64_t number, int64_t start, int64_t count, int32_t *tokens, struct hspmd_error *err);

/* (Tokens of the global batch of a step) / (those of its targets that count): the factor of the step's loss that makes it the mean over
 * those that count. 1 if all do, 0 if none does. */
double hspmd_data_loss_factor(const struct hspmd_data *d, int64_t step);

/* The number of the document, within sample `number`, of each of `count` positions from `start` on; only for data with documents. */
int hspmd_data_segments(const struct hspmd_data *d, int64_t number, int64_t start, int64_t count, int32_t *segments,
                        struct hspmd_error *err);

/* Random numbers of `count` positions from `start` on of sample `number`, from which dropout follows (input_names.h): a function of the
 * job's seed, the sample and the position. Negative for validation data. */
void hspmd_data_noise(const struct hspmd_data *d, int64_t number, int64_t start, int64_t count, int32_t *noise);

/* The same of a seed alone. drops: these are training data. */
void hspmd_sample_noise(uint64_t seed, bool drops, int64_t number, int64_t start, int64_t count, int32_t *noise);

/* Source of the inputs of a language model (runtime/tensor/input_names.h): tokens, targets one position later, segments and
 * positions. Of a negative sample number: one that counts nothing (sample_source.h). Borrows d. */
struct hspmd_sample_source hspmd_data_source(const struct hspmd_data *d);

#endif
