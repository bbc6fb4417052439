/* SPDX-License-Identifier: Apache-2.0 */
/* Predictions for steps whose samples have several lengths: the samples are divided among the plan's pipelines as they will be when it
 * trains (common/step_batches.h), and every pipeline is simulated with the micro-batches that it then has. The expected step is the mean of
 * some steps whose samples' lengths are drawn by their shares, always the same. */
#ifndef HSPMD_SIM_MIXED_STEP_H
#define HSPMD_SIM_MIXED_STEP_H

#include "common/error.h"
#include "common/format/cluster.h"
#include "common/format/model_facts.h"
#include "common/format/plan.h"

/* The steps, or samples, of one length, among those of a job. */
struct hspmd_step_share {
	int seq_len;
	double share;                          /* of all steps; of all samples, if steps mix lengths. Only ratios count */
	const struct hspmd_model_facts *facts; /* of the model, for samples of this length */
};

/* The cost tables at every length, made once for many predictions; private. */
struct hspmd_mixed_costs;
/* shares: `count` of them, ascending by length; borrowed. plan: in whose precision they are; its lists of operators to recompute are those
 * of all plans that are predicted. NULL and err. */
struct hspmd_mixed_costs *hspmd_mixed_costs_create(const struct hspmd_cluster *cluster, const struct hspmd_step_share *shares, int count,
                                                   enum hspmd_precision precision, const struct hspmd_plan *plan, struct hspmd_error *err);
void hspmd_mixed_costs_destroy(struct hspmd_mixed_costs *m);

/* Gives every pipeline `lengths`: of each length that fits into its devices' memory, the largest micro-batches of at most `part` of the
 * tokens that its longest ones may have, with their times. Returns 1; 0: no pipeline takes the longest, or one takes none; -1 and err. */
int hspmd_mixed_set_lengths(struct hspmd_mixed_costs *m, struct hspmd_plan *plan, double part, struct hspmd_error *err);

/* Fill plan->predicted of a plan whose pipelines have `lengths`. 0, or -1 and err. */
int hspmd_mixed_predict(struct hspmd_mixed_costs *m, struct hspmd_plan *plan, struct hspmd_error *err);

/* The part of the samples of length number `length` that the pipeline gets on average in those steps, and its busy part of the step. Fill
 * parts[pipeline][length] (row by row) and busy[pipeline]. 0, or -1 and err. */
int hspmd_mixed_parts(struct hspmd_mixed_costs *m, const struct hspmd_plan *plan, double *parts, double *busy, struct hspmd_error *err);

#endif
