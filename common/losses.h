/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes of a job may be lost at once, so that no state is on those nodes alone:
 *   - any `copies` nodes (each fails on its own);
 *   - the nodes that a shrink by count takes: Slurm keeps the batch host and then the lowest nodes in its own order, which is the order
 *     of the cluster (controller/core/node_events.c), and takes the highest nodes without warning. At least `keep` nodes that hold state
 *     are left. State that survives this shrink survives every smaller one, because only the lowest node that holds it counts: state on
 *     the first `keep` nodes survives all of them;
 *   - all nodes of one rack or switch;
 *   - all nodes of one member job, which a shrink of the first job leaves alone.
 * A loss after which no node that takes part is left is not considered. Pure. Used by all code that places state on nodes: the solver
 * (controller/solver/search/holders.h), the placement of checkpoints (runtime/generation/checkpoint_placement.h) and the controller. */
#ifndef HSPMD_COMMON_LOSSES_H
#define HSPMD_COMMON_LOSSES_H

#include <stdbool.h>

#include "common/error.h"
#include "common/format/cluster.h"

#define HSPMD_LOSSES_ABSENT (-2) /* place of a node that does not take part */
#define HSPMD_LOSSES_MEMBER (-1) /* place of a member job's node: no shrink by count takes it */

struct hspmd_losses {
	int nodes, present; /* nodes of the cluster; nodes that take part */
	int copies, keep;
	int *place;         /* per node: its position among the first job's nodes that take part, in Slurm's order, or one of the above */
	int *rack, *member; /* per node: number of its rack and of its member job; -1: none */
	int racks, members; /* number of racks and member jobs that do not contain all nodes that take part */
};

/* Number of the first job's nodes that take part and are left after Slurm has left the job `least` nodes, members included, or its first
 * node alone. 0: all of the first job's nodes may go; the member jobs' nodes must then hold the state. part: per node; NULL: all. */
int hspmd_losses_keep(const struct hspmd_cluster *c, const bool *part, int least);

/* keep: hspmd_losses_keep; INT_MAX: no shrink by count. copies < 1: nothing is promised, and nothing lacks. 0, or -1 and err (out of
 * memory). Free with hspmd_losses_free. */
int hspmd_losses_make(const struct hspmd_cluster *c, const bool *part, int copies, int keep, struct hspmd_losses *l,
                      struct hspmd_error *err);
void hspmd_losses_free(struct hspmd_losses *l);

/* What is missing if exactly these nodes (all different, all taking part) hold a piece of state. 0: nothing. HSPMD_LOSSES_ONE for each
 * node too few, and for each kind of loss that takes all of the nodes; and less than that for the distance of the lowest node from the
 * nodes that are kept. Adding a node never increases the value. While it is at least HSPMD_LOSSES_ONE, some node decreases it. */
#define HSPMD_LOSSES_ONE (1L << 20)
long hspmd_losses_lack(const struct hspmd_losses *l, const int *nodes, int count);

/* Number of the losses other than the loss of any `copies` nodes; each may occur. Loss 0 is the greatest shrink by count.
 * hspmd_losses_takes: true if loss i takes this node. */
int hspmd_losses_count(const struct hspmd_losses *l);
bool hspmd_losses_takes(const struct hspmd_losses *l, int i, int node);

#endif
