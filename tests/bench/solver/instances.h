/* SPDX-License-Identifier: Apache-2.0 */
/* Random small planning problems, and the exact answer to one. */
#ifndef HSPMD_TESTS_BENCH_SOLVER_INSTANCES_H
#define HSPMD_TESTS_BENCH_SOLVER_INSTANCES_H

#include "controller/solver/solver.h"

struct instance {
	struct hspmd_cluster *cluster;
	struct hspmd_profile *profile;
	int global_batch;
	bool tight; /* no device can hold the whole model */
};

/* Make problem number `seed`: at most `devices` devices of at most three types in nodes of up to four, at most `layers` layers. Returns
 * 0, or -1 with err. */
int instance_new(unsigned seed, int devices, int layers, struct instance *out, struct hspmd_error *err);
void instance_free(struct instance *i);

#define FASTEST_PLAN_DEVICES 8 /* most devices of a problem that fastest_plan searches */

/* Find the fastest plan for the problem among those whose stages are of equal devices and whose micro-batches are of one size: every set
 * of tensor-parallel groups in nodes, every way to arrange them in pipelines, every partition of layers, every micro-batch, every
 * distribution of micro-batches, ZeRO or not, each timed as hspmd_evaluate times it. Branches that cannot beat `known` (a step time known
 * to be possible; INFINITY: none) are pruned by bounds that never exceed the time of any plan in the branch. At most `most` parts of
 * partitions are tried; *all: that was enough. Returns NULL if no plan beats what is known, or with err if the search failed, because the
 * problem has more than FASTEST_PLAN_DEVICES devices or for want of memory; the caller destroys the plan, whose predicted.step_s is its
 * time. */
struct hspmd_plan *fastest_plan(const struct instance *i, double known, long most, bool *all, struct hspmd_error *err);

#endif
