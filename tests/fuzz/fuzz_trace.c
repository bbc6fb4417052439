/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/trace.h"
#include "fuzz.h"
#include "policies/simulate.h"

static const char everything[] =
        "{\"format\": \"hspmd-policy-1\", \"rules\": [{\"name\": \"all\", \"match\": {\"policy\": [\"*\"]}, \"grow\": {\"into_idle\": true,"
        "\"after_idle_s\": 1, \"cooldown_s\": 5}, \"shrink\": {\"for_pending\": \"any\", \"cooldown_s\": 5},"
        "\"share\": {\"by\": \"relative\", \"rebalance\": true}}]}";

static const struct hspmd_policy *policy(void)
{
	static struct hspmd_policy *p;
	if (!p && (p = hspmd_policy_create(NULL)))
		fuzz_check(hspmd_policy_add_text(p, everything, strlen(everything), "policy", NULL) == 0, "the policy is right");
	fuzz_check(p != NULL, "there is memory");
	return p;
}

/* Any trace that is accepted can be replayed, and its accounts balance. */
static void replay(const struct hspmd_trace *t)
{
	if (t->node_count > 64 || t->job_count > 16 || t->event_count > 64)
		return;
	for (int m = 0; m < 3; m++) {
		struct hspmd_policy_sim_options options = hspmd_policy_sim_defaults;
		struct hspmd_policy_sim_result r;
		struct hspmd_error err = { "" };
		options.mode = (enum hspmd_policy_sim_mode)m;
		fuzz_check(hspmd_policy_simulate(policy(), t, &options, &r, &err) == 0, "a trace can be replayed");
		fuzz_check(r.used_node_s <= r.node_s * (1 + 1e-9) + 1e-3, "no more nodes are used than there are");
		fuzz_check(r.tokens >= -1e-6 * (1 + r.lost_tokens), "no tokens are owed");
		fuzz_check(r.rigid_done <= r.rigid_started && r.rigid_started <= r.rigid, "jobs end once");
	}
}

static json_t *written(const json_t *value, struct hspmd_error *err)
{
	struct hspmd_trace *t = hspmd_trace_from_json((json_t *)value, "input", err);
	if (!t)
		return NULL;
	replay(t);
	json_t *o = hspmd_trace_to_json(t);
	hspmd_trace_destroy(t);
	fuzz_check(o != NULL, "what was read can be written");
	return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	return fuzz_round_trip(data, size, written);
}
