/* SPDX-License-Identifier: Apache-2.0 */
/* Subclusters: which parts of the cluster to search, given the limits of site and user and the prices of nodes. Private to the solver.
 *
 * Equal nodes differ by number only: a subcluster is the number of nodes used of each class. If the limits leave few subclusters, all
 * that are not contained in another one are searched; otherwise the most promising ones, then those that differ from the best one found
 * by a few nodes, until none is better. If cost counts, smaller subclusters are searched too, since fewer nodes may have the better
 * objective. */
#ifndef HSPMD_SEARCH_SUBCLUSTERS_H
#define HSPMD_SEARCH_SUBCLUSTERS_H

#include "common/error.h"
#include "controller/solver/search/request.h"

struct hspmd_subclusters;

/* Returns true if there are limits on nodes, devices or price. */
bool hspmd_limits_are_set(const struct hspmd_solve_limits *limits);
/* Returns true if they leave a choice of the cluster's nodes. If not, the whole cluster is searched, once. */
bool hspmd_limits_bind(const struct hspmd_solve_limits *limits, const struct hspmd_cluster *cluster);

/* cluster and request must outlive the result. Returns NULL with err, which says why, if not even one node is allowed, or if memory runs
 * out. */
struct hspmd_subclusters *hspmd_subclusters_new(const struct hspmd_cluster *cluster, const struct hspmd_solve_request *request,
                                                struct hspmd_error *err);
void hspmd_subclusters_destroy(struct hspmd_subclusters *s);

/* Get the next part of the cluster to search, which the caller destroys. Returns 1; 0 if enough has been searched; -1 with err if memory
 * runs out. */
int hspmd_subclusters_next(struct hspmd_subclusters *s, struct hspmd_cluster **part, struct hspmd_error *err);
/* Report the result of searching the part: the objective of the best plan, INFINITY if there is none. */
void hspmd_subclusters_report(struct hspmd_subclusters *s, double objective);

/* Rewrite the device indexes of a plan over a part of the cluster to indexes of the whole cluster. Returns 0, or -1 with err. */
int hspmd_plan_rebind(struct hspmd_plan *plan, const struct hspmd_cluster *part, const struct hspmd_cluster *cluster,
                      struct hspmd_error *err);

#endif
