/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of copies: four workers on three nodes (0 and 1 on n0, 2 on n1, 3 on n2) that write one checkpoint below scene_root and keep
 * each other's shards. */
#ifndef HSPMD_TESTS_STATE_CREW_H
#define HSPMD_TESTS_STATE_CREW_H

#include <stdatomic.h>

#include "tests/unit/state_folder.h"

enum { CREW = 4, CREW_NODES = 3 };
extern const int crew_node[CREW];

struct crew {
	atomic_int abort;
	struct hspmd_transport *t[CREW];
	struct hspmd_writer *w[CREW];
	struct hspmd_copy_routes copies[CREW];
	int to[CREW][CREW], from[CREW][CREW];
	struct hspmd_state_slice slices[CREW][SCENE_SLICES];
	size_t slice_count[CREW];
	json_t *report[CREW];
	char location[CREW][64], file[CREW][40], node[CREW][8];
	const char *locations[CREW][1];
	struct hspmd_device dev;
};

/* `set` of the workers' jobs; NULL, at first: they report extents, else for a root. */
extern const char *crew_set;

/* All workers write and copy; `spoil` (may be NULL) changes the transport of worker 2 first. Free with end_crew. */
struct crew *run_crew(int64_t step, int replicas, bool call_off, const struct hspmd_transport_ops *spoil);
void end_crew(struct crew *c);

/* The part of a worker's report about copies. */
json_t *crew_copies(const struct crew *c, int worker, const char *key);
/* The manifest of all shards, own and copied: a root if there is a set. Returns NULL with err if it is incomplete. */
struct hspmd_manifest *crew_manifest(const struct crew *c, int64_t step, struct hspmd_error *err);

#endif
