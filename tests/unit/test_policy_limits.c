/* SPDX-License-Identifier: Apache-2.0 */
/* How hspmd plan --policy applies a policy's limits, and its weight between speed and cost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "controller/cli/policy_limits.h"

static const char site[] =
        "{\"format\": \"hspmd-policy-1\", \"rules\": [{\"name\": \"all\", \"limits\": {\"max_nodes\": 8, \"max_devices\": 64, "
        "\"device_types\": [\"A\", \"B\"], \"max_price_per_hour\": 200}, \"plan\": {\"cost_weight\": 0.25}}]}";

struct fixture {
	char path[64];
	struct hspmd_policy *policy;
	struct hspmd_solve_limits out;
};

static void read_with(struct fixture *f, const char *text, const struct hspmd_solve_limits *asked)
{
	struct hspmd_error err = { "" };
	*f = (struct fixture){ .path = "/tmp/hspmd-limits-XXXXXX" };
	int fd = mkstemp(f->path);
	FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
	int rc = hspmd_policy_limits(f->path, NULL, asked, &f->policy, &f->out, &err);
	unlink(f->path);
	if (rc)
		fail_msg("%s", err.text);
}

static void clear(struct fixture *f)
{
	hspmd_policy_limits_clear(&f->out);
	hspmd_policy_destroy(f->policy);
}

static void the_policy_decides_where_nothing_is_asked(void **state)
{
	(void)state;
	struct fixture f;
	read_with(&f, site, &(struct hspmd_solve_limits){ .cost_weight = NAN });
	assert_int_equal(f.out.max_nodes, 8);
	assert_int_equal(f.out.max_devices, 64);
	assert_int_equal(f.out.type_count, 2);
	assert_float_equal(f.out.max_price_per_hour, 200, 0);
	assert_float_equal(f.out.cost_weight, 0.25, 0);
	clear(&f);
}

static void the_tighter_limit_holds_and_the_weight_is_the_users(void **state)
{
	(void)state;
	const char *const types[] = { "B", "C" };
	struct fixture f;
	read_with(
	        &f, site,
	        &(struct hspmd_solve_limits){
	                .max_nodes = 4, .max_devices = 100, .types = types, .type_count = 2, .max_price_per_hour = 50, .cost_weight = 0 });
	assert_int_equal(f.out.max_nodes, 4);
	assert_int_equal(f.out.max_devices, 64);
	assert_int_equal(f.out.type_count, 1);
	assert_string_equal(f.out.types[0], "B");
	assert_float_equal(f.out.max_price_per_hour, 50, 0);
	assert_float_equal(f.out.cost_weight, 0, 0);
	clear(&f);
	/* Nobody gets more than the policy allows by asking for it. */
	read_with(&f, site, &(struct hspmd_solve_limits){ .max_nodes = 9, .max_price_per_hour = 201 });
	assert_int_equal(f.out.max_nodes, 8);
	assert_float_equal(f.out.max_price_per_hour, 200, 0);
	clear(&f);
}

static void speed_alone_counts_by_itself(void **state)
{
	(void)state;
	struct hspmd_error err = { "" };
	struct fixture f;
	read_with(&f, "{\"format\": \"hspmd-policy-1\", \"rules\": []}", &(struct hspmd_solve_limits){ .cost_weight = NAN });
	assert_float_equal(f.out.cost_weight, 0, 0);
	clear(&f);
	f = (struct fixture){ .policy = NULL };
	assert_int_equal(hspmd_policy_limits(NULL, NULL, &(struct hspmd_solve_limits){ .cost_weight = NAN }, &f.policy, &f.out, &err), 0);
	assert_float_equal(f.out.cost_weight, 0, 0);
	clear(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_policy_decides_where_nothing_is_asked),
		cmocka_unit_test(the_tighter_limit_holds_and_the_weight_is_the_users),
		cmocka_unit_test(speed_alone_counts_by_itself),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
