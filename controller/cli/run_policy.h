/* SPDX-License-Identifier: Apache-2.0 */
/* What the site's policies say of a job that runs. */
#ifndef HSPMD_CLI_RUN_POLICY_H
#define HSPMD_CLI_RUN_POLICY_H

#include "common/error.h"
#include "common/format/job.h"
#include "controller/core/controller.h"
#include "policies/limits.h"
#include "policies/match.h"

struct run_policy {
	struct run_policy_terms policy_terms; /* points into the texts below */
	char max_nodes_by[160], max_devices_by[160];
	struct hspmd_policy *policy; /* and which of its rules holds; NULL: nothing was read */
	int rule;
};

/* ... and of its checkpoints, which goes into `job` (checkpoint_policy.h); NULL: not wanted.
 * `where`: a policy file or folder, "UID@FOLDER" where only files of that user and of root are believed (HSPMD_POLICIES of the plugin), or
 * NULL: what holds without any. */
int run_policy_read(struct run_policy *t, struct hspmd_job *job, const char *where, const struct hspmd_policy_subject *subject,
                    struct hspmd_error *err);
void run_policy_clear(struct run_policy *t);

/* Are the user's other jobs, or what nodes cost, limited? Then somebody who knows must be asked. */
bool run_policy_want_quote(const struct run_policy *t);
/* May a job of this rule start so? 0, or -1 in the words that the plugin has at submission. */
int run_policy_check(const struct run_policy *t, const struct hspmd_policy_request *request, struct hspmd_error *err);

#endif
