/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's memory that outlives its process: a file on the node's tmpfs, mapped. What trains is in it, so nothing is copied while
 * training; after kill -9 the next process of that device maps it again and goes on as if it had survived.
 *
 * A step changes the state in place, and the kill may come in the middle of that. The record at the file's beginning says in one word how
 * far the step is, and the change goes block by block: a block's parameters and moments are copied to the undo log (which stays in the
 * cache: the copy costs little more than the reading that the change needs anyway), that is noted, the block is changed, that is noted.
 * Whoever maps the file in the middle of an update puts the block back that was being changed and does it and all that follow again, from
 * gradients that are in the file too: the same numbers to the bit. A process that is killed has executed its instructions up to one point
 * and none beyond, so the order of the stores, which C's atomics keep, is all that it takes; the machine itself stays up. (After it went
 * down the file is gone: copies on other nodes and disks are for that.)
 *
 * The record belongs to one thread. The file is locked as long as its process lives. */
#ifndef HSPMD_STATE_PERSISTENT_H
#define HSPMD_STATE_PERSISTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

#define HSPMD_PERSISTENT_BLOCK ((size_t)256 << 10) /* bytes of one tensor that are changed at a time */
#define HSPMD_PERSISTENT_PARTS 3                   /* tensors that are changed together */
#define HSPMD_PERSISTENT_TOTALS 4
#define HSPMD_PERSISTENT_RECENT 64 /* steps whose sums are kept */

struct hspmd_persistent;

struct hspmd_persistent_spec {
	const char *folder, *name; /* where, and of whom: "n0-1" */
	int64_t generation;
	uint64_t layout;  /* of the data, whatever the caller hashes */
	size_t bytes;     /* of data */
	const char *text; /* from which the next process knows what it has before it */
};

/* Make the file and reserve its memory. NULL and err: there is no room, or the folder cannot be used. */
struct hspmd_persistent *hspmd_persistent_create(const struct hspmd_persistent_spec *spec, struct hspmd_error *err);
/* The newest whole one of `name`; its process may still be about to end, for at most wait_s. NULL and err: there is none. */
struct hspmd_persistent *hspmd_persistent_open(const char *folder, const char *name, double wait_s, struct hspmd_error *err);
/* keep: the file stays for the next process; else it is gone at once, and its memory goes back, much of it in a thread that outlasts this
 * call. NULL is fine. */
void hspmd_persistent_close(struct hspmd_persistent *l, bool keep);
/* What the record, the text and the undo log take beside the data. */
size_t hspmd_persistent_overhead(const char *text);

void *hspmd_persistent_data(const struct hspmd_persistent *l); /* page-aligned; zero when new */
const char *hspmd_persistent_text(const struct hspmd_persistent *l);
uint64_t hspmd_persistent_layout(const struct hspmd_persistent *l);
size_t hspmd_persistent_bytes(const struct hspmd_persistent *l);

/* ---- how far the step is */

/* The data are the state from which `step` is run next. All other files of this name go. */
void hspmd_persistent_begin(struct hspmd_persistent *l, int64_t step);
int64_t hspmd_persistent_step(const struct hspmd_persistent *l);  /* next to be run */
bool hspmd_persistent_is_ready(const struct hspmd_persistent *l); /* its gradients are complete */
bool hspmd_persistent_is_torn(const struct hspmd_persistent *l);  /* its update has begun */
/* Its gradients are complete, or are so no more. */
void hspmd_persistent_ready(struct hspmd_persistent *l, bool ready);

/* Sums of a step whose update has begun since hspmd_persistent_begin, out of the last ones; false: not known. */
bool hspmd_persistent_totals(const struct hspmd_persistent *l, int64_t step, double totals[HSPMD_PERSISTENT_TOTALS]);

/* The update of the step: begin, every block in its order, end. Where one was torn the same calls end it: blocks that are done are
 * skipped. */
void hspmd_persistent_update(struct hspmd_persistent *l, const double totals[HSPMD_PERSISTENT_TOTALS]);
/* True: the parts (up to HSPMD_PERSISTENT_BLOCK bytes each) are as they were before the step, and are to be changed now. False: block
 * number `block` is done. */
bool hspmd_persistent_block(struct hspmd_persistent *l, uint64_t block, void *const parts[HSPMD_PERSISTENT_PARTS], size_t bytes);
void hspmd_persistent_block_done(struct hspmd_persistent *l, uint64_t block);
void hspmd_persistent_updated(struct hspmd_persistent *l);

#endif
