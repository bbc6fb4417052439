/* SPDX-License-Identifier: Apache-2.0 */
/* How parameters and their training state lie under a plan: a pure function of graph and plan. Programs, state moves and checkpoints start
 * from it. */
#ifndef HSPMD_PROGRAM_PARAMETER_LAYOUT_H
#define HSPMD_PROGRAM_PARAMETER_LAYOUT_H

#include "common/format/plan.h"
#include "runtime/sharding/spmd.h"

struct hspmd_holder {
	int pipeline, stage; /* uses the parameter; of the first chunk, also when a later one does */
};

struct hspmd_parameter_layout {
	int tensor;       /* in the graph; the same number in every pipeline's graph */
	const char *name; /* borrowed from the graph */
	struct hspmd_shape shape;
	bool decay;
	int holder_count;
	struct hspmd_holder *holders;   /* order of the union's subgroups */
	struct hspmd_annotation *used;  /* as the operators use it */
	struct hspmd_annotation *state; /* as master parameter and moments lie: `used`, or cut finer (zero_stage 1, after ZeRO, arXiv
	                                   1910.02054, section 5.1) */
};

struct hspmd_parameter_layouts {
	int parameter_count; /* all parameters of the model, graph order */
	struct hspmd_parameter_layout *parameters;
};

/* Fill the graph pass's view of a plan's stage. weights: room for device_count + context integers, used where the stage has ratios. */
void hspmd_spmd_stage_of_plan(const struct hspmd_stage *stage, struct hspmd_spmd_stage *out, int64_t *weights);

/* stage_of_layer for a pipeline, malloc'd. */
int *hspmd_spmd_stage_of_layer(const struct hspmd_pipeline *pipeline, struct hspmd_error *err);

/* What the parameter's holders have, parts[h] each, as one union: they are related by hdim, and so must be the subgroups of each that has
 * several. A single holder's is as it is. NULL and err: they are not (names plan path, parameter, annotation), or memory. */
struct hspmd_annotation *hspmd_parameter_layout_join(const struct hspmd_parameter_layout *l, const struct hspmd_annotation *const *parts,
                                                     int hdim, struct hspmd_error *err);

/* `graph` must outlive the result. NULL and err on failure (names plan path and parameter). */
struct hspmd_parameter_layouts *hspmd_parameter_layouts_build(const struct hspmd_graph *graph, const struct hspmd_plan *plan,
                                                              struct hspmd_error *err);
void hspmd_parameter_layouts_destroy(struct hspmd_parameter_layouts *l);

#endif
