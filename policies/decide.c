/* SPDX-License-Identifier: Apache-2.0 */
#include "policies/decide.h"

#include "policies/desk.h"

int hspmd_policy_decide(const struct hspmd_site *s, struct hspmd_decision *d, struct hspmd_error *err)
{
	struct desk k;
	int rc = desk_open(&k, s, d, err);
	if (rc == 0)
		rc = step_limits(&k, err);
	if (rc == 0)
		rc = step_pending(&k, err);
	if (rc == 0)
		rc = step_grow(&k, err);
	if (rc == 0)
		rc = step_rebalance(&k, err);
	desk_close(&k);
	return rc;
}
