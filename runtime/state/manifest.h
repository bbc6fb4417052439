/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd-checkpoint-1: what a checkpoint consists of. Plain data and pure functions, for workers and the controller alike.
 *
 * A checkpoint is a set of shard files (safetensors; one a worker and checkpoint, named after the worker, "n0-1.safetensors") and a
 * manifest that lists every extent in them. Its folder is named by hspmd_checkpoint_name() and lies in a place: a node's own folder (the
 * job's checkpoint.local with the node's name appended) or the shared one. A checkpoint exists from the moment its manifest is in one of
 * these folders (DESIGN law 4); a shard that lies in several places is the same bytes everywhere.
 *
 *   { "format": "hspmd-checkpoint-1", "step": 120, "generation": 3, "time": 1790000000.1, "job": { ... },
 *     "shards": [ { "file": "n0-1.safetensors", "bytes": 4096, "nodes": ["n0", "n1"], "extents": [
 *        { "tensor": "wte.weight", "kind": "param", "dtype": "F32", "shape": [256, 64], "lo": [0, 0], "hi": [128, 64],
 *          "offset": 4096, "bytes": 32768, "xxh3": "0123456789abcdef" } ] } ] }
 *
 * `offset` is from the start of the file. `xxh3` is the XXH3-64 of the extent's block sums: of the 8-byte little-endian XXH3-64 of each
 * HSPMD_BLOCK_BYTES of it, in order (the last block may be shorter). The block sums stand in the shard's own header, so that reading a
 * slice checks the blocks it touches and nothing else. */
#ifndef HSPMD_STATE_MANIFEST_H
#define HSPMD_STATE_MANIFEST_H

#include <jansson.h>

#include "common/error.h"
#include "runtime/device/device.h"
#include "runtime/tensor/box.h"

#define HSPMD_CHECKPOINT_FORMAT "hspmd-checkpoint-1"
#define HSPMD_SHARD_FORMAT "hspmd-shard-1" /* in a shard's metadata */
#define HSPMD_MANIFEST_FILE "manifest.json"
#define HSPMD_BLOCK_BYTES (1u << 20)

enum hspmd_state_kind { HSPMD_STATE_PARAM, HSPMD_STATE_ADAM_M, HSPMD_STATE_ADAM_V, HSPMD_STATE_KIND_COUNT };
extern const char *const hspmd_state_kind_names[]; /* "param", "adam_m", "adam_v", NULL */

struct hspmd_extent {
	char *tensor;
	enum hspmd_state_kind kind;
	enum hspmd_dtype dtype;
	struct hspmd_shape shape; /* of the whole tensor */
	struct hspmd_box box;     /* what of it lies here, packed row-major */
	int shard;
	uint64_t offset, bytes, xxh3;
};

struct hspmd_shard {
	char *file;
	uint64_t bytes; /* of the file */
	int node_count;
	char **nodes;                   /* those that said they hold it, writer first */
	int first_extent, extent_count; /* run in extents */
};

struct hspmd_manifest {
	int64_t step; /* steps done: training goes on with this one */
	int64_t generation;
	double time;
	json_t *job; /* an object the controller keeps here: seed, position in the data, plan, model, metrics so far; not looked into */
	int shard_count, extent_count;
	struct hspmd_shard *shards;
	struct hspmd_extent *extents;
};

/* Strict: boxes inside shapes, extents inside files and apart from one another, sizes that fit the dtype, file names without '/'. */
struct hspmd_manifest *hspmd_manifest_from_json(const json_t *value, const char *name, struct hspmd_error *err);
struct hspmd_manifest *hspmd_manifest_read(const char *path, struct hspmd_error *err);
json_t *hspmd_manifest_to_json(const struct hspmd_manifest *m); /* NULL: memory */
void hspmd_manifest_destroy(struct hspmd_manifest *m);

/* Put together what the workers reported (the shard objects of hspmd_writer_result; one file from several nodes is one shard with several
 * nodes). NULL and err when they disagree, or some part of a tensor of some kind is in none: nothing partial is ever made a checkpoint. */
struct hspmd_manifest *hspmd_manifest_assemble(int64_t step, int64_t generation, json_t *job, json_t *const *shards, size_t count,
                                               struct hspmd_error *err);

/* May this shard of manifest number `manifest` be read by somebody? */
typedef bool hspmd_reachable(void *context, int manifest, const struct hspmd_shard *shard);

/* Is all of every tensor in reachable shards? 0, or -1 and err names the first part that is not and the file it was in, not the step. */
int hspmd_manifest_covered(const struct hspmd_manifest *m, int number, hspmd_reachable *reachable, void *context, struct hspmd_error *err);
/* The newest (step, then generation) that is covered: its index, or -1 and err says what the newest lacks. */
int hspmd_manifest_choose(const struct hspmd_manifest *const *manifests, int count, hspmd_reachable *reachable, void *context,
                          struct hspmd_error *err);

/* "step-0000000120-g3" into buf; returns buf. */
const char *hspmd_checkpoint_name(int64_t step, int64_t generation, char *buf, size_t size);
/* The reverse; false when it is no such name. */
bool hspmd_checkpoint_parse(const char *name, int64_t *step, int64_t *generation);

#endif
