/* SPDX-License-Identifier: Apache-2.0 */
#include "policies/decide.h"

#include "policies/decision_state_internal.h"

int hspmd_policy_decide(const struct hspmd_snapshot *s, struct hspmd_decision *d, struct hspmd_error *err)
{
	struct decision_state k;
	int rc = decision_state_open(&k, s, d, err);
	if (rc == 0)
		rc = reclaim_over_limit(&k, err);
	if (rc == 0)
		rc = reclaim_for_pending(&k, err);
	if (rc == 0)
		rc = grow_into_idle(&k, err);
	if (rc == 0)
		rc = rebalance_jobs(&k, err);
	decision_state_close(&k);
	return rc;
}
