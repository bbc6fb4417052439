/* SPDX-License-Identifier: Apache-2.0 */
/* What further nodes would bring this job: nodes -> tokens per second, as the solver predicts it. For hspmdctld, which bounds it by what
 * was measured. */
#ifndef HSPMD_RUN_SCALING_H
#define HSPMD_RUN_SCALING_H

#include <jansson.h>

#include "common/error.h"
#include "common/format/job.h"
#include "common/format/model.h"

#define RUN_SCALING_MAX 256 /* nodes */

/* Nodes that are alike. */
struct run_node_class {
	char node[65];         /* the first of them; "" where its name is longer */
	double relative_speed; /* what one makes, over what one of the first kind makes */
};

/* Fill curve[0 .. max): [i] on i + 1 nodes of the cluster's first kind: its own, and beyond these copies of the last. Few sizes are solved,
 * each within limit_s; between them straight lines. Sizes with no plan make 0. Returns how many values there are (less than max where
 * larger sizes cannot be solved), or -1 with err. Takes long: call it off the event loop. */
int run_scaling_curve(const json_t *cluster, const struct hspmd_model *model, const struct hspmd_job *job, double limit_s, double *curve,
                      int max, struct hspmd_error *err);

/* The cluster's kinds of nodes, the first first: as few nodes of each as hold the model (a power of two, 16 at most) are solved. Returns
 * how many, at most max; -1 with err. Takes long. */
int run_relative_speeds(const json_t *cluster, const struct hspmd_model *model, const struct hspmd_job *job, double limit_s,
                        struct run_node_class *classes, int max, struct hspmd_error *err);

/* A cluster file's value with the first n nodes of one kind, copies of their last where there are fewer, a node an entry. `devices` is the
 * kind: what such a node's entry has. New reference. */
json_t *run_scaling_cluster(const json_t *cluster, const json_t *devices, int n, struct hspmd_error *err);

#endif
