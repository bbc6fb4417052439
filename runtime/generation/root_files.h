/* SPDX-License-Identifier: Apache-2.0 */
/* Where the state lies in the files of a root (runtime/state/manifest.h): which file is which device's, and by the layouts of the plan
 * under which it was written, which part of each parameter. */
#ifndef HSPMD_GENERATION_ROOT_FILES_H
#define HSPMD_GENERATION_ROOT_FILES_H

#include "runtime/generation/old_plan.h"
#include "runtime/state/manifest.h"

struct hspmd_root_files {
	const struct hspmd_manifest *root;  /* borrowed */
	const struct hspmd_old_plan *under; /* borrowed: the plan of its job */
	int *bit_of;                        /* by parameter: its number in the root's sets; -1: the root has none of it */
	int *shard_of;                      /* by device of that plan's cluster: its shard; -1: it has none */
	int *device;                        /* space for the local shards of a parameter */
	struct hspmd_local_shard *local;
};

/* A root may be of a job whose experts had no amax histories. If it may as well lack its last parameters, bit_of is a guess, which files
 * confirm or not (load_state.c). 0; or -1 and err: memory, or the root is of another model, or has no part of a parameter. Clear it in
 * either case. */
int hspmd_root_files_find(const struct hspmd_manifest *root, const struct hspmd_old_plan *under, struct hspmd_root_files *f,
                          struct hspmd_error *err);
void hspmd_root_files_clear(struct hspmd_root_files *f);

/* Whether the device's file contains its part of the parameter. */
bool hspmd_root_files_has(const struct hspmd_root_files *f, int device, int parameter);

/* Checks that the shards that are `there` (by number) contain all of the state of every parameter that the root has. 0; or -1 and err,
 * which names the first missing part. */
int hspmd_root_files_covered(const struct hspmd_root_files *f, const bool *there, struct hspmd_error *err);

/* A struct hspmd_root_check (its context is this) for the roots of one run. It remembers the layouts of the last root's plan: making them
 * takes most of the time. */
struct hspmd_root_checker {
	const struct hspmd_graph_source *source; /* borrowed */
	json_t *cluster, *plan;                  /* of the last root; NULL: none */
	struct hspmd_old_plan under;
};
int hspmd_root_checker_covered(void *checker, const struct hspmd_manifest *root, const bool *there, struct hspmd_error *err);
void hspmd_root_checker_clear(struct hspmd_root_checker *c);

#endif
