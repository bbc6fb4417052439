/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines that have been simulated. A search times many plans that differ in one pipeline and have the others in common. Private to the
 * solver. */
#ifndef HSPMD_SIM_PIPELINE_MEMO_H
#define HSPMD_SIM_PIPELINE_MEMO_H

#include "controller/solver/sim/simulate.h"

/* What decides a pipeline's times, in plans that are not interleaved. */
struct hspmd_pipeline_run {
	const struct hspmd_sim_stage *stages;
	int count, micro_batches;
	enum hspmd_schedule schedule;
};

/* The last ones. Several threads may use it at the same time. */
struct hspmd_pipeline_memo;
struct hspmd_pipeline_memo *hspmd_pipeline_memo_new(void); /* NULL: memory */
void hspmd_pipeline_memo_destroy(struct hspmd_pipeline_memo *m);

/* Simulate a pipeline, unless it is known. stage_end[count]: end of each stage's last backward pass; *end: of the last operation. m: may be
 * NULL. Returns 0, or -1 if memory runs out. */
int hspmd_pipeline_memo_simulate(struct hspmd_pipeline_memo *m, const struct hspmd_pipeline_run *run, double *stage_end, double *end);

#endif
