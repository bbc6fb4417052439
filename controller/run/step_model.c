/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/run/step_model.h"

#include "common/log.h"
#include "controller/solver/solver.h"

int run_expected_busy(const struct run_config *c, const struct hspmd_plan *plan, const struct hspmd_cluster *cluster, double *busy_s)
{
	struct hspmd_error err;
	if (!hspmd_plan_busy_time(cluster, c->facts, NULL, c->job->precision, plan, busy_s, &err))
		return 0;
	hspmd_warn("slow devices will not be noticed: %s", err.text);
	return -1;
}
