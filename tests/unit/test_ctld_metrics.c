/* SPDX-License-Identifier: Apache-2.0 */
/* hspmdctld's metrics page: what jobs say of themselves, behind the labels that the site has chosen, in a form that other people's parsers
 * take. */
#include <arpa/inet.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"
#include "tests/unit/ctld_case.h"

static char page[1 << 16];

static void get_as(struct ctld_case *d, const char *accept)
{
	char request[128];
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)d->metrics), .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	size_t size = 0;
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	int n = snprintf(request, sizeof request, "GET /metrics HTTP/1.0\r\nAccept: %s\r\n\r\n", accept);
	assert_int_equal(write(fd, request, (size_t)n), n);
	for (ssize_t got = 1; got; size += (size_t)got) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		if (poll(&p, 1, CTLD_CASE_PATIENCE_S * 1000) != 1)
			fail_msg("no answer in %d s", CTLD_CASE_PATIENCE_S);
		got = read(fd, page + size, sizeof page - 1 - size);
		assert_true(got >= 0);
	}
	page[size] = 0;
	close(fd);
	const char *body = strstr(page, "\r\n\r\n");
	assert_non_null(body);
	memmove(page, body + 4, strlen(body + 4) + 1);
}

static void get(struct ctld_case *d)
{
	get_as(d, "*/*");
}

/* Whether the page has this line. */
static bool has(const char *line)
{
	size_t n = strlen(line);
	for (const char *at = page; (at = strstr(at, line)); at++)
		if ((at == page || at[-1] == '\n') && at[n] == '\n')
			return true;
	return false;
}

static void expect(const char *line)
{
	if (!has(line))
		fail_msg("no line \"%s\" in\n%s", line, page);
}

static void wait_for(struct ctld_case *d, const char *line)
{
	for (double until = hspmd_now() + CTLD_CASE_PATIENCE_S; get(d), !has(line); ctld_case_turn(d, 20))
		if (hspmd_now() > until)
			expect(line);
}

/* Job 7 + i tells its figures: at this step, with so many times 10 tokens and so many changes. */
static void tell(struct ctld_case *d, int i, int step, int resizes)
{
	json_t *figures = json_pack("{s:i, s:i, s:i, s:f, s:f, s:f, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:i}", "step", step, "generation",
	                            1 + resizes, "devices", 2 + i, "step_s", 0.5, "loss", 2.25, "checkpoint_s", 1000.0 + i, "tokens",
	                            10 * step, "resizes", resizes, "steps_lost", 3 * resizes, "paused_s", 1.5 * resizes, "trained_device_s",
	                            0.5 * step, "paused_device_s", 3.0 * resizes, "lost_device_s", 4.0 * resizes, "of_a_later_version", 1);
	json_t *s = json_pack("{s:i, s:i, s:i, s:f, s:f, s:i, s:o}", "min_nodes", 1, "max_nodes", 3, "nodes", 3, "tokens_per_s", 100.0 + i,
	                      "pause_s", 1.0 + i, "step", step, "figures", figures);
	ctld_client_set_state(d->line[i], s);
	json_decref(s);
}

static int start_with(void **state, unsigned labels)
{
	ctld_case_labels = labels;
	int rc = ctld_case_start(state);
	ctld_case_labels = 1u << CTLD_LABEL_JOB;
	return rc;
}

static int start_by_user_and_account(void **state)
{
	return start_with(state, 1u << CTLD_LABEL_JOB | 1u << CTLD_LABEL_USER | 1u << CTLD_LABEL_ACCOUNT);
}

static int start_by_account(void **state)
{
	return start_with(state, 1u << CTLD_LABEL_ACCOUNT);
}

static int start_without_labels(void **state)
{
	return start_with(state, 0);
}

static void skip_without_page(const struct ctld_case *d)
{
	if (!d->metrics)
		skip();
}

static void test_a_job_has_its_figures(void **state)
{
	struct ctld_case *d = *state;
	skip_without_page(d);
	ctld_case_call(d, 0, 100);
	ctld_case_call(d, 1, 100);
	tell(d, 0, 12, 1);
	wait_for(d, "hspmd_job_step{job=\"7\",user=\"ann\",account=\"phys\"} 12");
	expect("hspmd_job_nodes{job=\"7\",user=\"ann\",account=\"phys\"} 3");
	expect("hspmd_job_devices{job=\"7\",user=\"ann\",account=\"phys\"} 2");
	expect("hspmd_job_loss{job=\"7\",user=\"ann\",account=\"phys\"} 2.25");
	expect("hspmd_job_step_seconds{job=\"7\",user=\"ann\",account=\"phys\"} 0.5");
	expect("hspmd_job_generation{job=\"7\",user=\"ann\",account=\"phys\"} 2");
	expect("hspmd_job_tokens_total{job=\"7\",user=\"ann\",account=\"phys\"} 120");
	expect("hspmd_job_lost_steps_total{job=\"7\",user=\"ann\",account=\"phys\"} 3");
	expect("hspmd_job_device_seconds_total{job=\"7\",user=\"ann\",account=\"phys\",state=\"trained\"} 6");
	expect("hspmd_job_device_seconds_total{job=\"7\",user=\"ann\",account=\"phys\",state=\"paused\"} 3");
	expect("hspmd_job_device_seconds_total{job=\"7\",user=\"ann\",account=\"phys\",state=\"lost\"} 4");
	assert_non_null(strstr(page, "\nhspmd_job_checkpoint_age_seconds{job=\"7\","));
	/* Job 8 has told none yet; its account is written as the format wants it. */
	expect("hspmd_job_nodes{job=\"8\",user=\"ann\",account=\"a\\\"b\\\\c\"} 3");
	assert_null(strstr(page, "hspmd_job_step{job=\"8\""));
	/* What came before the daemon knew the job is no news; a further change is. */
	assert_int_equal(ctld_case_count_said(d, "job 7: resized"), 0);
	tell(d, 0, 15, 2);
	ctld_case_wait_said(d, "job 7: resized: trains on 2 devices after a pause of 1.5 s; 3 steps lost");
	/* Nobody knows what a job does whose controller is gone; one that has ended leaves nothing behind. */
	ctld_client_destroy(d->line[0]);
	d->line[0] = NULL;
	ctld_case_wait_said(d, "job 7: gone");
	get(d);
	expect("hspmd_job_nodes{job=\"7\",user=\"ann\",account=\"phys\"} 3");
	assert_null(strstr(page, "hspmd_job_step{job=\"7\""));
	d->world->job_ended = true;
	ctld_case_write(d, "job_state", "");
	wait_for(d, "hspmd_jobs{reachable=\"no\"} 0");
	assert_null(strstr(page, "job=\"7\""));
	expect("hspmd_job_nodes{job=\"8\",user=\"ann\",account=\"a\\\"b\\\\c\"} 3");
}

/* Only what belongs to no single job, with the counters of what has happened since the daemon has known the job. */
static void test_jobs_of_an_account_count_together(void **state)
{
	struct ctld_case *d = *state;
	skip_without_page(d);
	ctld_case_call(d, 0, 100);
	tell(d, 0, 12, 1);
	wait_for(d, "hspmd_job_devices{account=\"phys\"} 2");
	assert_null(strstr(page, "hspmd_job_step"));
	assert_null(strstr(page, "job=\"7\""));
	tell(d, 0, 15, 2);
	wait_for(d, "hspmd_job_tokens_total{account=\"phys\"} 30");
	expect("hspmd_job_resizes_total{account=\"phys\"} 1");
	expect("hspmd_job_device_seconds_total{account=\"phys\",state=\"trained\"} 1.5");
	tell(d, 0, 4, 0); /* its controller was started again, and counts from 0 */
	wait_for(d, "hspmd_job_tokens_total{account=\"phys\"} 70");
	expect("hspmd_job_resizes_total{account=\"phys\"} 1");
}

static void test_all_jobs_count_together(void **state)
{
	struct ctld_case *d = *state;
	skip_without_page(d);
	for (int i = 0; i < 2; i++) {
		ctld_case_call(d, i, 100);
		tell(d, i, 10, 0);
	}
	wait_for(d, "hspmd_job_devices 5");
	expect("hspmd_job_nodes 6");
	expect("hspmd_job_tokens_per_second 201");
	expect("hspmd_job_pause_seconds 2");
	tell(d, 0, 11, 1);
	tell(d, 1, 12, 0);
	wait_for(d, "hspmd_job_tokens_total 30");
	expect("hspmd_job_device_seconds_total{state=\"lost\"} 4");
}

static void check_page(const struct ctld_case *d, const char *command)
{
	char line[512];
	ctld_case_write(d, "page", page);
	snprintf(line, sizeof line, "cd %s && %s", d->folder, command);
	assert_int_equal(system(line), 0);
}

/* The strict parser of Prometheus's Python client, and promtool, which reads the older format. */
static void test_other_parsers_take_the_page(void **state)
{
	struct ctld_case *d = *state;
	skip_without_page(d);
	if (system("command -v promtool >/dev/null && /usr/bin/python3 -c 'import prometheus_client' 2>/dev/null"))
		skip();
	for (int i = 0; i < 2; i++) {
		ctld_case_call(d, i, 100);
		tell(d, i, 10, 1);
	}
	wait_for(d, "hspmd_job_step{job=\"8\",user=\"ann\",account=\"a\\\"b\\\\c\"} 10");
	expect("# EOF");
	check_page(d, "/usr/bin/python3 -c 'from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse\n"
	              "names = {(s.name, s.labels.get(\"account\")) for f in parse(open(\"page\").read()) for s in f.samples}\n"
	              "assert (\"hspmd_job_tokens_total\", \"a\\\"b\\\\c\") in names, names\n"
	              "assert len(names) > 40, names'");
	get_as(d, "text/plain;version=0.0.4");
	expect("# TYPE hspmd_job_tokens_total counter");
	check_page(d, "promtool check metrics <page");
	get_as(d, "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5");
	expect("# EOF");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_a_job_has_its_figures, start_by_user_and_account, ctld_case_stop),
		cmocka_unit_test_setup_teardown(test_jobs_of_an_account_count_together, start_by_account, ctld_case_stop),
		cmocka_unit_test_setup_teardown(test_all_jobs_count_together, start_without_labels, ctld_case_stop),
		cmocka_unit_test_setup_teardown(test_other_parsers_take_the_page, start_by_user_and_account, ctld_case_stop),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
