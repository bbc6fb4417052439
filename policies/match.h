/* SPDX-License-Identifier: Apache-2.0 */
/* Which rule a job gets, and what then holds for it. The first rule that matches decides; what it does not give comes from the defaults.
 *
 * At submission not all is known (a job that names no partition gets the default one). What is not known leaves a rule possible: then
 * several rules are candidates, and a job is refused at submission only if every candidate refuses it. Slurm's own record of the job
 * decides later.
 */
#ifndef HSPMD_POLICIES_MATCH_H
#define HSPMD_POLICIES_MATCH_H

#include <stdbool.h>
#include <stddef.h>

#include "common/error.h"
#include "common/format/policy.h"

#define HSPMD_POLICY_NO_RULE (-1) /* the defaults alone */

/* Whose job, and where it runs. NULL: not known, except policy, where NULL is "default". */
struct hspmd_policy_subject {
	const char *user, *account, *partition, *qos;
	const char *policy; /* what the user asked for by --hspmd-policy or the job file */
};

enum hspmd_match_result { HSPMD_MATCH_NO, HSPMD_MATCH_MAYBE, HSPMD_MATCH_YES };

/* Does a rule match? When not YES and why is not NULL, says in words what did not fit or is not known. */
enum hspmd_match_result hspmd_policy_match_rule(const struct hspmd_policy_rule *r, const struct hspmd_policy_subject *subject, char *why,
                                                size_t size);

/* The rules that may decide, in order: those that may match up to the first that does, or HSPMD_POLICY_NO_RULE as the last where none
 * surely does. Fills at most max (at least 1), returns how many, or -1 with err: the policy that was named is not there or not for this
 * job. */
int hspmd_policy_candidates(const struct hspmd_policy *p, const struct hspmd_policy_subject *subject, int *rules, int max,
                            struct hspmd_error *err);

/* As above when all is known: the one rule in *rule. */
int hspmd_policy_decide_rule(const struct hspmd_policy *p, const struct hspmd_policy_subject *subject, int *rule, struct hspmd_error *err);

#endif
