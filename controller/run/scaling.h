/* SPDX-License-Identifier: Apache-2.0 */
/* The job's scaling curve: nodes -> tokens per second, as the solver predicts it. For hspmdctld, which bounds it by measured rates. */
#ifndef HSPMD_RUN_SCALING_H
#define HSPMD_RUN_SCALING_H

#include <jansson.h>

#include "common/error.h"
#include "common/format/job.h"
#include "common/format/model_facts.h"

#define RUN_SCALING_MAX 256 /* nodes of the first class */

/* Nodes with equal devices. */
struct run_node_class {
	char node[65];         /* name of the first of them; "" if the name is longer */
	double relative_speed; /* rate of one node of this class, over that of one node of the first class */
};

/* Fills curve[0 .. max): [i] is the rate on i + 1 nodes of the cluster's first class: its own nodes, then copies of the last one. Only some
 * sizes are solved, each within limit_s; the values between are interpolated linearly. A size without a plan has rate 0. Returns the number
 * of values (less than max if larger sizes cannot be solved), or -1 and err. Blocks for long: not to be called on the event loop. */
int run_scaling_curve(const json_t *cluster, const struct hspmd_model_facts *facts, const struct hspmd_job *job, double limit_s,
                      double *curve, int max, struct hspmd_error *err);

/* Fills in the cluster's classes of nodes, in the cluster's order. To compare them, plans are solved for the smallest power of two of nodes
 * (16 at most) on which the model fits. Returns their number, at most max; -1 and err. Blocks for long. */
int run_relative_speeds(const json_t *cluster, const struct hspmd_model_facts *facts, const struct hspmd_job *job, double limit_s,
                        struct run_node_class *classes, int max, struct hspmd_error *err);

/* How many values the curve of a job of at most max_nodes nodes needs: hspmdctld looks up a node of a class as relative_speed nodes of the
 * first one, and what is beyond the curve's end brings nothing. At most RUN_SCALING_MAX. */
int run_scaling_size(int max_nodes, const struct run_node_class *classes, int count);

/* Makes a cluster file's value with the first n nodes of one class (and copies of the last, if there are fewer), one node per entry.
 * `devices`: the class, as the entry of such a node has it. New reference; NULL and err. */
json_t *run_scaling_cluster(const json_t *cluster, const json_t *devices, int n, struct hspmd_error *err);

#endif
