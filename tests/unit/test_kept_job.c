/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of submitted job files: which stay. (What a job gets of them: test_spank.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/durable.h"
#include "common/format/kept_job.h"

static char folder[] = "/tmp/hspmd-kept-XXXXXX";

static const char *in(const char *name)
{
	static char path[2][PATH_MAX];
	static int turn;
	turn = !turn;
	snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
	return path[turn];
}

static void put(const char *name, const char *text)
{
	struct hspmd_error err;
	assert_int_equal(hspmd_durable_write(in(name), text, strlen(text), &err), 0);
}

static bool there(const char *path)
{
	return access(path, F_OK) == 0;
}

static void last_used(const char *path, long days)
{
	struct timespec now = { .tv_sec = time(NULL) - days * 86400 };
	assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[]){ now, now }, 0), 0);
}

static void submit(const char *name, struct hspmd_kept_job *kept)
{
	struct hspmd_error err;
	assert_int_equal(hspmd_job_keep(in(name), kept, &err), 0);
	assert_non_null(kept->copy);
}

/* A submission removes what no job has used for long: not other files, and nothing of a job that has started since. */
static void old_copies_are_removed(void **state)
{
	static const char *const old[] = { "submitted/0123456789abcdef.json", "submitted/mine.json", "submitted/0123456789abcdef.json.x" };
	struct hspmd_kept_job waiting, other;
	struct hspmd_error err;
	bool changed;
	(void)state;
	put("a.json", "{}");
	put("b.json", "{ }");
	submit("a.json", &waiting);
	for (int i = 0; i < 3; i++) {
		put(old[i], "{}");
		last_used(in(old[i]), HSPMD_JOB_KEPT_DAYS + 1);
	}
	last_used(waiting.copy, HSPMD_JOB_KEPT_DAYS + 1);
	assert_null(hspmd_job_read_kept(in("a.json"), waiting.digest, waiting.copy, &changed, &err)); /* it starts, and is no job */
	submit("b.json", &other);
	assert_true(there(waiting.copy) && there(other.copy));
	assert_false(there(in(old[0])));
	assert_true(there(in(old[1])) && there(in(old[2])));
	hspmd_kept_job_clear(&other);
	/* Not yet; the same file submitted again; and then nothing for long. */
	last_used(waiting.copy, HSPMD_JOB_KEPT_DAYS - 1);
	submit("b.json", &other);
	assert_true(there(waiting.copy));
	hspmd_kept_job_clear(&other);
	last_used(waiting.copy, HSPMD_JOB_KEPT_DAYS + 1);
	submit("a.json", &other);
	assert_true(there(waiting.copy));
	hspmd_kept_job_clear(&other);
	last_used(waiting.copy, HSPMD_JOB_KEPT_DAYS + 1);
	submit("b.json", &other);
	assert_false(there(waiting.copy));
	hspmd_kept_job_clear(&other);
	hspmd_kept_job_clear(&waiting);
}

static int set_up(void **state)
{
	(void)state;
	return mkdtemp(folder) && !setenv("HSPMD_CONTACTS", folder, 1) ? 0 : -1;
}

static int tear_down(void **state)
{
	struct hspmd_error err;
	(void)state;
	return hspmd_remove_tree(folder, &err);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(old_copies_are_removed) };
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
