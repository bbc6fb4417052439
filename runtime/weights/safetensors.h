/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors format: 8 bytes little-endian length n, n bytes of JSON (padded with spaces), then the tensors' bytes without a gap.
 *   { "__metadata__": { text: text }, "name": { "dtype": "F32", "shape": [2, 3], "data_offsets": [first, end) } } */
#ifndef HSPMD_WEIGHTS_SAFETENSORS_H
#define HSPMD_WEIGHTS_SAFETENSORS_H

#include <jansson.h>
#include <stdint.h>

#include "common/error.h"
#include "runtime/tensor/box.h"

#define HSPMD_SAFETENSORS_HEADER_MAX (100u << 20)

struct hspmd_safetensor {
	char *name;
	char dtype[12]; /* "F32", "BF16", "I64", ... */
	struct hspmd_shape shape;
	uint64_t offset, bytes; /* offset within the file */
};

struct hspmd_safetensors {
	size_t count;
	struct hspmd_safetensor *tensors; /* in the order of their offsets */
	json_t *metadata;                 /* an object; NULL: none */
};

/* Bytes per element of a dtype; 0: unknown. */
size_t hspmd_safetensors_element(const char *dtype);
/* Parse a header strictly: known dtypes, shapes that fit, tensors that cover the data of a file of file_bytes without gap or overlap.
 * `name` is for error messages. NULL and err on failure. */
struct hspmd_safetensors *hspmd_safetensors_parse(const char *text, size_t bytes, uint64_t file_bytes, const char *name,
                                                  struct hspmd_error *err);
/* Read the header of an open file as it lies there: the length, and at offset 8 the JSON; *bytes counts both. The caller frees it. */
char *hspmd_safetensors_read_header(int fd, const char *name, size_t *bytes, uint64_t *file_bytes, struct hspmd_error *err);
/* Read and parse the header of an open file. */
struct hspmd_safetensors *hspmd_safetensors_read(int fd, const char *name, struct hspmd_error *err);
const struct hspmd_safetensor *hspmd_safetensors_find(const struct hspmd_safetensors *s, const char *name);
void hspmd_safetensors_destroy(struct hspmd_safetensors *s);

/* A header: its length and JSON, padded so that it ends at a multiple of `align`. The tensors' offsets are relative to the first one's.
 * The caller frees it. */
char *hspmd_safetensors_header(const struct hspmd_safetensor *tensors, size_t count, const json_t *metadata, size_t align, size_t *bytes,
                               struct hspmd_error *err);

#endif
