/* SPDX-License-Identifier: Apache-2.0 */
/* Rules that never decide, because an earlier rule matches every job that they match. */
#ifndef HSPMD_POLICIES_SHADOW_H
#define HSPMD_POLICIES_SHADOW_H

#include "common/format/policy.h"

enum hspmd_policy_shadow {
	HSPMD_POLICY_REACHED,
	HSPMD_POLICY_BY_NAME_ONLY, /* only jobs that name a policy reach it */
	HSPMD_POLICY_UNREACHED
};

/* Whether jobs reach a rule. If not all do, *by is the number of an earlier rule that takes them. A rule that several earlier ones shadow
 * only together counts as reached. */
enum hspmd_policy_shadow hspmd_policy_find_shadow(const struct hspmd_policy *p, int rule, int *by);

#endif
