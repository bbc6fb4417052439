/* SPDX-License-Identifier: Apache-2.0 */
/* One file of tokens, mapped: plain numbers, or the pair of Megatron-LM's indexed data. Optionally with its loss mask (hspmd-job(5)): a
 * file beside it with one byte per token, 0 for a token that is not to be predicted. */
#ifndef HSPMD_INPUT_TOKEN_FILE_H
#define HSPMD_INPUT_TOKEN_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "common/format/job.h"
#include "common/format/megatron_index.h"

/* How one token is stored. */
enum hspmd_token_width { HSPMD_TOKEN_U8, HSPMD_TOKEN_U16, HSPMD_TOKEN_U32, HSPMD_TOKEN_I16, HSPMD_TOKEN_I64 };

struct hspmd_mapping {
	char *path;
	const unsigned char *bytes; /* NULL: empty, or not mapped */
	size_t size;
	int64_t changed_ns; /* when the file was last written */
};

struct hspmd_token_file {
	struct hspmd_mapping data, index, mask; /* index: only if documents are taken from it; mask: only if the job has masks */
	struct hspmd_megatron_index layout;     /* of the index */
	int64_t tokens, documents;              /* documents: in the index; the first begins at token 0 */
	enum hspmd_token_width width;
};

/* Opens `path` of the job's data. On failure -1 and an err that names the file; the caller closes it anyway. */
int hspmd_token_file_open(struct hspmd_token_file *f, const struct hspmd_job *job, const char *path, struct hspmd_error *err);
void hspmd_token_file_close(struct hspmd_token_file *f);

int64_t hspmd_token_file_get(const struct hspmd_token_file *f, int64_t at);
/* Returns the number of the last document that begins at or before token `at`. */
int64_t hspmd_token_file_document(const struct hspmd_token_file *f, int64_t at);
/* First token of a document of the index; number `documents`: the number of tokens. */
int64_t hspmd_token_file_document_start(const struct hspmd_token_file *f, int64_t document);
/* The index is checked at its ends when it is opened, and here where a document begins. -1 and err, which names the index: it contradicts
 * itself about this document, so that starts of documents near it mean nothing. */
int hspmd_token_file_check_document(const struct hspmd_token_file *f, int64_t document, struct hspmd_error *err);

#endif
