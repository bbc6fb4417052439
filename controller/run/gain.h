/* SPDX-License-Identifier: Apache-2.0 */
/* What further nodes would bring this job: nodes -> tokens per second, as the solver predicts it. For hspmdctld, which bounds it by what was measured. */
#ifndef HSPMD_CONTROLLER_RUN_GAIN_H
#define HSPMD_CONTROLLER_RUN_GAIN_H

#include <jansson.h>

#include "common/error.h"
#include "common/format/job.h"
#include "common/format/model.h"

#define RUN_GAIN_MAX 256 /* nodes */

/* Fill curve[0 .. max): [i] on i + 1 nodes: the first nodes of the cluster, and beyond these copies of its last. Few sizes are solved, each within
 * limit_s; between them straight lines. Sizes with no plan make 0. Returns how many values there are (less than max where larger sizes cannot be
 * solved), or -1 with err. Takes long: call it off the event loop. */
int run_gain_curve(const json_t *cluster, const struct hspmd_model *model, const struct hspmd_job *job, double limit_s, double *curve, int max,
		   struct hspmd_error *err);

/* A cluster file's value with the first n nodes of another and copies of its last for the rest, a node an entry. New reference. */
json_t *run_gain_cluster(const json_t *cluster, int n, struct hspmd_error *err);

#endif
