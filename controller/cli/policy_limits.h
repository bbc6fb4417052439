/* SPDX-License-Identifier: Apache-2.0 */
/* The limits of a site's policy in the solver's form. */
#ifndef HSPMD_CLI_POLICY_LIMITS_H
#define HSPMD_CLI_POLICY_LIMITS_H

#include "common/format/policy.h"
#include "controller/solver/solver.h"

/* The limits in `asked`, tightened by the policy at `path` (NULL: none) for a job of this user that requests `rule` (NULL: none). A
 * cost_weight of NaN means not requested: the policy's value is used, else 0. *set owns names that *out holds: the caller clears *out, then
 * destroys *set, also after a failure. 0 or -1. */
int hspmd_policy_limits(const char *path, const char *rule, const struct hspmd_solve_limits *asked, struct hspmd_policy **set,
                        struct hspmd_solve_limits *out, struct hspmd_error *err);
/* Free what hspmd_policy_limits allocated. */
void hspmd_policy_limits_clear(struct hspmd_solve_limits *limits);

#endif
