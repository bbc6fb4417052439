/* SPDX-License-Identifier: Apache-2.0 */
/* How a checkpoint, on disk or in memory, is spread over a generation's workers so that no loss that common/losses.h tells of takes all of
 * anything. What data-parallel pipelines hold on nodes that do not go together is written by both and sent to nobody; only of the rest
 * copies go to other nodes, as few as it takes.
 *
 * What is promised where each node has room for what it keeps: any `replicas` nodes may go; any number of the highest in Slurm's order as
 * long as `keep` of those that take part stay; all nodes of a rack; all of a member job. Where a node has no room for a copy, that copy is
 * left out (runtime/worker/worker_checkpoint.c) and the others stand. What it costs: nothing in a step. At every checkpoint each shard that
 * needs it is sent, at least `replicas` times where no other pipeline writes it; what the first `keep` nodes do not hold goes to them, so
 * that with `keep` 1 the first takes in, and keeps, the state less its own share (12 bytes a parameter), and with more each a part of that.
 * How often copies in memory are made follows from what they cost (controller/core/checkpoint_schedule.c).
 *
 * A pure function of plan and cluster: everybody gets the same answer. */
#ifndef HSPMD_GENERATION_CHECKPOINT_PLACEMENT_H
#define HSPMD_GENERATION_CHECKPOINT_PLACEMENT_H

#include "common/losses.h"
#include "runtime/program/parameter_layout.h"

/* As one worker sees it. */
struct hspmd_checkpoint_placement {
	bool *writes;   /* by parameter of the layouts: its share of the state goes into this worker's shard */
	int *to, *from; /* transport ranks: who keeps this worker's shard, and whose shards it keeps */
	int to_count, from_count;
	uint64_t *from_elements; /* that each of these comes to */
	bool any;                /* somebody's shard goes to somebody */
};

/* rank_of: transport rank by device, -1; every device of the plan has one. self: a rank. replicas 0: no copies. keep: hspmd_losses_keep.
 * Free with hspmd_checkpoint_placement_free. */
int hspmd_checkpoint_placement_plan(const struct hspmd_parameter_layouts *layouts, const struct hspmd_cluster *cluster, const int *rank_of,
                                    int self, int replicas, int keep, struct hspmd_checkpoint_placement *out, struct hspmd_error *err);
void hspmd_checkpoint_placement_free(struct hspmd_checkpoint_placement *s);

#endif
