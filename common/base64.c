/* SPDX-License-Identifier: Apache-2.0 */
#include "common/base64.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

char *hspmd_base64_encode(const void *data, size_t size)
{
	const unsigned char *in = data;
	char *text = malloc((size + 2) / 3 * 4 + 1), *out = text;
	if (!text)
		return NULL;
	for (size_t i = 0; i < size; i += 3) {
		uint32_t v = (uint32_t)in[i] << 16 | (i + 1 < size ? (uint32_t)in[i + 1] << 8 : 0) | (i + 2 < size ? in[i + 2] : 0);
		*out++ = alphabet[v >> 18];
		*out++ = alphabet[v >> 12 & 63];
		*out++ = i + 1 < size ? alphabet[v >> 6 & 63] : '=';
		*out++ = i + 2 < size ? alphabet[v & 63] : '=';
	}
	*out = '\0';
	return text;
}

void *hspmd_base64_decode(const char *text, size_t *size)
{
	size_t length = strlen(text), n = 0;
	while (length && text[length - 1] == '=')
		length--;
	unsigned char *out = length % 4 == 1 ? NULL : malloc(length * 3 / 4 + 1);
	uint32_t v = 0;
	for (size_t i = 0; out && i < length; i++) {
		const char *at = text[i] ? strchr(alphabet, text[i]) : NULL;
		if (!at) {
			free(out);
			return NULL;
		}
		v = v << 6 | (uint32_t)(at - alphabet);
		if (i % 4)
			out[n++] = (unsigned char)(v >> (6 - 2 * (i % 4)));
	}
	*size = n;
	return out;
}
