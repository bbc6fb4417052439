/* SPDX-License-Identifier: Apache-2.0 */
/* The limits of a policy, applied to the resources that a job requests or would hold; the same at submission and at every resize. */
#ifndef HSPMD_POLICIES_LIMITS_H
#define HSPMD_POLICIES_LIMITS_H

#include "common/error.h"
#include "common/format/policy.h"

/* Resources that a job requests or would hold. 0 or less, or NULL: not known, and not checked. */
struct hspmd_policy_request {
	int nodes;
	int devices;
	int jobs_of_user; /* elastic jobs of its user, including this one */
	double price_per_hour;
	const char *const *types; /* device types it would hold */
	int type_count;
};

/* Returns 0, or -1 and err, which names limit, rule and file: "policy spot (20-spot.json) allows at most 8 nodes; 12 asked". err may be
 * NULL. */
int hspmd_policy_check_limits(const struct hspmd_policy *p, int rule, const struct hspmd_policy_request *request, struct hspmd_error *err);
/* The most nodes that a job can come to hold, if one of several rules may apply. An upper bound beyond it is no mistake, as with the
 * partitions of Slurm. */
struct hspmd_policy_bound {
	int nodes;       /* 0: no rule yet */
	char fewer[256]; /* "" or, if the job asks for more: "policy spot (20-spot.json) allows at most 8 of 12 nodes" */
};

/* Widens the bound to the limits of a rule on nodes and devices. asked: the job's own most nodes; each: devices of a node, 0 if not
 * known. */
void hspmd_policy_widen_bound(const struct hspmd_policy *p, int rule, int asked, int each, struct hspmd_policy_bound *bound);
/* Returns true if a rule limits the number of jobs per user or the price, which can only be checked with a view of the cluster. */
bool hspmd_policy_wants_quote(const struct hspmd_policy *p, int rule);

#endif
