/* SPDX-License-Identifier: Apache-2.0 */
/* A site's and a user's limits, and what a node costs: which part of the cluster to search. Private to the solver.
 *
 * Nodes that are alike are told apart by number only: a subcluster is how many of each class are used. Where the limits leave few
 * subclusters, all that no other contains are searched; else the most promising ones, then those that differ from the best found by a few
 * nodes, until none is better. When cost counts, smaller subclusters are searched too: fewer nodes may be the better bargain.
 */
#ifndef HSPMD_SEARCH_SUBCLUSTERS_H
#define HSPMD_SEARCH_SUBCLUSTERS_H

#include "controller/solver/solver.h"

struct hspmd_subclusters;

/* Do the limits leave anything to choose? If not, the whole cluster is searched, once. */
bool hspmd_limits_are_set(const struct hspmd_solve_limits *limits);

/* cluster and request must outlive the result. NULL and err: not even one node is allowed, and why. */
struct hspmd_subclusters *hspmd_subclusters_new(const struct hspmd_cluster *cluster, const struct hspmd_solve_request *request,
                                                struct hspmd_error *err);
void hspmd_subclusters_destroy(struct hspmd_subclusters *s);

/* The next part of the cluster to search, which the caller destroys: 1; 0: enough has been searched; -1 and err: memory. */
int hspmd_subclusters_next(struct hspmd_subclusters *s, struct hspmd_cluster **part, struct hspmd_error *err);
/* What came of it: the objective of the best plan, INFINITY when there is none. */
void hspmd_subclusters_report(struct hspmd_subclusters *s, double objective);

/* Make a plan over a part one over the whole cluster. */
int hspmd_plan_rebind(struct hspmd_plan *plan, const struct hspmd_cluster *part, const struct hspmd_cluster *cluster,
                      struct hspmd_error *err);

#endif
