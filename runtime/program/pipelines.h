/* SPDX-License-Identifier: Apache-2.0 */
/* The annotations of all of a plan's pipelines, as one device needs them: its own pipeline with everything that it runs, the others with
 * annotations only. Pipelines of one shape (stages, layers and splits) differ in their devices alone, so the passes run once per shape. */
#ifndef HSPMD_PROGRAM_PIPELINES_H
#define HSPMD_PROGRAM_PIPELINES_H

#include "runtime/program/parameter_layout.h"
#include "runtime/program/program.h"

struct hspmd_pipelines {
	const struct hspmd_plan *plan; /* borrowed */
	int *like;                     /* per pipeline: the one of the same shape that has a graph and annotations */
	struct hspmd_graph **graphs;   /* per pipeline; NULL: another stands for it */
	struct hspmd_spmd **spmds;
	struct hspmd_model_build_options how; /* of the own pipeline's graph */
};

/* Returns true if the plan's elements are BF16. */
bool hspmd_pipelines_are_bf16(const struct hspmd_graph_source *source, const struct hspmd_plan *plan, const struct hspmd_cluster *cluster);

/* How the graph of a pipeline is built. bf16: the plan computes in it. */
struct hspmd_model_build_options hspmd_pipeline_options(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                                        const struct hspmd_cluster *cluster, int pipeline, bool bf16);

/* The graph of the first pipeline, annotated if the plan's operators are divided by search. Its parameters have the numbers that they have
 * in every graph of the model. The caller destroys it. NULL and err. */
struct hspmd_graph *hspmd_pipeline_graph(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                         const struct hspmd_cluster *cluster, struct hspmd_error *err);

/* own: the device's pipeline. cost: of transfers within it. Plan and cluster must outlive the result. NULL and err. */
struct hspmd_pipelines *hspmd_pipelines_build(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                              const struct hspmd_cluster *cluster, int own, const struct hspmd_link_cost *cost,
                                              struct hspmd_error *err);
void hspmd_pipelines_destroy(struct hspmd_pipelines *p);

/* The first annotation of a tensor in one stage of a pipeline. The caller destroys it. NULL and err: memory, or the stage does not have the
 * tensor. */
struct hspmd_annotation *hspmd_pipelines_annotation(const struct hspmd_pipelines *p, int tensor, struct hspmd_holder holder,
                                                    struct hspmd_error *err);

#endif
