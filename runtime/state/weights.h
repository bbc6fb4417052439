/* SPDX-License-Identifier: Apache-2.0 */
/* A model's weights in Hugging Face's format: one safetensors file, or a folder with model.safetensors or model.safetensors.index.json.
 * Slices are read as F32. */
#ifndef HSPMD_STATE_WEIGHTS_H
#define HSPMD_STATE_WEIGHTS_H

#include "common/error.h"
#include "runtime/state/checkpoint.h"
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

/* Write the parameters of a checkpoint as a model folder that Hugging Face's libraries load: config.json, and model.safetensors or, if
 * that would be larger than max_bytes, several files and an index. Creates the folder; replaces files of these names in it. */
struct hspmd_export_options {
	const char *folder;
	const json_t *config;             /* config.json; NULL: none is written */
	const struct hspmd_file_map *map; /* names and shapes in the files; NULL: as in the checkpoint */
	bool bf16;                        /* F32 as BF16; other types stay as they are */
	uint64_t max_bytes;               /* of one file; 0: 5 GB */
};
int hspmd_weights_export(struct hspmd_reader *r, const struct hspmd_export_options *how, struct hspmd_error *err);

/* Write a checkpoint of step 0 from weights into a location: the named tensors (F32), with moments of zero. map: as above. job: goes
 * into the manifest. */
struct hspmd_import_tensor {
	const char *name;
	struct hspmd_shape shape;
};
int hspmd_weights_import(struct hspmd_weights *w, const struct hspmd_file_map *map, const struct hspmd_import_tensor *tensors, size_t count,
                         json_t *job, const char *location, struct hspmd_error *err);

#endif
