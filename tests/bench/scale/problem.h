/* SPDX-License-Identifier: Apache-2.0 */
/* Large jobs for measurements: a 70B Llama (80 blocks, 8 key-value heads) on nodes of eight GPUs. */
#ifndef HSPMD_TESTS_BENCH_SCALE_PROBLEM_H
#define HSPMD_TESTS_BENCH_SCALE_PROBLEM_H

#include "common/format/cluster.h"
#include "common/format/plan.h"
#include "runtime/model/model.h"

/* The plan's pipelines: all of tensor-parallel degree 8 with 8 stages; or of four shapes, with degrees 8, 4, 8, 2 and 8, 16, 7, 28
 * stages. */
enum scale_shapes { SCALE_ALIKE, SCALE_FOUR };

struct scale_problem {
	struct hspmd_cluster *cluster;
	struct hspmd_model *model;
	struct hspmd_plan *plan; /* ZeRO-1, 1F1B, 32 micro-batches of one sample per pipeline */
};

#define SCALE_PARAMETERS 723 /* of the model */

/* devices: a multiple of 1024, or for SCALE_ALIKE of 64. 0, or -1 with err. */
int scale_problem_create(int devices, enum scale_shapes shapes, struct scale_problem *out, struct hspmd_error *err);
void scale_problem_clear(struct scale_problem *p);
/* A cluster file's value: nodes of eight GPUs, equal parts of `types` (at most SCALE_TYPES) types. lost: a node of the first type that is
 * missing (neither the first nor the last); -1: none. */
#define SCALE_TYPES 4
json_t *scale_cluster(int devices, int types, int lost);
/* The caller destroys it. NULL and err. */
struct hspmd_model *scale_model(struct hspmd_error *err);
/* Another plan on the cluster's first `devices` devices. The caller destroys it. NULL and err. */
struct hspmd_plan *scale_plan(const struct hspmd_cluster *cluster, int devices, enum scale_shapes shapes, struct hspmd_error *err);

#endif
