/* SPDX-License-Identifier: Apache-2.0 */
/* Splitting a model's layers over a sequence of stages. Private to the solver. */
#ifndef HSPMD_SEARCH_PARTITION_H
#define HSPMD_SEARCH_PARTITION_H

#include "controller/solver/search/submesh.h"

#define HSPMD_STAGES_MAX 64
#define HSPMD_FEW_MICRO_BATCHES 4 /* micro-batches a stage that are few: fill and drain are a large part of the step */

/* The stages of a pipeline, in order, before anybody knows which devices they will be. */
struct hspmd_stage_sequence {
	int stages;
	unsigned char submesh[HSPMD_STAGES_MAX];
};

/* A sequence with its layers: stage s holds [ends[s - 1], ends[s]). */
struct hspmd_pipeline_partition {
	struct hspmd_stage_sequence sequence;
	short ends[HSPMD_STAGES_MAX];
	unsigned char recompute[HSPMD_STAGES_MAX];
	double period_s;       /* seconds of the slowest stage's micro-batch, its transfers included */
	double fill_drain_s;   /* seconds of filling and draining: m micro-batches take about fill_drain_s + (m - 1) period_s */
	int max_micro_batches; /* micro-batches it has memory for; INT_MAX: any number */
};

/* Split so that the slowest stage is as fast as can be, to a relative precision. max_micro_batches: the most micro-batches the pipeline
 * will run, which bounds those in flight. True, or false when the sequence cannot hold the model. */
bool hspmd_partition_layers(struct hspmd_submesh_tables *t, const struct hspmd_stage_sequence *sequence,
                            const struct hspmd_layer_copies *copies, int max_micro_batches, double precision,
                            struct hspmd_pipeline_partition *out);

/* Split a shape anew so that a step of m micro-batches is short: the shortest where splits are few, else what moving borders by a layer
 * leads to. Work grows with m. */
void hspmd_partition_rebalance(struct hspmd_submesh_tables *t, const struct hspmd_layer_copies *copies, int m,
                               struct hspmd_pipeline_partition *partition);

#endif
