/* SPDX-License-Identifier: Apache-2.0 */
/* libhspmd's call of the solver, for a net that a program builds. */
#include "common/error.h"

#include <limits.h>
#include <stdlib.h>

#include "controller/solver/solver.h"
#include "runtime/facts/facts.h"
#include "runtime/lib/training.h"

static struct hspmd_plan *solve(const struct hspmd_cluster *cluster, const struct hspmd_graph_source *source, int global_batch, int seq_len,
                                struct hspmd_error *err)
{
	struct hspmd_model_facts *facts = hspmd_model_facts_build(source, "net", seq_len, err);
	struct hspmd_solve_request request = { .global_batch = global_batch, .seq_len = seq_len };
	struct hspmd_solve_report report = { 0 };
	struct hspmd_plan *plan = facts ? hspmd_solve(cluster, facts, NULL, &request, &report, err) : NULL;
	hspmd_solve_report_clear(&report);
	hspmd_model_facts_destroy(facts);
	return plan;
}

char *hspmd_training_solve(struct hspmd_training *t, int64_t global_batch, int64_t seq_len, struct hspmd_error *err)
{
	const struct hspmd_cluster *cluster = hspmd_training_get_cluster(t);
	struct hspmd_graph_source source;
	int bad = 0;
	if (!cluster)
		bad = hspmd_fail(err, "no cluster: call hspmd_training_cluster before hspmd_training_solve");
	else if (global_batch < 1 || global_batch > INT_MAX || seq_len < 1 || seq_len > INT_MAX)
		bad = hspmd_fail(err, "global batch %lld of %lld positions: expected 1..%d of both", (long long)global_batch,
		                 (long long)seq_len, INT_MAX);
	if (bad || hspmd_training_get_source(t, &source, err))
		return NULL;
	struct hspmd_plan *plan = solve(cluster, &source, (int)global_batch, (int)seq_len, err);
	json_t *json = plan ? hspmd_plan_to_json(plan, cluster) : NULL;
	char *text = json ? json_dumps(json, JSON_INDENT(1)) : NULL;
	json_decref(json);
	if (plan && !text)
		hspmd_fail_memory(err, "writing a plan");
	if (text)
		hspmd_training_take_plan(t, plan);
	else
		hspmd_plan_destroy(plan);
	return text;
}
