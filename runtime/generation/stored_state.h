/* SPDX-License-Identifier: Apache-2.0 */
/* Which members can read which parts of a checkpoint: from what the controller's `start` message says of its files (common/wire.h) and
 * from its manifest (runtime/state/manifest.h). */
#ifndef HSPMD_GENERATION_STORED_STATE_H
#define HSPMD_GENERATION_STORED_STATE_H

#include "runtime/generation/generation.h"
#include "runtime/generation/root_files.h"
#include "runtime/generation/state_moves.h"
#include "runtime/state/checkpoint.h"

struct hspmd_stored_state {
	const struct hspmd_generation *g;      /* borrowed */
	const struct hspmd_manifest *manifest; /* borrowed */
	bool *absent;                          /* by parameter: an amax history that the checkpoint does not have */
	/* Of a manifest that lists extents: each of them, of each member that can read it. */
	struct hspmd_holding *part;
	size_t count, capacity;
	/* Of a root. */
	struct hspmd_file_side files;
	struct hspmd_old_plan under; /* the plan under which it was written */
	struct hspmd_root_files root;
	int *first_reader, *readers;
	bool *everybody;
};

/* files: of `start`. 0; or -1 and err: memory, or a checkpoint of another model. Clear it in either case. */
int hspmd_stored_state_read(const struct hspmd_generation *g, const struct hspmd_manifest *m, json_t *files, struct hspmd_stored_state *s,
                            struct hspmd_error *err);
void hspmd_stored_state_clear(struct hspmd_stored_state *s);

/* What to plan with (state_moves.h); NULL: all is in `part`. */
const struct hspmd_file_side *hspmd_stored_state_files(const struct hspmd_stored_state *s);
/* Sets shards[i] for each shard with a part of this box of a state tensor; of a root, only for those that this member was said to be able
 * to read. */
void hspmd_stored_state_find(const struct hspmd_stored_state *s, int tensor, const struct hspmd_box *box, bool *shards);
/* Checks that an extent is a part of the model's state. Returns the parameter's number, or -1 and err. */
int hspmd_stored_state_check(const struct hspmd_generation *g, const struct hspmd_extent *e, struct hspmd_error *err);

#endif
