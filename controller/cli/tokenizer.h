/* SPDX-License-Identifier: Apache-2.0 */
/* Texts to tokens and back: bytes, or a tokenizer.json of Hugging Face, which a Python process reads (tokenizer.py). */
#ifndef HSPMD_CLI_TOKENIZER_H
#define HSPMD_CLI_TOKENIZER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

struct tokenizer {
	const char *path;    /* NULL: one token per byte of UTF-8 */
	bool special_tokens; /* with those that the tokenizer puts before and after a text, such as <s> */
};

/* Texts and tokens of one prompt, or of what follows it; malloc'd. */
struct token_text {
	char *text; /* UTF-8 */
	size_t size;
	int32_t *tokens;
	int64_t count;
};
void token_text_free(struct token_text *t);

/* Fill the tokens of n texts; and the other way round. Bytes that are no UTF-8 become U+FFFD, and a text may have NULs. Block for at most
 * two minutes. 0, or -1 and err, or after a message of the process. */
int tokenizer_encode(const struct tokenizer *t, struct token_text *list, size_t n, struct hspmd_error *err);
int tokenizer_decode(const struct tokenizer *t, struct token_text *list, size_t n, struct hspmd_error *err);

#endif
