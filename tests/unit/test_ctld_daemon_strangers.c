/* SPDX-License-Identifier: Apache-2.0 */
/* hspmdctld (ctld_case.h) and clients: those of other versions are understood; hostile ones change nothing and are logged once. */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/clock.h"
#include "common/log_limit.h"
#include "controller/ctld_client/protocol.h"
#include "tests/unit/ctld_case.h"

static struct hspmd_stream *stranger_calls(const struct ctld_case *d, char *nonce)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)d->port), .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	json_t *challenge = NULL;
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	struct hspmd_stream *s = hspmd_stream_create(fd, CTLD_FRAME, 8u << 20, NULL);
	assert_non_null(s);
	assert_int_equal(hspmd_stream_receive(s, CTLD_CASE_PATIENCE_S, &challenge, NULL), 1);
	snprintf(nonce, HSPMD_NONCE_HEX, "%s", json_string_value(json_object_get(challenge, "nonce")));
	json_decref(challenge);
	return s;
}

static json_t *hello_as(const char *role, const struct hspmd_auth *who, const char *nonce, int job)
{
	json_t *content = json_pack("{s:s, s:i, s:s}", "role", role, "job", job, "nonce", "n");
	return greeting_hello(&ctld_case_greeting, who, nonce, content);
}

static json_t *hello(const struct hspmd_auth *who, const char *nonce, int job)
{
	return hello_as("controller", who, nonce, job);
}

/* The daemon closes the connection, with or without a reason. */
static void expect_end(struct hspmd_stream *s)
{
	json_t *m = NULL;
	double until = hspmd_now() + CTLD_CASE_PATIENCE_S;
	while (hspmd_stream_receive(s, CTLD_CASE_PATIENCE_S, &m, NULL) == 1) {
		const char *type = json_string_value(json_object_get(m, "type"));
		assert_true(type && (!strcmp(type, "refused") || !strcmp(type, "welcome") || !strcmp(type, "risk")));
		json_decref(m);
	}
	assert_true(hspmd_now() < until);
	hspmd_stream_destroy(s);
}

static void say(struct hspmd_stream *s, json_t *m)
{
	hspmd_stream_send(s, m, NULL);
	json_decref(m);
}

enum { FORGED, REPLAYED, FOREIGN, OVERSIZED, NOISE, OUT_OF_TURN, ILL_KINDS };

static void mean_it_ill(const struct ctld_case *d, int kind)
{
	static const char large[] = "HSP1\x7f\xff\xff\xff", noise[] = "GET / HTTP/1.1\r\n\r\n";
	char nonce[HSPMD_NONCE_HEX], old[HSPMD_NONCE_HEX];
	struct hspmd_stream *s = stranger_calls(d, nonce), *before;
	switch (kind) {
	case FORGED:
		say(s, hello(d->stranger, nonce, 7));
		break;
	case REPLAYED: /* job 7's own hello, but of another connection */
		before = stranger_calls(d, old);
		say(s, hello(d->auth, old, 7));
		hspmd_stream_destroy(before);
		break;
	case FOREIGN:
		say(s, hello(d->auth, nonce, 9));
		break;
	case OVERSIZED:
		assert_int_equal(write(hspmd_stream_fd(s), large, 8), 8);
		break;
	case NOISE:
		assert_int_equal(write(hspmd_stream_fd(s), noise, sizeof noise - 1), (ssize_t)sizeof noise - 1);
		break;
	case OUT_OF_TURN:
		say(s, json_pack("{s:s, s:i, s:i, s:i}", "type", "state", "min_nodes", 1, "max_nodes", 99, "nodes", 99));
		break;
	}
	expect_end(s);
}

static void test_the_ill_meaning_change_nothing_and_fill_no_log(void **state)
{
	struct ctld_case *d = *state;
	const char *word = "refused a connection from ";
	enum { OF_EACH = 40, LINE_KINDS = 3 }; /* not proved, not wanted, no message */
	ctld_case_call(d, 0, 100);
	double began = hspmd_now();
	for (int i = 0; i < OF_EACH * ILL_KINDS; i++)
		mean_it_ill(d, i % ILL_KINDS);
	double took = hspmd_now() - began;
	ctld_case_turn(d, 20);
	ctld_case_wait_said(d, word);
	if (ctld_case_count_said(d, word) > LINE_KINDS * (HSPMD_LOG_LIMIT_BURST + (int)(took / HSPMD_LOG_LIMIT_EVERY_S)))
		fail_msg("told of %d times in %.0f s:\n%s", ctld_case_count_said(d, word), took, d->said);
	/* The honest controller is still connected, and no message was attributed to it or another. */
	assert_true(ctld_client_is_connected(d->line[0]));
	assert_int_equal(ctld_case_count_said(d, ": greeting: "), 1);
	assert_int_equal(ctld_case_count_said(d, ": gone: "), 0);
	d->world->waits = true;
	ctld_case_write(d, "job_state", "");
	json_decref(ctld_case_expect_request(d, 0, "shrink", 2));
}

/* A user who proves himself connects and disconnects all the time, also for jobs that do not exist. That does not fill the log. */
static void test_coming_and_going_fills_no_log(void **state)
{
	struct ctld_case *d = *state;
	char nonce[HSPMD_NONCE_HEX];
	double began = hspmd_now();
	for (int i = 0; i < 60; i++) {
		struct hspmd_stream *s = stranger_calls(d, nonce);
		json_t *welcome = NULL;
		say(s, hello(d->auth, nonce, i % 3 ? 7 : 1000 + i));
		assert_int_equal(hspmd_stream_receive(s, CTLD_CASE_PATIENCE_S, &welcome, NULL), 1);
		json_decref(welcome);
		hspmd_stream_destroy(s);
		ctld_case_turn(d, 20);
	}
	ctld_case_call(d, 1, 100);
	int spans = 1 + (int)((hspmd_now() - began) / 60), lines = ctld_case_count_said(d, "job 7: ");
	if (lines > 6 * spans)
		fail_msg("%d lines:\n%s", lines, d->said);
	assert_int_equal(ctld_case_count_said(d, "job 10"), 0);
}

/* A process that holds hspmdctld's port but runs as another user than the trusted one learns nothing of the job. */
static void test_a_port_that_another_holds_is_not_trusted(void **state)
{
	struct ctld_case *d = *state;
	char where[96];
	snprintf(where, sizeof where, "%u@127.0.0.1:%d", (unsigned)getuid() + 1, d->port);
	d->line[0] = ctld_client_create(where, 7, d->auth, NULL);
	assert_non_null(d->line[0]);
	ctld_case_set_state(d, 0, 100);
	for (double until = hspmd_now() + CTLD_CASE_PATIENCE_S; !strstr(ctld_client_last_error(d->line[0]), "is held by user");
	     ctld_case_turn(d, 20))
		if (ctld_client_is_connected(d->line[0]) || hspmd_now() > until)
			fail_msg("the line is %s: %s", ctld_client_is_connected(d->line[0]) ? "up" : "down",
			         ctld_client_last_error(d->line[0]));
}

/* The next message of this type; others are skipped. */
static json_t *receive_type(const struct ctld_case *d, struct hspmd_stream *s, const char *type)
{
	json_t *m = NULL;
	while (hspmd_stream_receive(s, CTLD_CASE_PATIENCE_S, &m, NULL) == 1) {
		const char *got = json_string_value(json_object_get(m, "type"));
		if (got && !strcmp(got, type))
			return m;
		json_decref(m);
		m = NULL;
	}
	fail_msg("no message \"%s\"; it said:\n%s", type, d->said);
	return NULL;
}

static void expect_welcome(const struct ctld_case *d, struct hspmd_stream *s)
{
	json_t *m = receive_type(d, s, "welcome");
	assert_int_equal(greeting_welcomed(&ctld_case_greeting, d->auth, s, m), 0);
	json_decref(m);
}

/* A daemon understands controllers and viewers of other versions, as running jobs outlive its upgrade: the names of messages and members
 * are written out here, because they must never change. */
static void test_the_names_on_the_wire_stay(void **state)
{
	struct ctld_case *d = *state;
	char nonce[HSPMD_NONCE_HEX];
	d->world->waits = true;
	struct hspmd_stream *controller = stranger_calls(d, nonce);
	say(controller, hello(d->auth, nonce, 7));
	expect_welcome(d, controller);
	say(controller, json_pack("{s:s, s:i, s:i, s:s, s:i, s:f, s:[f, f, f], s:{s:f}, s:f, s:f, s:I, s:[i]}", "type", "state",
	                          "min_nodes", 1, "max_nodes", 3, "policy", "any", "nodes", 3, "tokens_per_s", 280.0, "curve", 100.0, 190.0,
	                          280.0, "worth", "n0", 1.0, "pause_s", 1.0, "lost_s", 1.0, "step", (json_int_t)5, "members", 10));
	json_t *risk = receive_type(d, controller, "risk");
	assert_true(json_is_number(json_object_get(risk, "losses_per_node_s")) && json_is_number(json_object_get(risk, "together")));
	json_t *ask = receive_type(d, controller, "ask");
	assert_string_equal(json_string_value(json_object_get(ask, "command")), "shrink");
	assert_int_equal(json_array_size(json_object_get(ask, "names")), 2);
	say(controller, json_pack("{s:s, s:O, s:b, s:s}", "type", "answer", "id", json_object_get(ask, "id"), "ok", 0, "text", "busy"));
	struct hspmd_stream *viewer = stranger_calls(d, nonce);
	say(viewer, hello_as("viewer", d->auth, nonce, 0));
	expect_welcome(d, viewer);
	say(viewer, json_pack("{s:s}", "type", "show"));
	json_t *cluster = receive_type(d, viewer, "cluster");
	assert_true(json_is_number(json_object_get(json_object_get(cluster, "risk"), "together")));
	say(viewer, json_pack("{s:s}", "type", "quote"));
	json_t *quote = receive_type(d, viewer, "quote");
	assert_true(json_is_integer(json_object_get(quote, "jobs")));
	json_decref(risk);
	json_decref(ask);
	json_decref(cluster);
	json_decref(quote);
	hspmd_stream_destroy(viewer);
	hspmd_stream_destroy(controller);
}

/* A controller whose job Slurm does not know is disconnected after the next poll that finds a change. */
static void test_a_job_that_slurm_does_not_know_is_disconnected(void **state)
{
	struct ctld_case *d = *state;
	char nonce[HSPMD_NONCE_HEX];
	struct hspmd_stream *s = stranger_calls(d, nonce);
	say(s, hello(d->auth, nonce, 1000));
	expect_welcome(d, s);
	d->world->waits = true;
	ctld_case_write(d, "job_state", "");
	json_t *refused = receive_type(d, s, "refused");
	assert_string_equal(json_string_value(json_object_get(refused, "text")), "Slurm knows no such job");
	json_decref(refused);
	hspmd_stream_destroy(s);
}

/* With PrivateData=jobs users see their own jobs, and some users see all. */
static void test_private_jobs_are_shown_to_few(void **state)
{
	(void)state;
	struct hspmd_error err;
	const uid_t owner = getuid() + 5, operator= getuid() + 6, stranger = getuid() + 7;
	struct ctld_options options = { .policies = "", .operators = &operator, .operator_count = 1 };
	struct ctld d = { .options = &options };
	assert_int_equal(uv_loop_init(&d.loop), 0);
	assert_int_equal(uv_timer_init(&d.loop, &d.tick), 0);
	assert_int_equal(on_hello(&d, 7, owner, &err), 0);
	d.view = ctld_case_view(false);
	for (int i = 0; i < d.view->job_count; i++)
		if (d.view->jobs[i].id == 7)
			d.view->jobs[i].uid = owner;
	const struct {
		uid_t viewer;
		size_t if_private;
	} viewers[] = { { 0, 1 }, { getuid(), 1 }, { owner, 1 }, { operator, 1 }, { stranger, 0 } };
	for (int i = 0; i < 10; i++) {
		options.private_jobs = i % 2;
		json_t *jobs = query_jobs(&d, viewers[i / 2].viewer);
		assert_int_equal(json_array_size(jobs), i % 2 ? viewers[i / 2].if_private : 1);
		json_decref(jobs);
	}
	hspmd_slurm_view_destroy(d.view);
	ctld_peers_clear(&d.peers);
	uv_close((uv_handle_t *)&d.tick, NULL);
	uv_run(&d.loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&d.loop), 0);
}

/* Before Slurm knows a job, only the user of its first hello may send another; afterwards only the job's user. */
static void test_a_job_is_one_users(void **state)
{
	(void)state;
	struct hspmd_error err;
	struct ctld_options options = { .policies = "" };
	struct ctld d = { .options = &options };
	assert_int_equal(uv_loop_init(&d.loop), 0);
	assert_int_equal(uv_timer_init(&d.loop, &d.tick), 0);
	assert_int_equal(on_hello(&d, 7, getuid() + 5, &err), 0);
	assert_int_equal(on_hello(&d, 7, getuid(), &err), -1);
	assert_non_null(strstr(err.text, "as another user"));
	assert_int_equal(on_hello(&d, 7, getuid() + 5, &err), 0);
	d.view = ctld_case_view(false);
	assert_int_equal(on_hello(&d, 7, getuid() + 5, &err), -1);
	assert_non_null(strstr(err.text, "is not of user"));
	hspmd_slurm_view_destroy(d.view);
	ctld_peers_clear(&d.peers);
	uv_close((uv_handle_t *)&d.tick, NULL);
	uv_run(&d.loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&d.loop), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_job_is_one_users),
		cmocka_unit_test(test_private_jobs_are_shown_to_few),
		cmocka_unit_test_setup_teardown(test_a_port_that_another_holds_is_not_trusted, ctld_case_start, ctld_case_stop),
		cmocka_unit_test_setup_teardown(test_the_names_on_the_wire_stay, ctld_case_start, ctld_case_stop),
		cmocka_unit_test_setup_teardown(test_a_job_that_slurm_does_not_know_is_disconnected, ctld_case_start, ctld_case_stop),
		cmocka_unit_test_setup_teardown(test_the_ill_meaning_change_nothing_and_fill_no_log, ctld_case_start, ctld_case_stop),
		cmocka_unit_test_setup_teardown(test_coming_and_going_fills_no_log, ctld_case_start, ctld_case_stop),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
