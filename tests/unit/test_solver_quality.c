/* SPDX-License-Identifier: Apache-2.0 */
/* Plans for small problems are as fast as exhaustive search finds any: within 1 % always, equal in nine of ten. Forty problems; with HSPMD_LONG
 * three hundred and some larger ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/solver/instances.h"
#include "tests/unit/solver_inputs.h"

static struct hspmd_plan *solve(const struct instance *in, struct hspmd_error *err)
{
	struct hspmd_solve_request r = { .global_batch = in->global_batch };
	return hspmd_solve(in->cluster, NULL, in->profile, &r, NULL, err);
}

static void compare(int first, int last, int devices, int layers)
{
	int solved = 0, equal = 0;
	for (int seed = first; seed <= last; seed++) {
		struct hspmd_error err = { "" };
		struct instance in;
		assert_int_equal(instance_new((unsigned)seed, devices, layers, &in, &err), 0);
		struct hspmd_plan *p = solve(&in, &err);
		double ours = p ? p->predicted.step_s : INFINITY;
		struct hspmd_plan *fastest = fastest_plan(&in, ours, &err);
		double best = fastest ? fastest->predicted.step_s : ours;
		if (!p && fastest)
			fail_msg("problem %d: no plan found, but there is one of %g s", seed, best);
		if (p) {
			check_plan(p, in.cluster, in.profile->layer_count);
			solved++;
			equal += ours <= best * (1 + 1e-6);
			if (ours > 1.01 * best)
				fail_msg("problem %d: %g s, the fastest plan takes %g s", seed, ours, best);
		}
		hspmd_plan_destroy(p);
		hspmd_plan_destroy(fastest);
		instance_free(&in);
	}
	assert_true(solved >= 0.9 * (last - first + 1));
	assert_true(equal >= 0.9 * solved);
}

static void small_problems_are_solved_to_optimality(void **state)
{
	(void)state;
	compare(1, getenv("HSPMD_LONG") ? 300 : 40, 5, 6);
}

static void larger_ones_too(void **state)
{
	(void)state;
	if (!getenv("HSPMD_LONG"))
		skip();
	compare(1000, 1100, 7, 8);
}

/* The same problem twice: the same plan to the bit. */
static void solving_is_deterministic(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= 20; seed++) {
		struct hspmd_error err = { "" };
		struct instance in;
		assert_int_equal(instance_new(seed, 8, 10, &in, &err), 0);
		struct hspmd_plan *a = solve(&in, &err), *b = solve(&in, &err);
		assert_int_equal(!a, !b);
		json_t *x = a ? hspmd_plan_to_json(a, in.cluster) : NULL, *y = b ? hspmd_plan_to_json(b, in.cluster) : NULL;
		assert_true(x == y || json_equal(x, y));
		json_decref(x);
		json_decref(y);
		hspmd_plan_destroy(a);
		hspmd_plan_destroy(b);
		instance_free(&in);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_problems_are_solved_to_optimality),
		cmocka_unit_test(larger_ones_too),
		cmocka_unit_test(solving_is_deterministic),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
