/* SPDX-License-Identifier: Apache-2.0 */
/* Splitting a model's layers over a row of stages. Private to the solver. */
#ifndef HSPMD_CONTROLLER_SOLVER_SPLIT_H
#define HSPMD_CONTROLLER_SOLVER_SPLIT_H

#include "controller/solver/units.h"

#define HSPMD_STAGES_MAX 64
#define HSPMD_FEW 4 /* micro-batches a stage that are few: fill and drain are a large part of the step */

/* The stages of a pipeline, in order, before anybody knows which devices they will be. */
struct hspmd_row {
	int stages;
	unsigned char unit[HSPMD_STAGES_MAX];
};

/* A row with its layers: stage s holds [ends[s - 1], ends[s]). */
struct hspmd_shape {
	struct hspmd_row row;
	short ends[HSPMD_STAGES_MAX];
	unsigned char recompute[HSPMD_STAGES_MAX];
	double cycle; /* seconds of the slowest stage's micro-batch, its transfers included */
	double once;  /* seconds of filling and draining: m micro-batches take about once + (m - 1) cycle */
	int at_most;  /* micro-batches it has memory for; INT_MAX: any number */
};

/* Split so that the slowest stage is as fast as can be, to a relative precision. at_most: the most micro-batches the pipeline will run, which bounds
 * those in flight. True, or false when the row cannot hold the model. */
bool hspmd_split(struct hspmd_tables *t, const struct hspmd_row *row, const struct hspmd_copies *copies, int at_most, double precision,
		 struct hspmd_shape *out);

/* Split a shape anew so that a step of m micro-batches is short: the shortest where splits are few, else what moving borders by a layer leads to.
 * Work grows with m. */
void hspmd_shape_settle(struct hspmd_tables *t, const struct hspmd_copies *copies, int m, struct hspmd_shape *shape);

#endif
