/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints on disk: written in two phases, read by slices. manifest.h describes their contents.
 *
 * Writing: each worker writes its shard into the checkpoint's folder in one or more locations (temporary name, fsync, rename, fsync of
 * the folder) and reports it. When all have, the controller assembles the manifest and has it committed in every location. Only then may
 * older checkpoints be removed. A crash at any point leaves the old or the new checkpoint complete. */
#ifndef HSPMD_STATE_CHECKPOINT_H
#define HSPMD_STATE_CHECKPOINT_H

#include "common/losses.h"
#include "runtime/comm/transport.h"
#include "runtime/device/device.h"
#include "runtime/state/manifest.h"

/* ---- writing (workers) */

/* One part of the state, where it is in memory. Strings and data are the caller's. */
struct hspmd_state_slice {
	const char *tensor;
	enum hspmd_state_kind kind;
	enum hspmd_dtype dtype;
	struct hspmd_shape shape;
	struct hspmd_box box;
	const void *data; /* packed, device memory */
	bool in_host;     /* the host can read it all the same */
};

/* Copies of shards on other nodes: who sends to whom over which transport. Every member of `transport` takes part in every checkpoint. */
struct hspmd_copy_routes {
	struct hspmd_transport *transport; /* used by the writer alone; a socket transport is sufficient */
	const int *to, *from;              /* ranks: `to` keep this worker's shard; this worker keeps the shards of `from` */
	int to_count, from_count;
	const bool *declined; /* by index in `from`: no space for this shard; it is received and not kept. NULL: all are kept */
	const char *location; /* the location where this worker keeps copies */
};

/* One part of a worker's shard: the nodes that have it without sending, the worker's own node first. */
struct hspmd_copies_part {
	int *nodes;
	int count;
};

/* A worker's shard, for choosing the keepers of its copies. */
struct hspmd_copy_worker {
	int node;
	uint64_t bytes;                        /* size of a copy, on the keeper and when sent */
	const struct hspmd_copies_part *parts; /* none: no copy is needed */
	int part_count;
};

/* Choose the keepers of copies: to[i * most ... i * most + most) are the workers that keep worker i's shard, -1 after the last, each on
 * another node. There are as few as are necessary so that no loss in `losses` (whose node numbers are those of the workers) takes any
 * part; bytes kept for others are balanced between nodes as far as the choice permits. If the job may shrink to one node, that node
 * keeps everything that it does not hold itself. If there are too few nodes, there are fewer copies. All workers get the same answer. 0,
 * or -1: memory. */
int hspmd_copies_assign(const struct hspmd_losses *losses, const struct hspmd_copy_worker *w, int workers, int most, int *to,
                        struct hspmd_error *err);

struct hspmd_writer_job {
	int64_t step, generation;
	const char *file;             /* "n0-1.safetensors" */
	const char *node;             /* this node */
	const char *const *locations; /* folders in which the checkpoint's folder is created; copied */
	int location_count;
	const char *shared; /* one more, which may be slow or hang: it is written after those, and has a result of its own; NULL: none */
	bool host;                              /* the slices' data are in host memory, independent of the device */
	const char *set;                        /* the shard is reported for a root, with this set (manifest.h); NULL: with its extents */
	const struct hspmd_copy_routes *copies; /* NULL: none. It and everything that it points to must stay unchanged until the result is
	                                           there or hspmd_writer_detach has returned */
};

/* A writer has a background thread and a buffer for an image of the shard, and a thread more for the shared folder. As long as this one
 * writes an image, the next shard takes a second buffer. */
struct hspmd_writer;
/* Borrows dev. NULL: all jobs are of host memory. */
struct hspmd_writer *hspmd_writer_create(struct hspmd_device *dev, struct hspmd_error *err);
/* Waits until a running write has ended. */
void hspmd_writer_destroy(struct hspmd_writer *w);

/* Start to write. The slices' data must not change until hspmd_writer_wait_copied has returned; names and the array may be freed at
 * once. -1 and err: the previous shard is still being written (hspmd_writer_busy, or, if job->shared, hspmd_writer_shared_busy), or memory
 * is short. */
int hspmd_writer_begin(struct hspmd_writer *w, const struct hspmd_writer_job *job, const struct hspmd_state_slice *slices, size_t count,
                       struct hspmd_error *err);
/* To be called before the state changes: blocks until the live data is no longer needed (a copy exists). Cheap if no write is running.
 * -1 and err: the device failed to provide its part of the data; the live data is not read any more, and the checkpoint fails. */
int hspmd_writer_wait_copied(struct hspmd_writer *w, struct hspmd_error *err);
/* Returns true if that would block, or may. */
bool hspmd_writer_is_copying(struct hspmd_writer *w);
bool hspmd_writer_busy(struct hspmd_writer *w);
bool hspmd_writer_shared_busy(struct hspmd_writer *w);
/* The result of a write. 0: nothing new. 1: written (in at least one location), or, if copies were requested, attempted: *report is a
 * new reference to
 *   { "shard": null if no location has it, or {"file", "bytes", "nodes": [this one], "extents": [...]},
 *     "places": [{"place", "error": text or null}], "bytes", "seconds", "hold_s",
 *     "copies": { "shards": [those of others that are kept here, like "shard"], "error": text or null } if copies were requested }
 * or, of a job with a set:
 *   { "shard": {"file", "bytes", "nodes": [this one], or [] if no location has it, "list": text, "set": text},
 *     "places": [only those with an error], "seconds", "hold_s", "copies": as above, the shards without set }
 * -1 and err: written in no location. Each result is returned once. timeout_s 0: do not wait. */
int hspmd_writer_result(struct hspmd_writer *w, double timeout_s, json_t **report, struct hspmd_error *err);
/* The same for job->shared: { "shard", "seconds" }, the shard as above. */
int hspmd_writer_shared_result(struct hspmd_writer *w, double timeout_s, json_t **report, struct hspmd_error *err);
/* Blocks until the writer will not use the transport for copies any more; set the transport's abort flag before. The report lists the
 * copies that are missing. */
void hspmd_writer_detach(struct hspmd_writer *w);
/* The image of the last shard written (a complete file), for a peer that keeps a copy; valid until the next begin. NULL: none. */
const void *hspmd_writer_image(struct hspmd_writer *w, size_t *bytes);

/* Write another worker's image into a location, after checking all of it. *shard: as in the report, with `node`. */
int hspmd_shard_store(const char *location, const char *node, int64_t step, int64_t generation, const char *file, const void *image,
                      size_t bytes, json_t **shard, struct hspmd_error *err);

/* ---- committing (by one process per location; of many locations only some have the manifest) */

/* The folder of a run's checkpoints within a folder that its job names, so that no run removes or overwrites another's. The caller frees
 * it; NULL: memory. */
char *hspmd_checkpoint_run_folder(const char *folder, const char *run);
/* Returns true if two paths below such folders belong to one run. */
bool hspmd_checkpoint_same_run(const char *a, const char *b);

/* Write the manifest into its checkpoint's folder in this location, durably. */
int hspmd_checkpoint_commit(const char *location, const struct hspmd_manifest *m, struct hspmd_error *err);
/* Remove all but the `keep` newest committed checkpoints of this location, and uncommitted ones that are older than the newest
 * committed. Removes nothing if no checkpoint is committed. For locations that have the manifests of all their checkpoints. */
int hspmd_checkpoint_prune(const char *location, int keep, struct hspmd_error *err);

/* A checkpoint of a run. The order in which they were written: by generation, then by step. */
struct hspmd_checkpoint_id {
	int64_t step, generation;
};
/* Remove the checkpoints of this location that were written before the newest of `kept` and are not among these. Whoever commits knows
 * which ones stand; this node may have no manifest of them. Later ones may still be being written. Removes nothing if count is 0. */
int hspmd_checkpoint_keep(const char *location, const struct hspmd_checkpoint_id *kept, size_t count, struct hspmd_error *err);

/* ---- reading */

/* A checkpoint in a folder: one that a job names, a run's folder, a location, or the checkpoint's own folder. */
struct hspmd_listed_checkpoint {
	char *folder; /* the checkpoint's own */
	struct hspmd_manifest *manifest;
	char *error;  /* why there is no manifest */
	bool no_file; /* because there is no such file: it may be on another node */
};
/* The number of folders between one that a job names and its checkpoints: the run's and the node's. */
#define HSPMD_LOCATION_DEPTH 2
/* All checkpoints with at most `depth` folders in between, oldest first; free *found with hspmd_checkpoint_list_free. A folder that does
 * not exist contains none. Returns the count or -1. */
int hspmd_checkpoint_list(const char *path, int depth, struct hspmd_listed_checkpoint **found, struct hspmd_error *err);
void hspmd_checkpoint_list_free(struct hspmd_listed_checkpoint *found, int count);

/* Reads one checkpoint. The folders (the checkpoint's own, nearest first) are searched for each shard that is `wanted` (by its number in
 * the manifest; NULL: for all). Borrows m. */
struct hspmd_reader;
struct hspmd_reader *hspmd_reader_create(const struct hspmd_manifest *m, const bool *wanted, const char *const *folders, int count,
                                         struct hspmd_error *err);
void hspmd_reader_destroy(struct hspmd_reader *r);
/* Returns true if there is a file of the right size. Its content is checked when it is read. */
bool hspmd_reader_has(const struct hspmd_reader *r, int shard);
/* Index of the first folder that has such a file; -1: none. */
int hspmd_reader_folder(const struct hspmd_reader *r, int shard);
/* The extents of the checkpoint, in any order: those that the manifest lists. Of a root: those of all shards that are here, after reading
 * their headers; a shard of which no copy has the header that the root names is left out (logged). They stay as they are until the
 * reader is destroyed. Returns the count. */
int hspmd_reader_extents(struct hspmd_reader *r, const struct hspmd_extent **extents);
/* Checks that the shards here contain all of every tensor, as hspmd_manifest_covered. Reads headers only if a shard of a root is
 * missing. */
int hspmd_reader_covered(struct hspmd_reader *r, struct hspmd_error *err);

struct hspmd_state_need {
	const char *tensor;
	enum hspmd_state_kind kind;
	enum hspmd_dtype dtype;
	struct hspmd_box box;
	void *data; /* packed, host memory */
};
struct hspmd_state_gap {
	size_t need;
	struct hspmd_box box;
};
/* Fill all needs from files that can be read here, each element once. Only the blocks needed are read, and all of these are checked; if
 * one is damaged or cannot be read, the copy in the next folder is used (logged). Elements that cannot be read are listed in *gaps (the
 * caller frees it; gaps NULL: they are an error). bytes_read (may be NULL): receives the bytes read from each of the reader's folders. */
int hspmd_reader_load(struct hspmd_reader *r, const struct hspmd_state_need *needs, size_t count, struct hspmd_state_gap **gaps,
                      size_t *gap_count, uint64_t *bytes_read, struct hspmd_error *err);
/* Read and check every block of every shard that is there, in every folder. 0: all intact; -1: err names the first damaged one, *bad
 * (may be NULL) counts them. */
int hspmd_reader_verify(struct hspmd_reader *r, int *bad, struct hspmd_error *err);

#endif
