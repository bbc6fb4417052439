/* SPDX-License-Identifier: Apache-2.0 */
/* The site's policies for a running job. */
#ifndef HSPMD_CLI_RUN_POLICY_H
#define HSPMD_CLI_RUN_POLICY_H

#include "common/error.h"
#include "common/format/job.h"
#include "controller/core/controller.h"
#include "controller/slurm/job.h"
#include "policies/limits.h"
#include "policies/match.h"

struct run_policy {
	struct run_policy_terms policy_terms; /* points into the texts below */
	char max_nodes_by[160], max_devices_by[160];
	struct hspmd_policy *policy; /* NULL: nothing was read; `rule` is the rule that applies */
	int rule;
	struct hspmd_slurm_member_terms member_terms; /* points into `policy` */
};

/* Reads the terms that apply to a job. `job`: receives the policy's values for its checkpoints (checkpoint_policy.h); NULL: not wanted.
 * `where`: a policy file or folder; "UID@FOLDER" trusts only files of that user and of root (HSPMD_POLICIES of the plugin); NULL: the
 * built-in terms. */
int run_policy_read(struct run_policy *t, struct hspmd_job *job, const char *where, const struct hspmd_policy_subject *subject,
                    struct hspmd_error *err);
void run_policy_clear(struct run_policy *t);

/* Returns true if the policy limits the user's other jobs or the price of nodes; hspmdctld must then be asked. */
bool run_policy_want_quote(const struct run_policy *t);
/* 0 if a job of this rule may start so; else -1 with the plugin's message at submission. */
int run_policy_check(const struct run_policy *t, const struct hspmd_policy_request *request, struct hspmd_error *err);

#endif
