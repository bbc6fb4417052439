/* SPDX-License-Identifier: Apache-2.0 */
/* The line of a long command, on a terminal of the test's own and with its clock: not at once, not too often, with what is left, and gone
 * at the end; nothing at all without a terminal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <pty.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/progress.h"

static double now;

double __wrap_hspmd_now(void);
double __wrap_hspmd_now(void)
{
	return now;
}

/* What has come since the last call. */
static const char *shown(int fd)
{
	static char text[4096];
	fflush(stderr);
	ssize_t n = read(fd, text, sizeof text - 1);
	text[n > 0 ? n : 0] = 0;
	return text;
}

static int open_terminal(int *kept)
{
	int terminal, reader;
	assert_int_equal(openpty(&reader, &terminal, NULL, NULL, NULL), 0);
	*kept = dup(STDERR_FILENO);
	assert_true(*kept >= 0 && dup2(terminal, STDERR_FILENO) >= 0);
	close(terminal);
	assert_int_equal(fcntl(reader, F_SETFL, O_NONBLOCK), 0);
	return reader;
}

static void line_on_a_terminal(void **state)
{
	(void)state;
	int kept, reader = open_terminal(&kept);
	char early[4096], half[4096], soon[4096], later[4096], whole[4096], after[4096], quick[4096];
	hspmd_progress(1, 2); /* nobody has begun a line */
	now = 100;
	hspmd_progress_begin("verify");
	now = 100.4;
	hspmd_progress(4, 8);
	snprintf(early, sizeof early, "%s", shown(reader));
	now = 101;
	hspmd_progress(2, 8);
	snprintf(half, sizeof half, "%s", shown(reader));
	now = 101.1;
	hspmd_progress(3, 8);
	snprintf(soon, sizeof soon, "%s", shown(reader));
	now = 400;
	hspmd_progress(4, 8);
	hspmd_progress(1, 0);
	snprintf(later, sizeof later, "%s", shown(reader));
	now = 500;
	hspmd_progress(8, 8);
	snprintf(whole, sizeof whole, "%s", shown(reader));
	hspmd_progress_end();
	snprintf(after, sizeof after, "%s", shown(reader));
	hspmd_progress_begin("quick");
	hspmd_progress(8, 8);
	hspmd_progress_end();
	snprintf(quick, sizeof quick, "%s", shown(reader));
	dup2(kept, STDERR_FILENO);
	close(kept);
	close(reader);
	assert_string_equal(early, "");
	assert_string_equal(half, "\rverify: [######..................]  25 %, about 3 s more\033[K");
	assert_string_equal(soon, "");
	assert_string_equal(later, "\rverify: [############............]  50 %, about 5 min more\033[K");
	assert_string_equal(whole, "\rverify: [########################] 100 %\033[K");
	assert_string_equal(after, "\r\033[K");
	assert_string_equal(quick, "");
}

static void nothing_without_a_terminal(void **state)
{
	(void)state;
	int ends[2], kept = dup(STDERR_FILENO);
	assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
	dup2(ends[1], STDERR_FILENO);
	close(ends[1]);
	now = 0;
	hspmd_progress_begin("export");
	now = 9;
	hspmd_progress(1, 2);
	hspmd_progress_end();
	char text[4096];
	snprintf(text, sizeof text, "%s", shown(ends[0]));
	dup2(kept, STDERR_FILENO);
	close(kept);
	close(ends[0]);
	assert_string_equal(text, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(line_on_a_terminal),
		cmocka_unit_test(nothing_without_a_terminal),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
