/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints under a path, each once: its folders on several nodes or in several places put together. */
#ifndef HSPMD_CLI_CHECKPOINT_INDEX_H
#define HSPMD_CLI_CHECKPOINT_INDEX_H

#include "runtime/state/checkpoint.h"

struct checkpoint_group {
	const struct hspmd_manifest *manifest; /* NULL: none of its folders has one that can be read */
	int64_t step, generation;
	int folder_count;
	const char **folders;        /* borrowed from the list */
	const char *error;           /* why a manifest could not be read, or NULL */
	struct hspmd_reader *reader; /* over all folders; NULL without a manifest */
	struct hspmd_error lacks;    /* "" when every part of every tensor is there */
};

struct checkpoint_index {
	struct hspmd_listed_checkpoint *found;
	int found_count, count;
	struct checkpoint_group *groups; /* oldest first */
};

int checkpoint_index_open(struct checkpoint_index *g, const char *path, struct hspmd_error *err);
void checkpoint_index_close(struct checkpoint_index *g);
/* The newest whole one; of this step when step >= 0. NULL and err. */
struct checkpoint_group *checkpoint_index_choose(struct checkpoint_index *g, int64_t step, const char *path, struct hspmd_error *err);

#endif
