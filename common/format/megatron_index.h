/* SPDX-License-Identifier: Apache-2.0 */
/* The index of Megatron-LM's data (indexed_dataset.py, version 1). NAME.bin has the tokens of all sequences one after another. NAME.idx has
 * a head; the length in tokens of each sequence (int32); its offset in NAME.bin, in bytes (int64); and for each document, and the end, the
 * number of its first sequence (int64). Numbers are in the machine's byte order and not aligned. */
#ifndef HSPMD_FORMAT_MEGATRON_INDEX_H
#define HSPMD_FORMAT_MEGATRON_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

#define HSPMD_MEGATRON_HEAD_BYTES 34 /* magic, version, type of a token, number of sequences, number of documents and the end */

struct hspmd_megatron_index {
	int64_t sequences, documents;
	size_t offsets_at, documents_at; /* where in the file the offsets and the documents begin */
	size_t bytes;                    /* of the file, at least */
};

/* "x", "x.bin" and "x.idx" all name the pair x.bin, x.idx: returns the length of "x". */
int hspmd_megatron_base_length(const char *path);
/* Type code of the tokens, or -1: `head` does not begin such an index. */
int hspmd_megatron_code(const unsigned char *head, size_t size);
/* Bytes of a token; 0: not an integer type. */
int hspmd_megatron_width(int code);

/* Reads from the file `path` how many sequences and documents there are, and checks the first and the last of both: an index may be large.
 * `width`: bytes of a token; `data_bytes`: of NAME.bin. -1 and err, which names `path`: the file cannot be read, is too short, or is the
 * index of other data. */
int hspmd_megatron_index_read(struct hspmd_megatron_index *index, const char *path, int width, int64_t data_bytes, struct hspmd_error *err);

#endif
