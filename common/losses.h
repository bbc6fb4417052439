/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes of a job go at once, so that what must not be lost is never on them alone:
 *   - any `copies` nodes (they fail, each on its own);
 *   - what a shrink by count takes: Slurm keeps the batch host and then the lowest in its own order of nodes, which is the order of the
 * cluster (controller/core/nodes.c), and takes the highest without a word. Of the nodes that hold state `keep` are left at least. What
 * survives that survives every smaller shrink, too: the lowest node that holds a thing is what counts, so something on the first `keep`
 * nodes outlives them all;
 *   - all nodes of one rack or switch;
 *   - all nodes of one member job, which a shrink of the first job leaves alone.
 * A loss after which no node is left that takes part is not thought of. Pure; used by all who lay state on nodes: the solver
 * (controller/solver/search/holders.h), the spreading of checkpoints (runtime/generation/checkpoint_placement.h) and the job controller. */
#ifndef HSPMD_COMMON_LOSSES_H
#define HSPMD_COMMON_LOSSES_H

#include <stdbool.h>

#include "common/error.h"
#include "common/format/cluster.h"

#define HSPMD_LOSSES_ABSENT (-2) /* place of a node that takes no part */
#define HSPMD_LOSSES_MEMBER (-1) /* place of a member job's: no shrink by count takes it */

struct hspmd_losses {
	int nodes, present; /* of the cluster; those of them that take part */
	int copies, keep;
	int *place;         /* by node: among the first job's nodes that take part, in Slurm's order, or one of the above */
	int *rack, *member; /* by node: the number of its rack and of its member job; -1: it goes with nobody */
	int racks, members; /* how many of which not all that take part are */
};

/* How many of the first job's nodes that take part are left when Slurm has left the job `least` nodes, members included, or its
 * first node alone. 0: where all of them may go, the members' must do. part: by node; NULL: all take part. */
int hspmd_losses_keep(const struct hspmd_cluster *c, const bool *part, int least);

/* keep: hspmd_losses_keep; INT_MAX: nothing is shrunk by count. copies < 1: nothing is promised, and nothing lacks. 0 or -1 and err
 * (memory). Free with hspmd_losses_free. */
int hspmd_losses_make(const struct hspmd_cluster *c, const bool *part, int copies, int keep, struct hspmd_losses *l,
                      struct hspmd_error *err);
void hspmd_losses_free(struct hspmd_losses *l);

/* What lacks where exactly these nodes (different ones, that take part) hold a thing: 0, nothing; HSPMD_LOSSES_ONE for each node too few
 * and for each kind of loss that takes them all; and less than that for how far the lowest is from the nodes that are kept. One node more
 * never makes it greater, and while it is HSPMD_LOSSES_ONE or more there is a node that makes it less. */
#define HSPMD_LOSSES_ONE (1L << 20)
long hspmd_losses_lack(const struct hspmd_losses *l, const int *nodes, int count);

/* Losses other than that of any `copies` nodes, each of which may come: 0 is the greatest shrink by count. Does number i take this node? */
int hspmd_losses_count(const struct hspmd_losses *l);
bool hspmd_losses_takes(const struct hspmd_losses *l, int i, int node);

#endif
