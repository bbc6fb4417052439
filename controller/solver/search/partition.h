/* SPDX-License-Identifier: Apache-2.0 */
/* Partition of a model's layers over a sequence of stages. Private to the solver. */
#ifndef HSPMD_SEARCH_PARTITION_H
#define HSPMD_SEARCH_PARTITION_H

#include "controller/solver/search/submesh.h"

#define HSPMD_FEW_MICRO_BATCHES 4 /* up to so many micro-batches per stage, fill and drain are a large part of the step */

/* The stages of a pipeline, in order, as submeshes; devices are not yet chosen. */
struct hspmd_stage_sequence {
	int stages;
	unsigned char submesh[HSPMD_STAGES_MAX];
};

/* A sequence and its layers: stage s holds layers [ends[s - 1], ends[s]). */
struct hspmd_pipeline_partition {
	struct hspmd_stage_sequence sequence;
	short ends[HSPMD_STAGES_MAX];
	unsigned char way[HSPMD_STAGES_MAX]; /* in which it keeps what forward passes save (submesh.h) */
	double period_s;       /* seconds per micro-batch of the slowest stage, including its transfers */
	double fill_drain_s;   /* seconds of fill and drain: m micro-batches take about fill_drain_s + (m - 1) period_s */
	int max_micro_batches; /* most micro-batches for which its memory is large enough; INT_MAX: any number */
	bool limited;          /* memory did not suffice for something that was tried: with more of it, the partition may be another */
	int least, most;       /* numbers of pipelines for which the partition surely is the same: those, and all between them */
};

/* Partition the layers so that the slowest stage is as fast as possible, to a relative precision. max_micro_batches: most micro-batches
 * that the pipeline will run, which limits those in flight. Returns false if the sequence cannot hold the model. */
bool hspmd_partition_layers(struct hspmd_submesh_tables *t, const struct hspmd_stage_sequence *sequence,
                            const struct hspmd_layer_copies *copies, int max_micro_batches, double precision,
                            struct hspmd_pipeline_partition *out);

/* Returns true if the sequence can hold the model. */
bool hspmd_partition_fits(struct hspmd_submesh_tables *t, const struct hspmd_stage_sequence *sequence,
                          const struct hspmd_layer_copies *copies, int max_micro_batches);

/* No stage of any partition over the sequence, whatever memory is needed and messages take, lets a pipeline run micro-batches in less than
 * this many seconds each; as exactly as it takes to say whether that is more than `compared` (NAN: exactly). */
double hspmd_partition_least_period(const struct hspmd_submesh_tables *t, const struct hspmd_stage_sequence *sequence, double compared);

/* How many partitions there are. */
double hspmd_partition_count(int layers, int stages);

/* Change a partition so that a step of m micro-batches is short: the best of all partitions if there are few, otherwise the best that
 * moving boundaries by one layer reaches. The work grows with m. */
void hspmd_partition_rebalance(struct hspmd_submesh_tables *t, const struct hspmd_layer_copies *copies, int m,
                               struct hspmd_pipeline_partition *partition);

#endif
