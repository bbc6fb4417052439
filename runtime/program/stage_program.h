/* SPDX-License-Identifier: Apache-2.0 */
/* The graph of a plan whose only stage is divided by search (runtime/synthesis). */
#ifndef HSPMD_PROGRAM_STAGE_PROGRAM_H
#define HSPMD_PROGRAM_STAGE_PROGRAM_H

#include "common/format/program_search.h"
#include "runtime/program/program.h"
#include "runtime/synthesis/synthesis.h"

/* Builds the graph and annotates it with the program of the plan, or if the plan has none, with the fastest, which all devices of the plan
 * find alike: it depends on nothing but the arguments. *how: as the stage's graph is built; the number of parts of the vocabulary is set to
 * what the program needs. The caller destroys the graph. NULL and err: memory, the plan's program is none of this model, or there is none. */
struct hspmd_graph *hspmd_program_synthesise(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                             const struct hspmd_cluster *cluster, struct hspmd_model_build_options *how,
                                             struct hspmd_error *err);

#endif
