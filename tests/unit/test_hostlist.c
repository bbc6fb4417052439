/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hostlist.h"
#include "common/name_list.h"

static struct hspmd_error err;

/* Expanding `text` gives the names of `wanted`, which are separated by spaces. */
static void expect_names(const char *text, const char *wanted)
{
	char **names, joined[4096] = "";
	int n = hspmd_hostlist_expand(text, 1000, &names, &err);
	assert_true(n > 0);
	for (int i = 0; i < n; i++) {
		strcat(joined, i ? " " : "");
		strcat(joined, names[i]);
	}
	assert_string_equal(joined, wanted);
	hspmd_hostlist_free(names, n);
}

static void expands(void **state)
{
	(void)state;
	expect_names("login", "login");
	expect_names("n[0-3,7]", "n0 n1 n2 n3 n7");
	expect_names("n[0-1],login,gpu[08-11]-ib", "n0 n1 login gpu08-ib gpu09-ib gpu10-ib gpu11-ib");
	expect_names("r[1-2]n[0-1]", "r1n0 r1n1 r2n0 r2n1");
	expect_names("r[1,3]-[01-02]x", "r1-01x r1-02x r3-01x r3-02x");
	expect_names("n[9-10]", "n9 n10");
	expect_names("n[000-001]", "n000 n001");
	expect_names("[1-2]", "1 2");
}

static void refuses(void **state)
{
	(void)state;
	static const char *const wrong[] = { "",
		                             ",",
		                             "a,",
		                             ",a",
		                             "a,,b",
		                             "n[",
		                             "n[]",
		                             "n[1",
		                             "n[1-",
		                             "n[1-]",
		                             "n[-1]",
		                             "n[2-1]",
		                             "n[1,]",
		                             "n]",
		                             "n[1]]",
		                             "n[1-2-3]",
		                             "n[a]",
		                             "n[[1]]",
		                             "a b",
		                             "a:1",
		                             "a/b",
		                             "n[0000000000000000001]",
		                             "n[0-999999999999]",
		                             "n[0-99]x[0-99]",
		                             "n[0-500],m[0-500]",
		                             "\xc3\xa9" };
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		char **names = NULL;
		int n = hspmd_hostlist_expand(wrong[i], 1000, &names, &err);
		if (n >= 0)
			fail_msg("\"%s\" was accepted", wrong[i]);
		assert_int_equal(strncmp(err.text, "host list \"", 11), 0);
	}
	char **names, long_name[400];
	memset(long_name, 'x', sizeof long_name);
	long_name[399] = '\0';
	assert_int_equal(hspmd_hostlist_expand(long_name, 10, &names, &err), -1);
	strcpy(long_name + 250, "[0-9]yyyyyyyy");
	assert_int_equal(hspmd_hostlist_expand(long_name, 10, &names, &err), -1);
	assert_int_equal(hspmd_hostlist_expand("n[0-9]", 9, &names, &err), -1);
	assert_string_equal(err.text, "host list \"n[0-9]\": more than 9 names");
	assert_int_equal(hspmd_hostlist_expand("n[0-8]", 9, &names, &err), 9);
	hspmd_hostlist_free(names, 9);
	hspmd_hostlist_free(NULL, 0);
}

static void expect_fold(const char *text, const char *folded)
{
	char **names;
	int n = hspmd_hostlist_expand(text, 1000, &names, &err);
	assert_true(n > 0);
	char *got = hspmd_hostlist_fold(names, n);
	assert_string_equal(got, folded);
	free(got);
	hspmd_hostlist_free(names, n);
}

static void folds(void **state)
{
	(void)state;
	expect_fold("login", "login");
	expect_fold("n0,n1,n2,n3,n7", "n[0-3,7]");
	expect_fold("n0", "n0");
	expect_fold("n2,n1,n0", "n[2,1,0]");
	expect_fold("n8,n9,n10", "n[8-10]");
	expect_fold("n08,n09,n10,n100", "n[08-10,100]");
	expect_fold("n8,n09", "n[8,09]");
	expect_fold("a1,b2,b3,c", "a1,b[2-3],c");
	expect_fold("r1n1,r1n2,r2n1", "r1n[1-2],r2n1");
	expect_fold("gpu01-ib,gpu02-ib,gpu03", "gpu[01-02]-ib,gpu03");
	expect_fold("n1,n1", "n[1,1]");
	char *none = hspmd_hostlist_fold(NULL, 0);
	assert_string_equal(none, "");
	free(none);
}

/* For any list of names: folding and expanding returns it, in its order. */
static void round_trips(void **state)
{
	(void)state;
	unsigned seed = 1;
	for (int round = 0; round < 2000; round++) {
		char names[12][32], *list[12];
		int n = 1 + (int)(rand_r(&seed) % 12);
		for (int i = 0; i < n; i++) {
			static const char *const forms[] = { "n%d", "n%02d", "n%03d", "r%dx", "r1-%d", "%d", "m", "x%d-ib0" };
			int kind = round % 3 ? round % 7 : (int)(rand_r(&seed) % 8);
			snprintf(names[i], sizeof names[i], forms[kind], (int)(rand_r(&seed) % 2 ? rand_r(&seed) % 13 : 98 + i)); // NOLINT
			list[i] = names[i];
		}
		char *folded = hspmd_hostlist_fold(list, n), **again;
		int m = hspmd_hostlist_expand(folded, 100, &again, &err);
		assert_int_equal(m, n);
		for (int i = 0; i < n; i++)
			assert_string_equal(again[i], names[i]);
		hspmd_hostlist_free(again, m);
		free(folded);
	}
}

static void names_are_found_whole(void **state)
{
	(void)state;
	static const struct {
		const char *list, *name;
		bool there;
	} cases[] = {
		{ "gpu", "gpu", true },    { "a,gpu", "gpu", true }, { "gpu,a", "gpu", true },          { "a,gpu,b", "gpu", true },
		{ "gpu2", "gpu", false },  { "gp", "gpu", false },   { "xgpu,a", "gpu", false },        { "", "gpu", false },
		{ "a,,gpu", "gpu", true }, { ",", "gpu", false },    { "price:2,gpu", "price", false },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		assert_int_equal(hspmd_name_list_has(cases[i].list, cases[i].name, strlen(cases[i].name)), cases[i].there);
	assert_true(hspmd_name_list_has("a,gpu", "gpu&fast", 3)); /* only so many characters are read */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(expands),
		cmocka_unit_test(refuses),
		cmocka_unit_test(folds),
		cmocka_unit_test(round_trips),
		cmocka_unit_test(names_are_found_whole),
	};
	return cmocka_run_group_tests_name("hostlist", tests, NULL, NULL);
}
