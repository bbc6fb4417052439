/* SPDX-License-Identifier: Apache-2.0 */
/* The limits of a policy, applied to what a job asks for or would hold. The same at submission and at every later resize. */
#ifndef HSPMD_POLICIES_LIMITS_H
#define HSPMD_POLICIES_LIMITS_H

#include "common/error.h"
#include "common/format/policy.h"

/* What a job asks for or would hold. 0 or less, or NULL: not known, and not judged. */
struct hspmd_policy_request {
	int nodes; /* the most it asks for */
	int devices;
	int jobs_of_user; /* elastic jobs of its user, this one counted */
	double price_per_hour;
	const char *const *types; /* device types it would hold */
	int type_count;
};

/* 0, or -1 and in words which limit of which rule and file: "policy spot (20-spot.json) allows at most 8 nodes; 12 asked". */
int hspmd_policy_check_limits(const struct hspmd_policy *p, int rule, const struct hspmd_policy_request *request, struct hspmd_error *err);
/* Has a rule limits on the user's jobs or on price, which only who sees the cluster knows how near they are? */
bool hspmd_policy_wants_quote(const struct hspmd_policy *p, int rule);

#endif
