/* SPDX-License-Identifier: Apache-2.0 */
/* The graph of a plan whose only stage is divided by search (runtime/synthesis). */
#ifndef HSPMD_PROGRAM_STAGE_PROGRAM_H
#define HSPMD_PROGRAM_STAGE_PROGRAM_H

#include "runtime/program/program.h"
#include "runtime/synthesis/synthesis.h"

/* Builds the graph and annotates it with the fastest program. All devices of the plan find the same one: it depends on nothing but the
 * arguments. *how: as the stage's graph is built; the number of parts of the vocabulary is set to what the program needs. result (may be
 * NULL): what was predicted. The caller destroys the graph. NULL and err: memory, or there is no such program. */
struct hspmd_graph *hspmd_program_synthesise(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                             const struct hspmd_cluster *cluster, struct hspmd_model_build_options *how,
                                             struct hspmd_synthesis_result *result, struct hspmd_error *err);

#endif
