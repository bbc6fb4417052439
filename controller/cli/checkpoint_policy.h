/* SPDX-License-Identifier: Apache-2.0 */
/* What the site's policy makes of a job's checkpoints. */
#ifndef HSPMD_CLI_CHECKPOINT_POLICY_H
#define HSPMD_CLI_CHECKPOINT_POLICY_H

#include "common/error.h"
#include "common/format/job.h"
#include "common/format/policy.h"

/* Folders where the job names none, the longest interval, the fewest copies. 0 or -1 (memory). */
int checkpoint_policy_apply(struct hspmd_job *job, const struct hspmd_policy_terms *t, struct hspmd_error *err);

#endif
