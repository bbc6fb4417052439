/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints on disk: written in two phases, read by slices. See manifest.h for what they consist of.
 *
 * Writing: each worker writes its shard into the checkpoint's folder in one or more places (temporary name, fsync, rename, fsync of the
 * folder) and reports it; when all have, the controller assembles the manifest and has it committed in every place; only then may older
 * ones be removed. Dying at any point leaves the old checkpoint or the new one, whole.
 */
#ifndef HSPMD_STATE_CHECKPOINT_H
#define HSPMD_STATE_CHECKPOINT_H

#include "common/losses.h"
#include "runtime/comm/transport.h"
#include "runtime/device/device.h"
#include "runtime/state/manifest.h"

/* ---- writing (workers) */

/* One part of the state, where it lives. Strings and data are the caller's. */
struct hspmd_state_slice {
	const char *tensor;
	enum hspmd_state_kind kind;
	enum hspmd_dtype dtype;
	struct hspmd_shape shape;
	struct hspmd_box box;
	const void *data; /* packed, device memory */
};

/* Copies of shards on other nodes: who sends to whom over which transport. Every member of `transport` takes part in every checkpoint. */
struct hspmd_copy_routes {
	struct hspmd_transport *transport; /* the writer's alone; a socket transport will do */
	const int *to, *from;              /* ranks: who keeps this worker's shard, and whose shards it keeps */
	int to_count, from_count;
	const bool *declined; /* by `from`: there is no room for it; what comes is taken in and not kept. NULL: all are kept */
	const char *location; /* in which it keeps them */
};

/* Nodes that have a part of a worker's shard without any sending, the worker's own first. */
struct hspmd_copies_part {
	int *nodes;
	int count;
};

/* A worker's shard, for choosing who keeps copies of it. */
struct hspmd_copy_worker {
	int node;
	uint64_t bytes;                        /* that a copy takes there, and on the way */
	const struct hspmd_copies_part *parts; /* none: no copy is wanted */
	int part_count;
};

/* Who keeps copies: to[i * most ... i * most + most) are workers, -1 behind the last, each on another node. As few as it takes for no part
 * to lack anything that `losses` tells of (whose nodes number the workers'), and what nodes keep for others is balanced by size as far as
 * that leaves a choice: where the job may shrink to one node, that one keeps all that it does not hold. There are fewer than wanted where
 * there are too few nodes. Everybody gets the same answer. 0, or -1: memory. */
int hspmd_copies_assign(const struct hspmd_losses *losses, const struct hspmd_copy_worker *w, int workers, int most, int *to,
                        struct hspmd_error *err);

struct hspmd_writer_job {
	int64_t step, generation;
	const char *file;             /* "n0-1.safetensors" */
	const char *node;             /* this node */
	const char *const *locations; /* folders in which the checkpoint's folder is made; copied */
	int location_count;
	bool host; /* the slices' data are in host memory, whatever the device's is */
	const struct hspmd_copy_routes
	        *copies; /* NULL: none. With all it points to, left alone until the result is there or hspmd_writer_detach returned */
};

/* One background thread and one buffer for an image of the shard. */
struct hspmd_writer;
struct hspmd_writer *hspmd_writer_create(struct hspmd_device *dev, struct hspmd_error *err); /* borrows dev */
/* Waits for what is under way to end. */
void hspmd_writer_destroy(struct hspmd_writer *w);

/* Begin to write. The slices' data must not change until hspmd_writer_wait_copied returned; names and the array may go at once. -1 and err:
 * the last one is still being written (hspmd_writer_busy), or memory is short. */
int hspmd_writer_begin(struct hspmd_writer *w, const struct hspmd_writer_job *job, const struct hspmd_state_slice *slices, size_t count,
                       struct hspmd_error *err);
/* To be called before the state changes: returns as soon as the live data is no longer needed (a copy of it exists). Cheap when nothing is
 * under way. -1 and err: the device did not give its part of the data; nobody reads the live data any more, and the checkpoint fails. */
int hspmd_writer_wait_copied(struct hspmd_writer *w, struct hspmd_error *err);
bool hspmd_writer_busy(struct hspmd_writer *w);
/* 0 nothing new; 1 written (in at least one place), or, where copies were asked for, tried: *report is a new reference to
 *   { "shard": null where no place took it, or {"file", "bytes", "nodes": [this one], "extents": [...]}, "places": [{"place", "error": text
 * or null}], "bytes", "seconds", "hold_s", "copies": { "shards": [those of others that are kept here, like "shard"], "error": text or null
 * } where copies were asked for } ; -1 and err: in no place. Each outcome is given once. timeout_s 0: do not wait. */
int hspmd_writer_result(struct hspmd_writer *w, double timeout_s, json_t **report, struct hspmd_error *err);
/* Return when the writer no longer uses the copies' transport, now or later: set its abort flag before. What is missing then is told in the
 * report. */
void hspmd_writer_detach(struct hspmd_writer *w);
/* The image of the last shard written (a whole file) for a peer that keeps a copy; valid until the next begin. NULL: none. */
const void *hspmd_writer_image(struct hspmd_writer *w, size_t *bytes);

/* Write another worker's image into a place, after checking it whole. *shard: as in the report, with `node`. */
int hspmd_shard_store(const char *location, const char *node, int64_t step, int64_t generation, const char *file, const void *image,
                      size_t bytes, json_t **shard, struct hspmd_error *err);

/* ---- committing (one process a place) */

/* Where a run keeps its checkpoints under a folder that its job names, so that no run removes or writes over another's. malloc'd; NULL:
 * memory. */
char *hspmd_checkpoint_run_folder(const char *folder, const char *run);
/* Do two paths below such folders belong to one run? */
bool hspmd_checkpoint_same_run(const char *a, const char *b);

/* Write the manifest into its checkpoint's folder in this place, durably. */
int hspmd_checkpoint_commit(const char *location, const struct hspmd_manifest *m, struct hspmd_error *err);
/* Remove all but the `keep` newest committed checkpoints of this place, and what was begun but never committed and is older than the newest
 * committed. Nothing goes while no checkpoint is committed. */
int hspmd_checkpoint_prune(const char *location, int keep, struct hspmd_error *err);

/* ---- reading */

/* Checkpoints under a folder: one that a job names, a run's, a place, or a checkpoint's own. */
struct hspmd_listed_checkpoint {
	char *folder; /* the checkpoint's own */
	struct hspmd_manifest *manifest;
	char *error; /* why there is no manifest */
};
/* How many folders lie between one that a job names and its checkpoints: the run's, the node's. */
#define HSPMD_LOCATION_DEPTH 2
/* All of them with at most `depth` folders between, oldest first; *found is malloc'd, free with hspmd_checkpoint_list_free. A folder that
 * is not there holds none. Count or -1. */
int hspmd_checkpoint_list(const char *path, int depth, struct hspmd_listed_checkpoint **found, struct hspmd_error *err);
void hspmd_checkpoint_list_free(struct hspmd_listed_checkpoint *found, int count);

/* Reads one checkpoint from where its shards are. Folders (the checkpoint's own, nearest first) are looked through for each shard. */
struct hspmd_reader;
struct hspmd_reader *hspmd_reader_create(const struct hspmd_manifest *m, const char *const *folders, int count,
                                         struct hspmd_error *err); /* borrows m */
void hspmd_reader_destroy(struct hspmd_reader *r);
/* Is there a file of the right size? Its content is checked when it is read. */
bool hspmd_reader_has(const struct hspmd_reader *r, int shard);
/* Number of the first folder that has such a file; -1: none. */
int hspmd_reader_folder(const struct hspmd_reader *r, int shard);
/* Copy what of `box` lies in this extent into a packed host buffer that holds `box`. Only the blocks needed are read, and all of these are
 * checked; a copy in the next folder is used where one is damaged or cannot be read (said in the log). -1 and err when no copy is good. */
int hspmd_reader_read(struct hspmd_reader *r, int extent, const struct hspmd_box *box, void *data, struct hspmd_error *err);

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
/* Fill all needs from what can be read here, each element once. What cannot is listed in *gaps (malloc'd; NULL: then it is an error).
 * bytes_read (may be NULL) counts bytes taken from each folder of the reader. */
int hspmd_reader_load(struct hspmd_reader *r, const struct hspmd_state_need *needs, size_t count, struct hspmd_state_gap **gaps,
                      size_t *gap_count, uint64_t *bytes_read, struct hspmd_error *err);
/* Read and check every block of every shard that is there, in every folder. 0 all good; -1: err names the first bad one, *bad (may be NULL)
 * counts. */
int hspmd_reader_verify(struct hspmd_reader *r, int *bad, struct hspmd_error *err);

#endif
