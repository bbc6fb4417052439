/* SPDX-License-Identifier: Apache-2.0 */
/* The graph of a plan whose only stage is divided by search (runtime/synthesis). */
#ifndef HSPMD_PROGRAM_STAGE_PROGRAM_H
#define HSPMD_PROGRAM_STAGE_PROGRAM_H

#include "common/format/program_search.h"
#include "runtime/program/program.h"
#include "runtime/synthesis/synthesis.h"

/* A program, and the graph that it is for; owned. Not yet applied to it. */
struct hspmd_stage_program {
	struct hspmd_graph *graph;
	struct hspmd_synthesis *synthesis;
	struct hspmd_synthesis_result result; /* if it was searched */
	struct hspmd_model_build_options how; /* as the graph was built */
};

/* The plan's stage, as the search sees it. bf16: the plan computes in it. */
struct hspmd_synthesis_stage hspmd_stage_program_stage(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                                       const struct hspmd_cluster *cluster, bool bf16);
/* Takes the plan's program, or if it has none finds the fastest. how: of the pipeline; how many parts the vocabulary has is chosen here.
 * Fills *p. 0; 1: none is wanted; -1 and err. */
int hspmd_stage_program_find(const struct hspmd_graph_source *source, const struct hspmd_plan *plan, const struct hspmd_cluster *cluster,
                             const struct hspmd_model_build_options *how, const struct hspmd_program_limits *limits,
                             struct hspmd_stage_program *p, struct hspmd_error *err);
/* As plan->program; a new reference. NULL and err: memory. */
json_t *hspmd_stage_program_save(const struct hspmd_stage_program *p, struct hspmd_error *err);
void hspmd_stage_program_clear(struct hspmd_stage_program *p);

/* Builds the graph and annotates it with the program of the plan, or if the plan has none, with the fastest, which all devices of the plan
 * find alike: it depends on nothing but the arguments. *how: as the stage's graph is built; the number of parts of the vocabulary is set to
 * what the program needs. The caller destroys the graph. NULL and err: memory, the plan's program is none of this model, or there is
 * none. */
struct hspmd_graph *hspmd_program_synthesise(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                             const struct hspmd_cluster *cluster, struct hspmd_model_build_options *how,
                                             struct hspmd_error *err);

#endif
