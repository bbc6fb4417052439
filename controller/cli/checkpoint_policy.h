/* SPDX-License-Identifier: Apache-2.0 */
/* The site's policy, applied to the checkpoints of a job. */
#ifndef HSPMD_CLI_CHECKPOINT_POLICY_H
#define HSPMD_CLI_CHECKPOINT_POLICY_H

#include "common/error.h"
#include "common/format/job.h"
#include "common/format/policy.h"

/* Sets folders that the job does not name, the longest interval and the fewest copies. 0, or -1: out of memory. */
int checkpoint_policy_apply(struct hspmd_job *job, const struct hspmd_policy_terms *t, struct hspmd_error *err);

#endif
