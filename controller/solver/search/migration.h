/* SPDX-License-Identifier: Apache-2.0 */
/* Migration: the bytes of training state that devices must receive to go from the current plan to another one. Private to the solver. */
#ifndef HSPMD_SEARCH_MIGRATION_H
#define HSPMD_SEARCH_MIGRATION_H

#include "controller/solver/cost/costs.h"
#include "controller/solver/search/device_classes.h"
#include "controller/solver/search/request.h"

struct hspmd_migration;

/* Prepare for plans that replace `current`, a plan over the cluster `of`; its devices are matched by address. costs and device classes
 * must outlive the result. Returns NULL with err if memory runs out or the plan has another number of layers. */
struct hspmd_migration *hspmd_migration_new(const struct hspmd_costs *costs, const struct hspmd_device_classes *device_classes,
                                            const struct hspmd_plan *current, const struct hspmd_cluster *of, struct hspmd_error *err);
void hspmd_migration_destroy(struct hspmd_migration *n);

/* The current plan over the cluster of the costs, borrowed; a device that no longer exists is -1. */
const struct hspmd_plan *hspmd_migration_current(const struct hspmd_migration *n);

/* The current plan, or one made from it, on those of its devices that exist and may be used: pipelines that lack a device are left out, and
 * the batch's micro-batches are distributed over the others in proportion. Returns NULL if no pipeline is left, the batch cannot be
 * distributed, or memory runs out. The caller destroys the result. */
struct hspmd_plan *hspmd_migration_whole(const struct hspmd_migration *n, const struct hspmd_plan *plan,
                                         const struct hspmd_solve_request *request, const struct hspmd_runtime_caps *caps);

/* Bytes of weights and optimizer state that devices have under `plan` but not now, summed over all devices. Returns NAN if memory runs
 * out. */
double hspmd_migration_bytes(const struct hspmd_migration *n, const struct hspmd_plan *plan);

/* The same, node by node: what the devices of node `planned` have under a plan, if it were instead on the equal node `node`, where its
 * device i is device i. Create with the plan; NULL if memory runs out. The migration must outlive it; the plan need not. */
struct hspmd_migration_needs;
struct hspmd_migration_needs *hspmd_migration_needs_new(const struct hspmd_migration *n, const struct hspmd_plan *plan);
void hspmd_migration_needs_destroy(struct hspmd_migration_needs *w);
double hspmd_migration_node_bytes(const struct hspmd_migration_needs *w, int planned, int node);

/* Exchange devices within a device class, and equal nodes, so that the fewest bytes move: each stage goes where most of its state is. The
 * plan is otherwise unchanged. Returns 0, or -1 if memory runs out. */
int hspmd_migration_assign(const struct hspmd_migration *n, struct hspmd_plan *plan);

#endif
