/* SPDX-License-Identifier: Apache-2.0 */
/* Delta encoding of the numbers in a JSON text's strings, before the text is compressed. Names of nodes and devices count upwards, so equal
 * parts of a plan differ in nothing but these numbers; as differences to the number before they become the same bytes, which a compressor
 * finds (the same idea: PNG specification, section 9, filtering).
 *
 * A number is replaced by its difference to the last one behind the same text of its string, from the last comma on ("n", "n12:", "n[",
 * without digits). Differences are bytes below 0x20, which no text of ours has; all other bytes stay. */
#ifndef HSPMD_COMMON_DELTA_TEXT_H
#define HSPMD_COMMON_DELTA_TEXT_H

#include <stddef.h>

#include "common/error.h"

/* The encoded text, malloc'd, and its size. 0, or -1 and err: out of memory, or the text has bytes below 0x20. */
int hspmd_delta_text_encode(const char *text, size_t size, char **out, size_t *out_size, struct hspmd_error *err);
/* The text again, of exactly `size` bytes, malloc'd. -1 and err: damaged, or another size. */
int hspmd_delta_text_decode(const char *encoded, size_t encoded_size, size_t size, char **text, struct hspmd_error *err);

#endif
