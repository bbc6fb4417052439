/* SPDX-License-Identifier: Apache-2.0 */
/* Liveput in its limiting cases, and against Monte Carlo simulation. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "policies/copies.h"
#include "policies/liveput.h"
#include "tests/unit/snapshot_maker.h"

static double curve[16];

static void fill_curve(double power)
{
	for (int i = 0; i < 16; i++)
		curve[i] = 100 * pow(i + 1, power);
}

static void test_without_risk_it_is_throughput(void **state)
{
	(void)state;
	fill_curve(1);
	struct hspmd_liveput_plan p = { .nodes = 8, .spares = 2, .tokens_per_s = curve, .pause_s = 10, .rollback_s = 100 };
	struct hspmd_risk none = { 0, 0 };
	assert_float_equal(hspmd_liveput(&p, &none, 50), 600 * 50, 1e-6);
}

/* One simulated day: nodes are lost one by one, and each loss stops the work for the time that it costs. */
static double dice(const struct hspmd_liveput_plan *p, const struct hspmd_risk *risk, double horizon, uint64_t *seed)
{
	double t = 0, tokens = 0;
	double cost = p->pause_s + hspmd_state_loss_probability(risk, p->replicas) * p->rollback_s;
	double stalled_till = 0;
	for (int left = p->nodes; left > 0 && t < horizon; left--) {
		double next = fmin(t - log(1 - maker_random(seed)) / (left * risk->losses_per_s), horizon);
		int working = left < p->nodes - p->spares ? left : p->nodes - p->spares;
		tokens += p->tokens_per_s[working - 1] * fmax(0, next - fmax(t, stalled_till));
		t = next;
		stalled_till = t + cost;
	}
	return tokens;
}

static void test_against_dice(void **state)
{
	(void)state;
	fill_curve(0.9);
	struct hspmd_liveput_plan p = { .nodes = 10, .spares = 1, .tokens_per_s = curve, .replicas = 1, .pause_s = 5, .rollback_s = 60 };
	struct hspmd_risk risk = { 1.0 / 7200, 0.2 };
	uint64_t seed = 5;
	double sum = 0, horizon = 3600;
	int runs = 20000;
	for (int i = 0; i < runs; i++)
		sum += dice(&p, &risk, horizon, &seed);
	assert_float_equal(hspmd_liveput(&p, &risk, horizon) / (sum / runs), 1, 0.01);
}

static void test_risk_decides_between_plans(void **state)
{
	(void)state;
	static double whole[8], copied[8];
	fill_curve(1);
	for (int i = 0; i < 8; i++) {
		whole[i] = curve[i];
		copied[i] = curve[i] * 0.97; /* keeping a copy costs 3 % */
	}
	const struct hspmd_liveput_plan plans[] = {
		{ .nodes = 8, .tokens_per_s = whole, .pause_s = 5, .rollback_s = 300 },
		{ .nodes = 8, .tokens_per_s = copied, .replicas = 1, .pause_s = 5, .rollback_s = 300 },
	};
	struct hspmd_risk calm = { 1e-7, 0.1 }, rough = { 1.0 / 3600, 0.1 };
	assert_int_equal(hspmd_liveput_best(plans, 2, &calm, 3600), 0);
	assert_int_equal(hspmd_liveput_best(plans, 2, &rough, 3600), 1);
	assert_int_equal(hspmd_liveput_best(plans, 0, &rough, 3600), -1);
	/* If one event may take a copy with its original, a second copy pays off. */
	assert_float_equal(hspmd_state_loss_probability(&rough, 2), 0.01, 1e-12);
}

static void test_risk_decides_on_copies(void **state)
{
	(void)state;
	struct hspmd_copies_problem c = {
		.nodes = 16, .least = 0, .most = 4, .state_bytes = 16e9, .bytes_per_s = 1e9, .every_s = 60, .pause_s = 5, .rollback_s = 900
	};
	const struct hspmd_risk never = { 0, 0 }, seldom = { 1e-9, 0.01 }, alone = { 1e-5, 0 }, racks = { 1e-4, 0.5 };
	assert_int_equal(hspmd_copies_choose(&c, &never, 3600), 0);
	/* One copy always costs 1/61 of the rate: too much if nodes are hardly ever lost, and one is enough if they are lost
	 * independently. */
	assert_int_equal(hspmd_copies_choose(&c, &seldom, 3600), 0);
	c.state_bytes = 1e9;
	assert_int_equal(hspmd_copies_choose(&c, &alone, 3600), 1);
	assert_true(hspmd_copies_choose(&c, &racks, 3600) >= 2);
	/* At least the copies of the policy, and no more than there are other nodes. */
	c.least = 2;
	assert_int_equal(hspmd_copies_choose(&c, &never, 3600), 2);
	assert_int_equal(hspmd_copies_choose(&c, &alone, 3600), 2);
	c.nodes = 2;
	assert_int_equal(hspmd_copies_choose(&c, &racks, 3600), 1);
	c.nodes = 1;
	assert_int_equal(hspmd_copies_choose(&c, &racks, 3600), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_without_risk_it_is_throughput),
		cmocka_unit_test(test_against_dice),
		cmocka_unit_test(test_risk_decides_between_plans),
		cmocka_unit_test(test_risk_decides_on_copies),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
