/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoints under a path, each listed once: the folders of one checkpoint on several nodes or in several locations are combined. */
#ifndef HSPMD_STATE_CHECKPOINT_INDEX_H
#define HSPMD_STATE_CHECKPOINT_INDEX_H

#include "runtime/state/checkpoint.h"

struct hspmd_checkpoint_group {
	const struct hspmd_manifest *manifest; /* NULL: no folder has a readable manifest */
	int64_t step, generation;
	int folder_count;
	const char **folders;        /* borrowed from the list */
	const char *error;           /* why a manifest could not be read, or NULL */
	struct hspmd_reader *reader; /* over all folders; NULL without a manifest */
	struct hspmd_error lacks;    /* "" if every part of every tensor is available */
};

struct hspmd_checkpoint_index {
	struct hspmd_listed_checkpoint *found;
	int found_count, count;
	struct hspmd_checkpoint_group *groups; /* oldest first */
};

int hspmd_checkpoint_index_open(struct hspmd_checkpoint_index *g, const char *path, struct hspmd_error *err);
void hspmd_checkpoint_index_close(struct hspmd_checkpoint_index *g);
/* The newest complete checkpoint; if step >= 0, the one of that step. NULL and err. */
struct hspmd_checkpoint_group *hspmd_checkpoint_index_choose(struct hspmd_checkpoint_index *g, int64_t step, const char *path,
                                                             struct hspmd_error *err);
/* Returns -1 with err, which says that the folder has no checkpoint (step >= 0: none of that step). */
int hspmd_checkpoint_index_none(const char *path, int64_t step, struct hspmd_error *err);

#endif
