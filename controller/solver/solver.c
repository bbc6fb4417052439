/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/solver/solver.h"

#include "controller/solver/report/shortage.h"

#define DIAGNOSIS_S 5.0 /* CPU seconds for finding out why there is no plan */

struct hspmd_plan *hspmd_solve(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts, const struct hspmd_profile *profile,
                               const struct hspmd_solve_request *request, struct hspmd_solve_report *report, struct hspmd_error *err)
{
	bool too_large;
	struct hspmd_plan *plan = hspmd_search_plan(cluster, facts, profile, request, report, &too_large, err);
	if (!plan && too_large)
		hspmd_explain_shortage(cluster, facts, profile, request, DIAGNOSIS_S, err);
	return plan;
}
