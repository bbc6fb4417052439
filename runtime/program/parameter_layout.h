/* SPDX-License-Identifier: Apache-2.0 */
/* How parameters and their training state are laid out under a plan: a pure function of graph and plan. Programs, state transfers and
 * checkpoints are derived from it. */
#ifndef HSPMD_PROGRAM_PARAMETER_LAYOUT_H
#define HSPMD_PROGRAM_PARAMETER_LAYOUT_H

#include "common/format/plan.h"
#include "runtime/sharding/spmd.h"

struct hspmd_holder {
	int pipeline, stage; /* a stage that uses the parameter: the one of the first chunk, also if only a later chunk uses it */
};

struct hspmd_parameter_layout {
	int tensor;       /* number in the graph; the same in every pipeline's graph */
	const char *name; /* borrowed from the graph */
	struct hspmd_shape shape;
	bool decay;
	int holder_count;
	struct hspmd_holder *holders; /* in the order of the union's subgroups */
	bool shared; /* the annotations are those of an earlier parameter, with like shape, splits and holders; they are not changed */
	struct hspmd_annotation *used;  /* as operators use the parameter */
	bool cut;                       /* the state is divided otherwise than `used`: split further, or where another plan puts it */
	struct hspmd_annotation *state; /* of the master parameter and its moments: `used`, or split further (zero_stage, after ZeRO,
	                                   arXiv 1910.02054, section 5), but for vectors */
	bool sharded_gradient, sharded_parameter; /* cut, and nothing but parts of it is kept from one layer's pass to the next (zero_stage
	                                             2, 3). Never of a parameter that two stages of a pipeline use: they would have to wait
	                                             for one another in the middle of their passes */
};

struct hspmd_parameter_layouts {
	int parameter_count; /* all parameters of the model, in graph order */
	bool shares_state;   /* the `state` annotations are another plan's */
	struct hspmd_parameter_layout *parameters;
};

/* Fill the sharding pass's view of a plan's stage. weights: space for device_count + context integers, used if the stage has ratios. */
void hspmd_spmd_stage_of_plan(const struct hspmd_stage *stage, struct hspmd_spmd_stage *out, int64_t *weights);

/* The stage of every layer of a pipeline. The caller frees the array. */
int *hspmd_spmd_stage_of_layer(const struct hspmd_pipeline *pipeline, struct hspmd_error *err);

/* Join the annotations parts[h] of a parameter's holders to one union with this hdim. Annotations with several subgroups must have the
 * same hdim. With a single holder the result is a copy of its annotation. NULL and err: the annotations do not match (names plan path,
 * parameter, annotation), or memory. */
struct hspmd_annotation *hspmd_parameter_layout_join(const struct hspmd_parameter_layout *l, const struct hspmd_annotation *const *parts,
                                                     int hdim, struct hspmd_error *err);

/* The state lies as in `of`, of another plan of the same model, whose annotations are borrowed: it must outlive l. 0, or -1 and err: the
 * models differ. */
int hspmd_parameter_layouts_share_state(struct hspmd_parameter_layouts *l, const struct hspmd_parameter_layouts *of,
                                        struct hspmd_error *err);

/* `graph` must outlive the result. NULL and err on failure (names plan path and parameter). */
struct hspmd_parameter_layouts *hspmd_parameter_layouts_build(const struct hspmd_graph *graph, const struct hspmd_plan *plan,
                                                              struct hspmd_error *err);
void hspmd_parameter_layouts_destroy(struct hspmd_parameter_layouts *l);

#endif
