/* SPDX-License-Identifier: Apache-2.0 */
/* How far plans are from the one that runs now: the bytes of training state that devices would have to get. Private to the solver. */
#ifndef HSPMD_CONTROLLER_SOLVER_NEAR_H
#define HSPMD_CONTROLLER_SOLVER_NEAR_H

#include "controller/solver/costs.h"
#include "controller/solver/kinds.h"
#include "controller/solver/solver.h"

struct hspmd_near;

/* `current` over the cluster `of`; its devices are found again by their addresses. costs and kinds must outlive the result. NULL and err: memory, or a plan for
 * another number of layers. */
struct hspmd_near *hspmd_near_new(const struct hspmd_costs *costs, const struct hspmd_kinds *kinds, const struct hspmd_plan *current,
				  const struct hspmd_cluster *of, struct hspmd_error *err);
void hspmd_near_destroy(struct hspmd_near *n);

/* The present plan on those of its devices that are there and may be used: pipelines that lost a device are left out and their micro-batches dealt to the
 * others in proportion. NULL when nothing is left or the batch cannot be dealt so (or memory is short). The caller destroys it. */
struct hspmd_plan *hspmd_near_start(const struct hspmd_near *n, const struct hspmd_solve_request *request, const struct hspmd_execution *exec);

/* Bytes of weights and optimizer state that a device has under `plan` and has not now, over all devices. NAN when memory is short. */
double hspmd_near_bytes(const struct hspmd_near *n, const struct hspmd_plan *plan);

/* Exchange devices of a kind, and nodes that are alike, so that the fewest bytes move: what a stage needs goes where most of it lies. The plan is otherwise as it
 * was. 0 or -1 (memory). */
int hspmd_near_settle(const struct hspmd_near *n, struct hspmd_plan *plan);

#endif
