/* SPDX-License-Identifier: Apache-2.0 */
/* What a type of model tells the others: one constant of this struct per file of model_list.h. */
#ifndef HSPMD_MODEL_MODEL_TYPE_H
#define HSPMD_MODEL_MODEL_TYPE_H

#include "common/json.h"
#include "runtime/model/model.h"

struct hspmd_builder;
struct hspmd_model_build_options;

/* Our tensors whose names contain `ours` are in the files under the name with `file` in its place. "%d" in `file`: every row of our tensor
 * (its first dimension) is a tensor of the file, with the row's number in its name. `place` changes where the elements are; the piece is
 * filled before as if the shapes were the same. NULL: they are. */
struct hspmd_weight_name {
	const char *ours, *file;
	void (*place)(const struct hspmd_model *m, const struct hspmd_shape *ours, struct hspmd_file_piece *piece);
};

struct hspmd_model_type {
	/* Of a model of the user's own: builds the graph; then no other field is used. NULL: all others. */
	struct hspmd_graph *(*graph)(const struct hspmd_model *m, const struct hspmd_model_build_options *how, struct hspmd_error *err);
	const char *names[3]; /* values of model_type; the first also names the type in messages */
	/* Reads the config's fields into *m and m->own. type, name, vocab and config are set. Failures are kept in the document. */
	void (*read)(struct hspmd_json *root, struct hspmd_model *m);
	/* Appends the operators of one block, and returns its result. All types have it that hspmd_build_decoder() builds. Failures are
	 * kept in the graph. */
	int (*block)(struct hspmd_builder *b, int x);
	/* Appends the operators up to the loss. NULL: hspmd_build_decoder() does, with `block`. */
	void (*build)(struct hspmd_builder *b);
	const struct hspmd_weight_name *weights; /* ends with an entry without `ours`; NULL: names and shapes are as in the files */
	const char *const *prefixes;             /* see struct hspmd_file_map */
	const char *inner; /* key of the object that has the fields of this type, if the config also describes other parts; NULL: none */
};

#endif
