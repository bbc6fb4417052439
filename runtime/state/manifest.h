/* SPDX-License-Identifier: Apache-2.0 */
/* The contents of a checkpoint. Plain data and pure functions, for workers and the controller alike.
 *
 * A checkpoint is a set of shard files (safetensors; one per worker and checkpoint, named after the worker, "n0-1.safetensors") and a
 * manifest. Its folder is named by hspmd_checkpoint_name() and is in a location: a node's own folder
 * (the job's checkpoint.local with the node's name appended) or the shared one. A checkpoint exists as soon as its manifest is in one of
 * these folders (doc/design.md, law 4). A shard in several locations has the same bytes in all of them.
 *
 * In the first format the manifest lists every extent of every shard:
 *
 *   { "format": "hspmd-checkpoint-1", "step": 120, "generation": 3, "time": 1790000000.1, "job": { ... },
 *     "shards": [ { "file": "n0-1.safetensors", "bytes": 4096, "nodes": ["n0", "n1"], "extents": [
 *        { "tensor": "wte.weight", "kind": "param", "dtype": "F32", "shape": [256, 64], "lo": [0, 0], "hi": [128, 64],
 *          "offset": 4096, "bytes": 32768, "xxh3": "0123456789abcdef" } ] } ] }
 *
 * `offset` is relative to the start of the file. `xxh3` is the XXH3-64 of the extent's block checksums, in order: the 8-byte
 * little-endian XXH3-64 of each HSPMD_BLOCK_BYTES of the extent (the last block may be shorter). The block checksums are in the shard's
 * own header, so that reading a slice checks only the blocks that it reads.
 *
 * In the second format the manifest is a small root, some 150 bytes a shard, over the lists of extents that the shards have in their own
 * headers. A tree of sums leads from it to every byte: the root has the sum of each header, a header those of its blocks.
 *
 *   { "format": "hspmd-checkpoint-2", "step": ..., "generation": ..., "time": ..., "job": { ... }, "sets": ["f3", "0c"],
 *     "shards": [ { "file": "n0-1.safetensors", "bytes": 4096, "nodes": ["n0", "n1"], "list": "0123456789abcdef", "set": 0 } ] }
 *
 * `list` is the XXH3-64 of the header, which is the file's first 8 bytes and the JSON whose length they are. `set` is an index into
 * `sets`: of which parameters of the job's model the shard has its device's part, in all kinds of state. Digit i of a set stands for
 * parameters 4i (1), 4i + 1 (2), 4i + 2 (4) and 4i + 3 (8) in the order of the model's graph. Which part of a parameter is a device's
 * follows from the plan and the cluster in `job`, so who reads a root knows where everything is before it opens a file. */
#ifndef HSPMD_STATE_MANIFEST_H
#define HSPMD_STATE_MANIFEST_H

#include <jansson.h>

#include "common/error.h"
#include "common/optimizer/optimizer.h"
#include "runtime/device/device.h"
#include "runtime/tensor/box.h"

#define HSPMD_CHECKPOINT_FORMAT "hspmd-checkpoint-1"
#define HSPMD_CHECKPOINT_ROOT_FORMAT "hspmd-checkpoint-2"
#define HSPMD_SHARD_FORMAT "hspmd-shard-1" /* in a shard's metadata */
#define HSPMD_MANIFEST_FILE "manifest.json"
#define HSPMD_BLOCK_BYTES (1u << 20)
#define HSPMD_SHARD_NAME_MAX 200

enum hspmd_state_kind {
	HSPMD_STATE_PARAM,
	HSPMD_STATE_ADAM_M,
	HSPMD_STATE_ADAM_V,
	HSPMD_STATE_KIND_COUNT,                    /* of what a parameter of a job's model has */
	HSPMD_STATE_OTHER = HSPMD_STATE_KIND_COUNT /* a tensor of another trainer, of whatever use */
};
extern const char *const hspmd_state_kind_names[]; /* "param", "adam_m", "adam_v", "other", NULL */

struct hspmd_extent {
	char *tensor;
	enum hspmd_state_kind kind;
	enum hspmd_dtype dtype;
	struct hspmd_shape shape; /* of the full tensor */
	struct hspmd_box box;     /* the part of the tensor in this extent, packed row-major */
	int shard;
	uint64_t offset, bytes, xxh3;
};

struct hspmd_shard {
	char *file;
	uint64_t bytes; /* of the file */
	int node_count;
	char **nodes;                   /* the nodes that reported to have it, the writer first */
	int first_extent, extent_count; /* range in `extents`; none in a root */
	uint64_t list;                  /* of a root: the sum of the file's header */
	int set;                        /* of a root: index in `sets` */
};

struct hspmd_manifest {
	int64_t step; /* number of steps done, which is the number of the next step */
	int64_t generation;
	double time;
	json_t *job; /* an object that the controller stores here: seed, position in the data, plan, model, metrics so far; not parsed
	              * here */
	bool root;   /* the second format: `extents` is empty, the shards' headers have them (struct hspmd_reader) */
	int shard_count, extent_count, set_count;
	struct hspmd_shard *shards;
	struct hspmd_extent *extents;
	char **sets;    /* of a root */
	int set_digits; /* of each of them */
};

/* Parse strictly: boxes must be inside their shapes, extents inside their files and disjoint, sizes must fit the dtype, file names must
 * not contain '/'. */
struct hspmd_manifest *hspmd_manifest_from_json(const json_t *value, const char *name, struct hspmd_error *err);
struct hspmd_manifest *hspmd_manifest_read(const char *path, struct hspmd_error *err);
json_t *hspmd_manifest_to_json(const struct hspmd_manifest *m); /* NULL: memory */
/* The XXH3-64 of a manifest's JSON, with sorted keys and without spaces, as 16 hexadecimal digits. By it those who have a manifest name it
 * to those who do not. */
#define HSPMD_MANIFEST_SUM 17
int hspmd_manifest_sum(const json_t *manifest, char sum[HSPMD_MANIFEST_SUM], struct hspmd_error *err);
void hspmd_manifest_destroy(struct hspmd_manifest *m);
/* Of a root: whether the set has this parameter, by its number in the model's graph. */
bool hspmd_manifest_set_has(const struct hspmd_manifest *m, int set, int parameter);
/* The text of a set: has[i] for parameter i. The caller frees it; NULL: memory. */
char *hspmd_manifest_set_text(const bool *has, int count);

/* Assemble the manifest from the workers' reports (the shard objects of hspmd_writer_result; one file from several nodes is one shard
 * with several nodes). NULL and err if they contradict each other, or if a part of a tensor is missing: a partial checkpoint is never
 * committed. */
struct hspmd_manifest *hspmd_manifest_assemble(int64_t step, int64_t generation, json_t *job, json_t *const *shards, size_t count,
                                               struct hspmd_error *err);

/* Checks that the shards of a root that are `there` (by their numbers) contain all state of its model. A root does not say where a
 * parameter's parts are: who knows the model can tell (runtime/generation/root_files.h). */
struct hspmd_root_check {
	int (*covered)(void *context, const struct hspmd_manifest *root, const bool *there, struct hspmd_error *err);
	void *context;
};

/* Assemble a root from reports that have, instead of extents, `list` and `set` as text. Copies of a shard that others keep have no set:
 * the shard's writer reports it, with no nodes if it could not write the shard itself. As hspmd_manifest_assemble. */
struct hspmd_manifest *hspmd_root_assemble(int64_t step, int64_t generation, json_t *job, json_t *const *shards, size_t count,
                                           const struct hspmd_root_check *check, struct hspmd_error *err);

/* Returns true if some device can read this shard of a manifest. */
typedef bool hspmd_reachable(void *context, const struct hspmd_shard *shard);

/* Checks that reachable shards (NULL: all) contain all of every tensor. 0; or -1, and err names the first missing part and its file, but
 * not the step. check: of a root some of whose shards cannot be reached; NULL: it needs them all. */
int hspmd_manifest_covered(const struct hspmd_manifest *m, hspmd_reachable *reachable, void *context, const struct hspmd_root_check *check,
                           struct hspmd_error *err);

/* Subtract a box from *boxes, which are disjoint; *count and *capacity are theirs. 0, or -1: memory. */
int hspmd_boxes_subtract(struct hspmd_box **boxes, size_t *count, size_t *capacity, const struct hspmd_box *box);

/* Whether a checkpoint is of a model, by its extents, which a root does not list. Each returns 0, or -1 and err, which says what the
 * checkpoint has or lacks. */
/* Whether an extent is a part of the model's state. shape: of the model's parameter of that name; NULL: there is none. */
int hspmd_extent_check(const struct hspmd_extent *e, const struct hspmd_shape *shape, struct hspmd_error *err);
/* Whether the extents are of all kinds that the optimizer keeps. */
int hspmd_manifest_check_kinds(const struct hspmd_manifest *m, enum hspmd_optimizer optimizer, struct hspmd_error *err);
struct hspmd_state_parameter { /* borrowed */
	const char *name;
	const struct hspmd_shape *shape;
	bool history; /* an amax history, which a checkpoint may lack: it then begins empty */
};
/* Whether the extents are of the parameters of a model: of all of them but for amax histories, and no others. Sorts them. */
int hspmd_manifest_check_model(const struct hspmd_manifest *m, struct hspmd_state_parameter *parameters, size_t count,
                               struct hspmd_error *err);

/* "step-0000000120-g3" into buf; returns buf. */
const char *hspmd_checkpoint_name(int64_t step, int64_t generation, char *buf, size_t size);
/* The name of the shard of the device with this address: "n0-1.safetensors" into buf; returns buf. */
const char *hspmd_shard_name(const char *address, char *buf, size_t size);
/* Parse a checkpoint's name; returns false if it is another name. */
bool hspmd_checkpoint_parse(const char *name, int64_t *step, int64_t *generation);

#endif
