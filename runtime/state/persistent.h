/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's memory that outlives its process: a mapped file on the node's tmpfs. Training works in it directly, so nothing is copied
 * while training; after kill -9 the device's next process maps the file again and continues as if the first had survived.
 *
 * A step changes the state in place, and the kill may come in the middle of the change. A record at the beginning of the file holds the
 * step's progress in one word, and the update proceeds block by block: a block's parameters and moments are copied to the undo log
 * (which stays in the cache: the copy costs little more than the reading that the update needs anyway), this is recorded, the block is
 * changed, this is recorded. A process that maps the file in the middle of an update restores the block that was being changed and
 * repeats it and all following ones, from gradients that are in the file too: with the same bits. A killed process has executed its
 * instructions up to one point and none after it, so the order of the stores, which C's atomics guarantee, is sufficient as long as the
 * machine itself stays up. (If the machine goes down, the file is lost: copies on other nodes and disks cover that.)
 *
 * The record belongs to one thread. The file is locked as long as its process lives. */
#ifndef HSPMD_STATE_PERSISTENT_H
#define HSPMD_STATE_PERSISTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

#define HSPMD_PERSISTENT_BLOCK ((size_t)256 << 10) /* bytes per tensor that are changed at a time */
#define HSPMD_PERSISTENT_PARTS 3                   /* tensors that are changed together */
#define HSPMD_PERSISTENT_TOTALS 4
#define HSPMD_PERSISTENT_RECENT 64 /* number of latest steps whose totals are kept */

struct hspmd_persistent;

struct hspmd_persistent_spec {
	const char *folder, *name; /* the folder, and the device that it belongs to: "n0-1" */
	int64_t generation;
	uint64_t layout;  /* hash of the data's layout, chosen by the caller */
	size_t bytes;     /* size of the data */
	const char *text; /* describes the data to the next process */
};

/* Create the file and reserve its memory. NULL and err: there is not enough space, or the folder cannot be used. */
struct hspmd_persistent *hspmd_persistent_create(const struct hspmd_persistent_spec *spec, struct hspmd_error *err);
/* Open the newest complete file of `name`. Its process may still be ending: waits for it at most wait_s. NULL and err: there is none. */
struct hspmd_persistent *hspmd_persistent_open(const char *folder, const char *name, double wait_s, struct hspmd_error *err);
/* keep: the file stays for the next process; otherwise it is removed at once, and its memory is freed, mostly by a thread that outlives
 * this call. NULL is fine. */
void hspmd_persistent_close(struct hspmd_persistent *l, bool keep);
/* Size of the record, the text and the undo log. */
size_t hspmd_persistent_overhead(const char *text);

void *hspmd_persistent_data(const struct hspmd_persistent *l); /* page-aligned; zero when new */
const char *hspmd_persistent_text(const struct hspmd_persistent *l);
uint64_t hspmd_persistent_layout(const struct hspmd_persistent *l);
size_t hspmd_persistent_bytes(const struct hspmd_persistent *l);

/* ---- the step's progress */

/* From now on the data are the state from which `step` is run next. Removes all other files of this name. */
void hspmd_persistent_begin(struct hspmd_persistent *l, int64_t step);
int64_t hspmd_persistent_step(const struct hspmd_persistent *l);  /* next to be run */
bool hspmd_persistent_is_ready(const struct hspmd_persistent *l); /* the step's gradients are complete */
bool hspmd_persistent_is_torn(const struct hspmd_persistent *l);  /* the step's update has begun and not ended */
/* Record whether the step's gradients are complete. */
void hspmd_persistent_ready(struct hspmd_persistent *l, bool ready);

/* Totals of one of the latest steps whose update has begun since hspmd_persistent_begin; false: not known. */
bool hspmd_persistent_totals(const struct hspmd_persistent *l, int64_t step, double totals[HSPMD_PERSISTENT_TOTALS]);

/* The update of a step: update, every block in order, updated. If an update was torn, the same calls complete it: blocks that are done
 * are skipped. */
void hspmd_persistent_update(struct hspmd_persistent *l, const double totals[HSPMD_PERSISTENT_TOTALS]);
/* True: the parts (up to HSPMD_PERSISTENT_BLOCK bytes each; NULL: none) have their values from before the step, and must be changed now.
 * False: block number `block` is done. */
bool hspmd_persistent_block(struct hspmd_persistent *l, uint64_t block, void *const parts[HSPMD_PERSISTENT_PARTS], size_t bytes);
void hspmd_persistent_block_done(struct hspmd_persistent *l, uint64_t block);
void hspmd_persistent_updated(struct hspmd_persistent *l);

#endif
