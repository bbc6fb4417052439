/* SPDX-License-Identifier: Apache-2.0 */
/* How far plans are from the one that runs now: the bytes of training state that devices would have to get. Private to the solver. */
#ifndef HSPMD_SEARCH_MIGRATION_H
#define HSPMD_SEARCH_MIGRATION_H

#include "controller/solver/cost/costs.h"
#include "controller/solver/search/device_classes.h"
#include "controller/solver/solver.h"

struct hspmd_migration;

/* `current` over the cluster `of`; its devices are found again by their addresses. costs and device classes must outlive the result. NULL
 * and err: memory, or a plan for another number of layers. */
struct hspmd_migration *hspmd_migration_new(const struct hspmd_costs *costs, const struct hspmd_device_classes *device_classes,
                                            const struct hspmd_plan *current, const struct hspmd_cluster *of, struct hspmd_error *err);
void hspmd_migration_destroy(struct hspmd_migration *n);

/* The present plan on those of its devices that are there and may be used: pipelines that lost a device are left out and their
 * micro-batches dealt to the others in proportion. NULL when nothing is left or the batch cannot be dealt so (or memory is short). The
 * caller destroys it. */
struct hspmd_plan *hspmd_migration_start(const struct hspmd_migration *n, const struct hspmd_solve_request *request,
                                         const struct hspmd_runtime_caps *caps);

/* Bytes of weights and optimizer state that a device has under `plan` and has not now, over all devices. NAN when memory is short. */
double hspmd_migration_bytes(const struct hspmd_migration *n, const struct hspmd_plan *plan);

/* Exchange devices of a device class, and nodes that are alike, so that the fewest bytes move: what a stage needs goes where most of it
 * lies. The plan is otherwise as it was. 0 or -1 (memory). */
int hspmd_migration_assign(const struct hspmd_migration *n, struct hspmd_plan *plan);

#endif
