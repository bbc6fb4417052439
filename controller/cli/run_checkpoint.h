/* SPDX-License-Identifier: Apache-2.0 */
/* What the site's policy and what has been seen of its nodes make of a job's checkpoints. */
#ifndef HSPMD_CONTROLLER_CLI_RUN_CHECKPOINT_H
#define HSPMD_CONTROLLER_CLI_RUN_CHECKPOINT_H

#include <jansson.h>

#include "common/error.h"
#include "common/format/job.h"
#include "common/format/policy.h"

/* Folders where the job names none, the longest interval, the fewest copies. 0 or -1 (memory). */
int run_checkpoint_terms(struct hspmd_job *job, const struct hspmd_policy_terms *t, struct hspmd_error *err);

/* Copies on other nodes: more than the job and the policy ask for where `cluster` (what hspmdctld answers to a viewer) has seen nodes lost so often, or so
 * many at once, that they bring more committed tokens than they cost (policies/copies.h). `nodes`: that it starts on. Returns how many there now are. */
int run_checkpoint_copies(struct hspmd_job *job, const struct hspmd_model *model, int nodes, const json_t *cluster);

#endif
