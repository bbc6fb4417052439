/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by data.c, which opens the data, and data_read.c, which reads samples. */
#ifndef HSPMD_INPUT_DATA_INTERNAL_H
#define HSPMD_INPUT_DATA_INTERNAL_H

#include "runtime/input/blend.h"
#include "runtime/input/data.h"
#include "runtime/input/length_buckets.h"
#include "runtime/input/length_index.h"
#include "runtime/input/token_file.h"

/* Files whose tokens are one stream. Without weights all files are one; with weights each is one. */
struct stream {
	int first_file, file_count;
	int64_t tokens, samples;
};

struct hspmd_data {
	struct hspmd_token_file *files;
	int64_t *first; /* by file: position of its first token in the stream */
	int file_count, stream_count;
	struct stream *streams;
	struct hspmd_blend *blend; /* NULL: there is one stream */
	int64_t samples, seq_len, vocab, batch;
	uint64_t seed;
	const struct hspmd_job *job;
	bool drops;                           /* training: models with dropout apply it */
	bool once;                            /* every token is measured once: samples after the last do not count */
	struct hspmd_length_buckets *buckets; /* NULL: the samples of all steps have seq_len tokens */
	struct hspmd_length_index *index;     /* where the buckets' runs lie; NULL: in memory */
};

#endif
