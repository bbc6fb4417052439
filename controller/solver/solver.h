/* SPDX-License-Identifier: Apache-2.0 */
/* The solver: from a cluster, a model or profile (or both) and a request to the fastest plan and its predicted step time. It has no I/O and
 * no global state. The same input gives the same plan to the bit, unless a time limit ends the search early.
 *
 * The cost model and the search follow and combine: Megatron-LM (arXiv 2104.04473; 1F1B, tensor parallelism; 2205.05198: selective
 * recomputation), PipeDream-flush, Alpa (OSDI'22; stages by dynamic programming), AMP (NeurIPS'22), HAP (arXiv 2401.05965; shard ratios by
 * linear programming), HSPMD / Hetu v2 (2504.20490; pipelines that differ in everything), H2 (2505.17548; search in two stages), AutoHet
 * (2512.20953; layer-wise gradient synchronisation across unequal pipelines) and Sailor (SOSP'25). The comment at the top of each file
 * names what it takes from which.
 *
 * Times are in seconds, memory in bytes. Devices are indexes into the cluster's devices. All functions block while they compute.
 *
 * - search/request.h: what is requested; search/search_plan.h: the search alone; search/length_plans.h: plans for shorter steps;
 *   search/mixed_plans.h: plans for steps that mix lengths; search/repair_plan.h: the current plan after a loss, without a search
 * - sim/predict.h: step time, busy time and memory of a given plan; sim/solve_report.h: warnings and shortages
 * - report/explain.h: a plan in words and as a timeline
 */
#ifndef HSPMD_CONTROLLER_SOLVER_SOLVER_H
#define HSPMD_CONTROLLER_SOLVER_SOLVER_H

#include "controller/solver/report/explain.h"
#include "controller/solver/report/explain_lengths.h"
#include "controller/solver/report/explain_mixed.h"
#include "controller/solver/search/length_plans.h"
#include "controller/solver/search/mixed_plans.h"
#include "controller/solver/search/repair_plan.h"
#include "controller/solver/search/request.h"
#include "controller/solver/search/search_plan.h"
#include "controller/solver/sim/predict.h"
#include "controller/solver/sim/solve_report.h"

/* Find the fastest plan, as hspmd_search_plan does. If no plan fits in memory, the error says what is short, where, by how much, and the
 * smallest change that would be enough; finding that out takes a few seconds more. */
struct hspmd_plan *hspmd_solve(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                               const struct hspmd_profile *profile, const struct hspmd_solve_request *request,
                               struct hspmd_solve_report *report, struct hspmd_error *err);

#endif
