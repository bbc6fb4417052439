/* SPDX-License-Identifier: Apache-2.0 */
/* Assigns the parts of a checkpoint, on disk or in memory, to a generation's workers so that no loss of nodes that common/losses.h lists
 * destroys all copies of anything. State that data-parallel pipelines hold on nodes that are not lost together is written by both and
 * not sent at all; only for the rest copies go to other nodes, as few as necessary.
 *
 * Guarantees, as long as each node has space for the copies that it keeps. The state survives the loss of: any `replicas` nodes; any
 * number of the highest nodes in Slurm's order, as long as `keep` of the participating ones remain; all nodes of a rack; all nodes of a
 * member job. If a node has no space for a copy, that copy is left out (runtime/worker/worker_checkpoint.c) and the others are
 * unaffected.
 *
 * Costs: nothing in a step. At every checkpoint each shard that needs copies is sent at least `replicas` times if no other pipeline
 * writes it. State that the first `keep` nodes do not hold is sent to them: with `keep` 1 the first node receives and keeps the whole
 * state except its own part (12 bytes per parameter), with larger `keep` each of them a part of that. How often copies in memory are
 * made depends on their cost (controller/core/checkpoint_schedule.c).
 *
 * A pure function of plan and cluster: all workers get the same answer. */
#ifndef HSPMD_GENERATION_CHECKPOINT_PLACEMENT_H
#define HSPMD_GENERATION_CHECKPOINT_PLACEMENT_H

#include "common/losses.h"
#include "runtime/program/parameter_layout.h"

/* The placement as one worker sees it. */
struct hspmd_checkpoint_placement {
	bool *writes;   /* by parameter of the layouts: this worker's shard contains the worker's part of the parameter's state */
	int *to, *from; /* transport ranks: `to` keep this worker's shard; this worker keeps the shards of `from` */
	int to_count, from_count;
	uint64_t *from_elements; /* elements in the shard of each of `from` */
	bool any;                /* at least one worker sends its shard to another */
};

/* rank_of: transport rank by device; all devices of the plan have one, others have -1. self: own rank. replicas 0: no copies. keep:
 * hspmd_losses_keep. Free with hspmd_checkpoint_placement_free. */
int hspmd_checkpoint_placement_plan(const struct hspmd_parameter_layouts *layouts, const struct hspmd_cluster *cluster, const int *rank_of,
                                    int self, int replicas, int keep, struct hspmd_checkpoint_placement *out, struct hspmd_error *err);
void hspmd_checkpoint_placement_free(struct hspmd_checkpoint_placement *s);

#endif
