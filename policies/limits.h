/* SPDX-License-Identifier: Apache-2.0 */
/* The limits of a policy, applied to the resources that a job requests or would hold; the same at submission and at every resize. */
#ifndef HSPMD_POLICIES_LIMITS_H
#define HSPMD_POLICIES_LIMITS_H

#include "common/error.h"
#include "common/format/policy.h"

/* Resources that a job requests or would hold. 0 or less, or NULL: not known, and not checked. */
struct hspmd_policy_request {
	int nodes; /* the most it requests */
	int devices;
	int jobs_of_user; /* elastic jobs of its user, including this one */
	double price_per_hour;
	const char *const *types; /* device types it would hold */
	int type_count;
};

/* Returns 0, or -1 and err, which names limit, rule and file: "policy spot (20-spot.json) allows at most 8 nodes; 12 asked". err may be
 * NULL. */
int hspmd_policy_check_limits(const struct hspmd_policy *p, int rule, const struct hspmd_policy_request *request, struct hspmd_error *err);
/* Returns true if a rule limits the number of jobs per user or the price, which can only be checked with a view of the cluster. */
bool hspmd_policy_wants_quote(const struct hspmd_policy *p, int rule);

#endif
