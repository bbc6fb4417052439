/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of runtime/state. */
#ifndef HSPMD_STATE_STATE_INTERNAL_H
#define HSPMD_STATE_STATE_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "common/json.h"
#include "runtime/state/checkpoint.h"

struct extent_list {
	struct hspmd_extent *items;
	size_t count, capacity;
};

/* ---- checksums (checksum.c) */

/* A checksum as 16 hexadecimal digits into buf[17]; returns buf. */
const char *hspmd_checksum_text(uint64_t sum, char *buf);
/* Returns how many of the first 16 characters are lower-case hexadecimal digits; 16: *sum is set. */
int hspmd_checksum_parse(const char *text, uint64_t *sum);
uint64_t hspmd_checksum_block(const void *data, size_t bytes);
/* The checksum of an extent from those of its blocks. */
uint64_t hspmd_checksum_of_blocks(const uint64_t *blocks, size_t count);
static inline size_t hspmd_block_count(uint64_t bytes)
{
	return (size_t)((bytes + HSPMD_BLOCK_BYTES - 1) / HSPMD_BLOCK_BYTES);
}

/* ---- JSON (manifest.c); new references, NULL: memory */
json_t *hspmd_extent_part_json(const struct hspmd_extent *e); /* tensor, kind, shape, lo, hi */
int hspmd_extent_read_part(struct hspmd_json *at, struct hspmd_extent *e);
json_t *hspmd_shard_json(const char *file, uint64_t bytes, char *const *nodes, int node_count, const struct hspmd_extent *extents,
                         int count);
/* As it is reported for a root. node NULL: none; set NULL: not known. */
json_t *hspmd_root_shard_json(const char *file, uint64_t bytes, const char *node, uint64_t list, const char *set);

/* ---- completeness (manifest_assemble.c) */

/* Checks that the extents in shards that are `there` contain all of every tensor that the extents name. As hspmd_manifest_covered. */
int hspmd_extents_covered(const struct hspmd_manifest *m, const struct hspmd_extent *extents, size_t count, const bool *there,
                          struct hspmd_error *err);

/* ---- a shard's image: the complete file in memory (image.c) */

/* The data begin at a multiple of this, so that they can be written with direct I/O. */
#define HSPMD_IMAGE_ALIGN 4096u

struct hspmd_image {
	char *data; /* aligned; kept between uses */
	size_t capacity, bytes, header_bytes;
	struct hspmd_extent *extents; /* owns the names; layout sets offset and bytes, seal sets xxh3 */
	size_t extent_count;
	uint64_t *blocks; /* checksums, extent after extent; 0: not yet known */
	size_t block_count;
	uint64_t list; /* the header's checksum; seal sets it */
};

/* Assign an offset to every slice and allocate memory. */
int hspmd_image_layout(struct hspmd_image *im, const struct hspmd_state_slice *slices, size_t count, struct hspmd_error *err);
/* Copy data into the image, bypassing the caches, and compute the checksums of its blocks meanwhile. `block`: index of the first one in
 * im->blocks; all of them begin at `to`. */
void hspmd_image_copy(struct hspmd_image *im, size_t block, char *to, const char *from, size_t bytes);
/* To be called when all data are in the image: computes the missing checksums, and the header. */
int hspmd_image_seal(struct hspmd_image *im, struct hspmd_error *err);
/* Check all of a finished image that was received, and list its extents (*extents: the caller frees it, with names). */
int hspmd_image_check(const void *data, size_t bytes, struct hspmd_extent **extents, size_t *count, struct hspmd_error *err);
void hspmd_image_free(struct hspmd_image *im);
void hspmd_extents_free(struct hspmd_extent *extents, size_t count);

/* A finished image as it is reported: of a root if `set` (manifest.h) is given, else with its extents, or null if no node has it (NULL). */
json_t *hspmd_image_shard_json(const struct hspmd_image *im, const char *file, const char *node, const char *set);

/* ---- the shared folder (shared_writer.c): one thread, which writes one image at a time */
struct hspmd_shared_writer;
/* A shard's image and where it goes. Strings are the caller's. */
struct hspmd_shared_job {
	struct hspmd_image *image;
	const char *location, *file, *node, *set; /* set NULL: extents are reported */
	int64_t step, generation;
};
struct hspmd_shared_writer *hspmd_shared_writer_create(struct hspmd_error *err);
void hspmd_shared_writer_destroy(struct hspmd_shared_writer *w); /* waits until a running write has ended; NULL is fine, also below */
/* Takes the writer for an image that is still being made; `begin` or `fail` must follow. -1 and err: it is busy. */
int hspmd_shared_writer_claim(struct hspmd_shared_writer *w, struct hspmd_error *err);
/* Starts to write the job's image, which must not change until hspmd_shared_writer_leave() or the result is there. A job that cannot be
 * started has a result, too. */
void hspmd_shared_writer_begin(struct hspmd_shared_writer *w, const struct hspmd_shared_job *job);
void hspmd_shared_writer_fail(struct hspmd_shared_writer *w, const struct hspmd_error *err); /* there is nothing to write */
bool hspmd_shared_writer_busy(struct hspmd_shared_writer *w);
/* If it still writes this image: it owns it from now on. Returns whether it does. */
bool hspmd_shared_writer_leave(struct hspmd_shared_writer *w, const struct hspmd_image *image);
int hspmd_shared_writer_result(struct hspmd_shared_writer *w, double timeout_s, json_t **report, struct hspmd_error *err);

/* ---- a parsed shard header (shard_header.c) */
struct hspmd_shard_header {
	struct hspmd_extent *extents; /* in the order of their offsets */
	size_t count;
	uint64_t *blocks; /* checksums, extent after extent */
	size_t *first;    /* index in `blocks` of each extent's first block */
	uint64_t list;    /* the header's own checksum, if it was read from a file */
};
/* parse: text is the JSON of `bytes` bytes at offset 8 of a file of file_bytes. read: from an open file. `name` is for error messages. */
int hspmd_shard_header_parse(const char *text, size_t bytes, uint64_t file_bytes, const char *name, struct hspmd_shard_header *head,
                             struct hspmd_error *err);
int hspmd_shard_header_read(int fd, const char *name, struct hspmd_shard_header *head, struct hspmd_error *err);
void hspmd_shard_header_free(struct hspmd_shard_header *head);

/* ---- files (store.c) */

/* Create the checkpoint's folder in a location, durably. The caller frees the path. */
char *hspmd_checkpoint_make_folder(const char *location, int64_t step, int64_t generation, struct hspmd_error *err);
/* A file that appears complete or not at all, written piece by piece: temporary name, direct I/O if the file system supports it, fsync,
 * rename, fsync of the folder. Fastest for data aligned to HSPMD_IMAGE_ALIGN in multiples of it (except the last piece). */
struct hspmd_atomic_file {
	int fd;
	bool direct;
	uint64_t done, bytes; /* written, and in all */
	char *folder, *path, *temporary;
};
/* Errors name the file that was to be there; of a full disk or quota they also say how many bytes it needs, and what helps. */
int hspmd_atomic_file_open(struct hspmd_atomic_file *s, const char *folder, const char *file, uint64_t bytes, struct hspmd_error *err);
int hspmd_atomic_file_write(struct hspmd_atomic_file *s, const void *data, size_t bytes, struct hspmd_error *err);
/* good: commit the file; otherwise discard it. s is closed in either case. Returns 0 if the file is committed. */
int hspmd_atomic_file_close(struct hspmd_atomic_file *s, bool good, struct hspmd_error *err);
/* Write a whole file with one call. */
int hspmd_atomic_file_write_all(const char *folder, const char *file, const void *data, size_t bytes, struct hspmd_error *err);

/* Write a finished image durably into its checkpoint in this location. */
int hspmd_image_write(const struct hspmd_image *im, const char *location, int64_t step, int64_t generation, const char *file,
                      struct hspmd_error *err);

/* ---- copies on other nodes (copies.c) */

/* Send this worker's image to the workers that keep copies of it, and keep those of others; *kept: the shard objects of the copies
 * stored here (new reference), as they are reported for a root or with extents. Returns -1 and err if some copy could not be made; the
 * others are stored and listed in *kept nevertheless. */
int hspmd_copies_run(const struct hspmd_copy_routes *c, const char *node, int64_t step, int64_t generation, const char *file,
                     const struct hspmd_image *image, bool root, json_t **kept, struct hspmd_error *err);

#endif
