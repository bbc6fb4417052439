/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint's parameters as a model folder of Hugging Face's (runtime/weights), and back. */
#ifndef HSPMD_STATE_EXPORT_H
#define HSPMD_STATE_EXPORT_H

#include "runtime/state/checkpoint.h"
#include "runtime/weights/weights.h"

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

/* Write a checkpoint of step 0 from weights into a location: the named tensors (F32), with moments of zero. map: as hspmd_weights_read
 * takes it. job: goes into the manifest. */
struct hspmd_import_tensor {
	const char *name;
	struct hspmd_shape shape;
};
int hspmd_weights_import(struct hspmd_weights *w, const struct hspmd_file_map *map, const struct hspmd_import_tensor *tensors, size_t count,
                         json_t *job, const char *location, struct hspmd_error *err);

#endif
