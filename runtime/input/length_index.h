/* SPDX-License-Identifier: Apache-2.0 */
/* Where the documents of each length are, in a file. Whoever starts a job reads all its documents once and writes the file; every worker
 * maps it and touches what a sample needs, so that a start takes as long with a terabyte of documents as with a few. The file is a
 * safetensors file: an I64 tensor "LENGTH/SET" of (first token in the stream, tokens of the bucket before it) for each run of a bucket
 * (length_buckets.h); its metadata's "of" is a JSON object that names what the file was made of. A file that is missing, or was made of
 * something else, is not used. */
#ifndef HSPMD_INPUT_LENGTH_INDEX_H
#define HSPMD_INPUT_LENGTH_INDEX_H

#include <jansson.h>

#include "common/error.h"
#include "runtime/input/length_buckets.h"

#define HSPMD_LENGTH_INDEX_FORMAT "hspmd-lengths-1"

/* Receives the runs of buckets while documents are added to them, and keeps them on disk: there may be more than memory holds. */
struct hspmd_length_index_writer;
/* Writes beside `path` until the file is whole. NULL and err: names the file. */
struct hspmd_length_index_writer *hspmd_length_index_begin(const char *path, struct hspmd_error *err);
hspmd_run_sink hspmd_length_index_add; /* context: the writer */
/* g: the buckets whose runs were added, before or after they are closed; of: what they were made of. Ends the writer whatever the result;
 * NULL g: without a file. 0: the file is whole, on disk, and replaces an older one. -1 and err: nothing is left. */
int hspmd_length_index_end(struct hspmd_length_index_writer *w, const struct hspmd_length_buckets *g, const json_t *of,
                           struct hspmd_error *err);

/* A file that is mapped. */
struct hspmd_length_index;
/* NULL and err: it is not there, or is damaged (names it). */
struct hspmd_length_index *hspmd_length_index_open(const char *path, struct hspmd_error *err);
void hspmd_length_index_close(struct hspmd_length_index *x);
/* What it was made of; borrowed. */
const json_t *hspmd_length_index_of(const struct hspmd_length_index *x);
/* Fills buckets that were made with the same lengths and sets; x must outlive them. -1 and err: it has other tensors than these, or what
 * is in them cannot be. */
int hspmd_length_index_fill(const struct hspmd_length_index *x, struct hspmd_length_buckets *g, struct hspmd_error *err);

#endif
