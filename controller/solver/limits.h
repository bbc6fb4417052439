/* SPDX-License-Identifier: Apache-2.0 */
/* A site's and a user's limits, and what a node costs: which part of the cluster to search. Private to the solver.
 *
 * Nodes that are alike are told apart by number only: a stock is how many of each class are used. Where the limits leave few stocks, all that no other
 * contains are searched; else the most promising ones, then those that differ from the best found by a few nodes, until none is better. When cost
 * counts, smaller stocks are searched too: fewer nodes may be the better bargain.
 */
#ifndef HSPMD_CONTROLLER_SOLVER_LIMITS_H
#define HSPMD_CONTROLLER_SOLVER_LIMITS_H

#include "controller/solver/solver.h"

struct hspmd_stocks;

/* Do the limits leave anything to choose? If not, the whole cluster is searched, once. */
bool hspmd_limits_bind(const struct hspmd_solve_limits *limits);

/* cluster and request must outlive the result. NULL and err: not even one node is allowed, and why. */
struct hspmd_stocks *hspmd_stocks_new(const struct hspmd_cluster *cluster, const struct hspmd_solve_request *request, struct hspmd_error *err);
void hspmd_stocks_destroy(struct hspmd_stocks *s);

/* The next part of the cluster to search, which the caller destroys: 1; 0: enough has been searched; -1 and err: memory. */
int hspmd_stocks_next(struct hspmd_stocks *s, struct hspmd_cluster **part, struct hspmd_error *err);
/* What came of it: the objective of the best plan, INFINITY when there is none. */
void hspmd_stocks_tell(struct hspmd_stocks *s, double objective);

/* Make a plan over a part one over the whole cluster. */
int hspmd_limits_rebind(struct hspmd_plan *plan, const struct hspmd_cluster *part, const struct hspmd_cluster *cluster, struct hspmd_error *err);

#endif
