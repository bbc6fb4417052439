/* SPDX-License-Identifier: Apache-2.0 */
/* How a checkpoint is spread over a generation's workers so that `replicas` nodes may be lost: what data-parallel pipelines hold twice anyway is written by both and sent
 * to nobody; only of the rest copies go to other nodes. A pure function of plan and cluster: everybody gets the same answer. */
#ifndef HSPMD_TRAIN_SPREAD_H
#define HSPMD_TRAIN_SPREAD_H

#include "common/format/cluster.h"
#include "runtime/train/layout.h"

/* As one worker sees it. */
struct hspmd_spread {
	bool *writes;             /* by parameter of the layouts: its share of the state goes into this worker's shard */
	int *to, *from;           /* transport ranks: who keeps this worker's shard, and whose shards it keeps */
	int to_count, from_count;
	uint64_t kept_elements;   /* that this worker keeps for others */
	bool any;                 /* somebody's shard goes to somebody */
};

/* rank_of: transport rank by device, -1; every device of the plan has one. self: a rank. Free with hspmd_spread_free. */
int hspmd_spread_plan(const struct hspmd_layouts *layouts, const struct hspmd_cluster *cluster, const int *rank_of, int self, int replicas,
		      struct hspmd_spread *out, struct hspmd_error *err);
void hspmd_spread_free(struct hspmd_spread *s);

#endif
