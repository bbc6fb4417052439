/* SPDX-License-Identifier: Apache-2.0 */
/* The current plan, repaired after a loss: found in a small part of a search's time, so that training can go on at once.
 *
 * A repaired plan is refused, and a search has to be waited for, if
 * - nothing of the current plan can go on: every pipeline lacks a device and cannot be repaired (repair.c), or nothing fits into memory
 * - its step takes longer than HSPMD_REPAIRED_MOST times that of the current plan at the speed that is left: the current plan's predicted
 *   step, times the speed of its devices before, over the speed of those that are left. A device's speed is its sustained operations per
 *   second in the plan's precision over its node's slowdown
 * - it computes in another precision than the current plan, exceeds the request's limits, or uses fewer nodes than the caller wants where
 *   the cluster has as many
 * - the current plan has plans for shorter steps, steps that mix lengths, or a program that was searched for: these cannot be repaired
 * Whether it is refused follows from the input alone; no clock is read. */
#ifndef HSPMD_SEARCH_REPAIR_PLAN_H
#define HSPMD_SEARCH_REPAIR_PLAN_H

#include "common/error.h"
#include "common/format/cluster.h"
#include "common/format/model_facts.h"
#include "common/format/plan.h"
#include "controller/solver/search/request.h"

/* One that is slower than this is sure to be replaced, so that the job would pause twice. */
#define HSPMD_REPAIRED_MOST 1.2

/* Repairs request->current for the cluster. behind: by what factor the current plan is slower than the last one that was searched for, if
 * it was repaired itself; else 1. *slower: the same of the result. nodes: on so many at least. The caller destroys the result. NULL and
 * err: it is refused. */
struct hspmd_plan *hspmd_repair_plan(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                                     const struct hspmd_solve_request *request, double behind, int nodes, double *slower,
                                     struct hspmd_error *err);

#endif
