/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/policy.h"
#include "fuzz.h"
#include "policies/limits.h"
#include "policies/match.h"

/* Every query gets an answer: a rule with its terms, or a reason. */
static void ask(const struct hspmd_policy *p, const char *partition, const char *policy)
{
	struct hspmd_policy_subject subject = { .user = "ann", .account = "lab", .partition = partition, .policy = policy };
	struct hspmd_policy_request wish = { .nodes = 12, .devices = 96, .jobs_of_user = 3, .price_per_hour = 50 };
	struct hspmd_error err = { "" };
	int rules[8];
	int n = hspmd_policy_candidates(p, &subject, rules, 8, &err);
	fuzz_check(n != 0 && n <= 8, "a job has candidates or is refused");
	if (n < 0)
		fuzz_check_error(&err);
	for (int i = 0; i < n; i++)
		if (hspmd_policy_check_limits(p, rules[i], &wish, &err) < 0)
			fuzz_check_error(&err);
}

static json_t *written(const json_t *value, struct hspmd_error *err)
{
	struct hspmd_policy *p = hspmd_policy_create(err);
	fuzz_check(p != NULL, "there is memory");
	if (hspmd_policy_add_json(p, (json_t *)value, "input", err) < 0) {
		hspmd_policy_destroy(p);
		return NULL;
	}
	ask(p, "spot1", NULL);
	ask(p, NULL, p->rule_count ? p->rules[p->rule_count - 1].name : "none");
	json_t *o = hspmd_policy_to_json(p);
	hspmd_policy_destroy(p);
	fuzz_check(o != NULL, "what was read can be written");
	return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	return fuzz_round_trip(data, size, written);
}
