/* SPDX-License-Identifier: Apache-2.0 */
/* A model's weights in Hugging Face's format: one safetensors file, or a folder with model.safetensors or model.safetensors.index.json.
 * Slices are read as F32. */
#ifndef HSPMD_WEIGHTS_WEIGHTS_H
#define HSPMD_WEIGHTS_WEIGHTS_H

#include "common/error.h"
#include "runtime/tensor/box.h"
#include "runtime/tensor/file_tensor.h"

/* Piece number `index` of one of our tensors: from the map, or (map NULL) the tensor as it is. False: there are fewer. */
bool hspmd_file_map_piece(const struct hspmd_file_map *map, const char *name, const struct hspmd_shape *shape, int64_t index,
                          struct hspmd_file_piece *piece);

struct hspmd_weights;
struct hspmd_weights *hspmd_weights_open(const char *path, struct hspmd_error *err);
void hspmd_weights_destroy(struct hspmd_weights *w);

/* Read `box` of the tensor `name` with this shape into a packed buffer. map: where the files have it; NULL: under this name and in this
 * shape. The files may use the name with or without a prefix of the map. F32, F64, BF16 and F16 are converted. -1 and err: not found,
 * another shape, or cannot be read. */
int hspmd_weights_read(struct hspmd_weights *w, const struct hspmd_file_map *map, const char *name, const struct hspmd_shape *shape,
                       const struct hspmd_box *box, float *data, struct hspmd_error *err);
/* Check that it could be read, by the files' headers alone. */
int hspmd_weights_check(const struct hspmd_weights *w, const struct hspmd_file_map *map, const char *name, const struct hspmd_shape *shape,
                        struct hspmd_error *err);

#endif
