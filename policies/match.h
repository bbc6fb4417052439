/* SPDX-License-Identifier: Apache-2.0 */
/* Which rule of the site's policy applies to a job. The first rule that matches decides; fields that it does not set come from the
 * defaults.
 *
 * At submission not everything is known (a job that names no partition gets the default one). A rule whose conditions cannot be checked
 * remains possible; then several rules are candidates, and a job is refused at submission only if every candidate refuses it. Slurm's own
 * record of the job decides later.
 */
#ifndef HSPMD_POLICIES_MATCH_H
#define HSPMD_POLICIES_MATCH_H

#include <stdbool.h>
#include <stddef.h>

#include "common/error.h"
#include "common/format/policy.h"

#define HSPMD_POLICY_NO_RULE (-1) /* only the defaults apply */

/* Whose job, and where it runs. NULL: not known, except that policy NULL means "default". */
struct hspmd_policy_subject {
	const char *user, *account, *partition, *qos;
	const char *policy; /* named by --hspmd-policy or the job file */
	int week_minute;    /* when: 1 + minutes since Monday 00:00, local time (hspmd_policy_when()); 0: not known */
};

/* Returns the value of week_minute for a Unix time. */
int hspmd_policy_when(double unix_s);

enum hspmd_match_result { HSPMD_MATCH_NO, HSPMD_MATCH_MAYBE, HSPMD_MATCH_YES };

/* Matches a rule. If the result is not YES and why is not NULL, why gets the reason: the condition that failed, or what is not known. */
enum hspmd_match_result hspmd_policy_match_rule(const struct hspmd_policy_rule *r, const struct hspmd_policy_subject *subject, char *why,
                                                size_t size);

/* Lists the rules that may decide, in order: those that may match, up to the first that does match, or with HSPMD_POLICY_NO_RULE as the
 * last if none does for sure. Fills at most max (at least 1) and returns how many; -1 and err: the named policy does not exist or is not
 * for this job. */
int hspmd_policy_candidates(const struct hspmd_policy *p, const struct hspmd_policy_subject *subject, int *rules, int max,
                            struct hspmd_error *err);

/* The same if everything is known: sets *rule to the one rule. Returns 0, or -1 and err. */
int hspmd_policy_decide_rule(const struct hspmd_policy *p, const struct hspmd_policy_subject *subject, int *rule, struct hspmd_error *err);

#endif
