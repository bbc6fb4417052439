/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSPMD_SEARCH_PROGRAM_PLANS_H
#define HSPMD_SEARCH_PROGRAM_PLANS_H

#include "common/format/model_facts.h"
#include "controller/solver/search/request.h"

/* The fastest plan of one stage on the devices of `best`, with its program, by request->programs; or the current plan, if that is one and
 * is about as fast. The caller destroys it. NULL: none was found in time, none fits, or none is so much faster than `best` that it is worth
 * what it costs: such a plan has one copy of the state. *found_s: seconds of a step of the fastest that fits; unchanged if none was tried,
 * 0 if none fits, INFINITY if only bounds are known, which say that none is fast enough. */
struct hspmd_plan *hspmd_search_program_plan(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                                             const struct hspmd_solve_request *request, const struct hspmd_plan *best, double *found_s);

#endif
