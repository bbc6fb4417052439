/* SPDX-License-Identifier: Apache-2.0 */
#include "common/log_limit.h"

bool hspmd_log_limit_allows(struct hspmd_log_limit *l, double now, uint64_t *dropped)
{
	if (l->until < now)
		l->until = now;
	if (l->until - now > (HSPMD_LOG_LIMIT_BURST - 1) * HSPMD_LOG_LIMIT_EVERY_S) {
		l->dropped++;
		return false;
	}
	l->until += HSPMD_LOG_LIMIT_EVERY_S;
	*dropped = l->dropped;
	l->dropped = 0;
	return true;
}
