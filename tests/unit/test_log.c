/* SPDX-License-Identifier: Apache-2.0 */
/* Errors and log lines: their form, and that they stay one line with any content. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/error.h"
#include "common/log.h"
#include "common/log_limit.h"

static int written; /* a file without a name, into which the log is copied */
static int before;  /* standard error as it was */

static int divert(void **state)
{
	(void)state;
	char name[] = "/tmp/hspmd-test-log-XXXXXX";
	written = mkstemp(name);
	unlink(name);
	before = dup(STDERR_FILENO);
	int nowhere = open("/dev/null", O_WRONLY);
	dup2(nowhere, STDERR_FILENO);
	close(nowhere);
	return written < 0 || before < 0 ? -1 : 0;
}

static int restore(void **state)
{
	(void)state;
	dup2(before, STDERR_FILENO);
	close(before);
	close(written);
	return 0;
}

/* Returns the log since the last call. */
static const char *logged(void)
{
	static char text[8192];
	ssize_t n = pread(written, text, sizeof text - 1, 0);
	text[n < 0 ? 0 : n] = '\0';
	assert_int_equal(ftruncate(written, 0), 0);
	assert_int_equal(lseek(written, 0, SEEK_SET), 0);
	return text;
}

static void lines(void **state)
{
	(void)state;
	setenv("HSPMD_LOG", "warning", 1);
	hspmd_log_tee(written);
	hspmd_info("not shown");
	hspmd_warn("%d left", 3);
	assert_string_equal(logged(), "hspmd: warning: 3 left\n");
	hspmd_log_level(HSPMD_LOG_DEBUG);
	hspmd_log_name("hspmd run");
	hspmd_info("shown");
	assert_string_equal(logged(), "hspmd run: shown\n");
	hspmd_debug("two\nlines\033[0m");
	assert_string_equal(logged(), "hspmd run: debug: two?lines?[0m\n");
	errno = ENOENT;
	hspmd_log_time(1);
	hspmd_error_log("x");
	assert_int_equal(errno, ENOENT);
	const char *text = logged();
	int h, m, s, ms, end = 0;
	assert_int_equal(sscanf(text, "%2d:%2d:%2d.%3d hspmd run: error: x\n%n", &h, &m, &s, &ms, &end), 4);
	assert_int_equal(end, strlen(text));
	hspmd_log_time(0);
	char wide[4000];
	memset(wide, 'x', sizeof wide);
	wide[sizeof wide - 1] = '\0';
	hspmd_info("%s", wide);
	text = logged();
	assert_int_equal(strlen(text), 2047);
	assert_int_equal(strchr(text, '\n') - text, 2046);
	hspmd_log_tee(-1);
	hspmd_info("to nobody");
	assert_string_equal(logged(), "");
}

static void errors(void **state)
{
	(void)state;
	struct hspmd_error err;
	assert_int_equal(hspmd_fail(NULL, "nobody listens"), -1);
	assert_int_equal(hspmd_error_prefix(NULL, "x"), -1);
	errno = EACCES;
	assert_int_equal(hspmd_fail_errno(&err, "/x%s", "\n"), -1);
	assert_int_equal(errno, EACCES);
	assert_string_equal(err.text, "/x?: Permission denied");
	assert_int_equal(hspmd_error_prefix(&err, "job %d", 7), -1);
	assert_string_equal(err.text, "job 7: /x?: Permission denied");
	hspmd_fail_memory(&err, "reading");
	assert_string_equal(err.text, "out of memory while reading");
	assert_int_equal(errno, ENOMEM);
	char wide[2 * HSPMD_ERROR_MAX];
	memset(wide, 'x', sizeof wide);
	wide[sizeof wide - 1] = '\0';
	hspmd_fail(&err, "%s", wide);
	assert_int_equal(strlen(err.text), HSPMD_ERROR_MAX - 1);
	hspmd_error_prefix(&err, "p");
	assert_int_equal(strlen(err.text), HSPMD_ERROR_MAX - 1);
	assert_int_equal(strncmp(err.text, "p: xxx", 6), 0);
	for (size_t n = HSPMD_ERROR_MAX - 5; n < HSPMD_ERROR_MAX + 3; n++) {
		hspmd_fail(&err, "%s", "kept");
		hspmd_error_prefix(&err, "%.*s", (int)n, wide);
		assert_true(strlen(err.text) < HSPMD_ERROR_MAX);
		hspmd_fail_errno(&err, "%.*s", (int)n, wide);
		assert_true(strlen(err.text) < HSPMD_ERROR_MAX);
	}
}

/* A flood gives a few lines, then one per interval; no line is forgotten. */
static void limited(void **state)
{
	(void)state;
	struct hspmd_log_limit l = { 0 };
	uint64_t dropped = 0, lines_logged = 0, counted = 0;
	double start = 1e6;
	for (int i = 0; i < 1000; i++)
		lines_logged += hspmd_log_limit_allows(&l, start + 1e-3 * i, &dropped);
	assert_int_equal(lines_logged, HSPMD_LOG_LIMIT_BURST);
	assert_int_equal(dropped, 0);
	for (int i = 0; i < 100; i++)
		if (hspmd_log_limit_allows(&l, start + 2 + i, &dropped)) {
			lines_logged++;
			counted += dropped;
		}
	assert_int_equal(lines_logged, HSPMD_LOG_LIMIT_BURST + 10);
	assert_int_equal(lines_logged + counted + l.dropped, 1100);
	/* After a long silence, a few lines at once again. */
	for (int i = 0; i <= HSPMD_LOG_LIMIT_BURST; i++)
		assert_int_equal(hspmd_log_limit_allows(&l, start + 1e4, &dropped), i < HSPMD_LOG_LIMIT_BURST);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lines),
		cmocka_unit_test(errors),
		cmocka_unit_test(limited),
	};
	return cmocka_run_group_tests_name("log", tests, divert, restore);
}
