/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd status, events, grow, shrink and checkpoint against a controller of this test's own: what they ask, what they print, and their exit
 * status, also where the controller refuses, is silent, hangs up, or comes back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/contact.h"
#include "common/durable.h"
#include "controller/cli/control.h"
#include "tests/unit/fake_controller.h"
#include "tests/unit/control_case.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- status */

static const char status_answer[] =
        "{\"status\": {\"job\": \"7\", \"phase\": \"training\", \"waiting_for\": \"nodes\", \"node_count\": 3, \"nodes\": \"n[0-2]\", "
        "\"members\": {\"n2\": 99}, \"members_waiting\": [5, 6], \"stragglers\": {\"n1\": 1.5}, \"left_out\": {\"n3\": {\"for_s\": 12, "
        "\"reason\": \"worker n3:0 failed twice\"}, \"n4\": {\"reason\": \"it is late\"}}, "
        "\"generation\": 4, \"plan\": \"2 pipelines\", \"repaired\": {\"search\": \"running\", "
        "\"text\": \"after a loss\"}, \"step\": 10, \"steps\": 100, \"loss\": 2.5, \"tokens_per_s\": 1234, \"step_s\": "
        "0.25, "
        "\"state\": [{\"where\": \"memory\", \"step\": 9, \"age_s\": 3, \"count\": 2}, {\"where\": \"shared\", \"step\": 5, \"age_s\": 60, "
        "\"count\": 1}], \"last_error\": \"n4 was lost\", \"output\": \"/home/x/out\"}}";

static void a_status(void **state)
{
	(void)state;
	control_start("status 7");
	control_asked("{\"command\": \"status\"}");
	control_answer(status_answer);
	control_ends_with(0);
	assert_string_equal(control_out,
	                    "job         7: training\nwaiting for nodes\nnodes       3: n[0-2]\nmembers     n2 (job 99)\n"
	                    "            2 more wait for nodes\nslow        n1 (1.50 times)\nleft out    n3 (12 s more): worker n3:0 "
	                    "failed twice\n            n4: it is late\n"
	                    "generation  4\nplan        2 pipelines\nrepaired    after a loss\nstep        10 of 100, loss 2.5\n"
	                    "speed       1234 tokens/s, 0.25 s a step\n"
	                    "state       memory: step 9, 3 s old, 2 copies\n            shared: step 5, 60 s old\n"
	                    "last error  n4 was lost\noutput      /home/x/out\n");
	/* What there is nothing of has no line; an earlier version's name of the last error is understood. */
	control_start("status 7");
	control_asked("{}");
	control_answer(
	        "{\"status\": {\"job\": \"7\", \"phase\": \"starting\", \"members\": {}, \"state\": [], \"trouble\": \"no memory\"}}");
	control_ends_with(0);
	control_says(control_out, "plan        -\n");
	control_says(control_out, "state       no copy yet\n");
	control_says(control_out, "last error  no memory\n");
	control_start("status 7"); /* of a job with a command */
	control_asked("{}");
	control_answer("{\"status\": {\"job\": \"7\", \"phase\": \"training\", \"steps\": 0, \"state\": []}}");
	control_ends_with(0);
	control_says(control_out, "state       what the command has saved\n");
	assert_null(strstr(control_out, "members"));
	assert_null(strstr(control_out, "waiting for"));
	control_start("status --json 7");
	control_asked("{}");
	control_answer(status_answer);
	control_ends_with(0);
	json_t *printed = json_loads(control_out, 0, NULL), *given = json_loads(status_answer, 0, NULL);
	assert_true(json_equal(printed, json_object_get(given, "status")));
	json_decref(printed);
	json_decref(given);
	control_start("status 7");
	control_asked("{}");
	control_answer("{\"text\": \"no status\"}");
	control_ends_with(1);
}

/* The job may be left out inside a job, and named by its output folder. */
static void which_job(void **state)
{
	char words[300];
	(void)state;
	setenv("SLURM_JOB_ID", "7", 1);
	control_start("status");
	control_asked("{}");
	control_answer(status_answer);
	control_ends_with(0);
	control_start("grow 4");
	control_asked("{\"command\": \"grow\", \"nodes\": 4}");
	control_answer("{\"ok\": true, \"text\": \"done\"}");
	control_ends_with(0);
	unsetenv("SLURM_JOB_ID");
	char from[256];
	snprintf(from, sizeof from, "%s", control_path_of("c-7.json"));
	assert_int_equal(rename(from, control_path_of("output/contact.json")), 0);
	snprintf(words, sizeof words, "status %s", control_path_of("output"));
	control_start(words);
	control_asked("{}");
	control_answer(status_answer);
	control_ends_with(0);
	unlink(control_path_of("output/contact.json"));
	control_start(words);
	control_ends_with(1);
	control_says(control_said, "no job is running whose output folder this is");
	control_start("status 7");
	control_ends_with(1);
	control_says(control_said, "job 7: no elastic job of this user with this id is running");
	control_start("status local");
	control_ends_with(1);
	control_says(control_said, "job local: no run of this user outside of Slurm is going on");
}

/* A controller that accepts and never answers: the command ends in time, and names what it waited for. */
static void a_silent_controller(void **state)
{
	static const char *const commands[] = { "status --timeout 1 7", "events --timeout 1 7" };
	(void)state;
	for (size_t i = 0; i < COUNT(commands); i++) {
		control_start(commands[i]);
		control_asked("{}");
		control_ends_with(1);
		control_says(control_said, "job 7: ");
		assert_string_equal(control_out, "");
	}
	control_start("status --timeout 1 7"); /* not even a welcome */
	json_decref(fake_controller_challenge(&control_controller));
	control_ends_with(1);
	control_says(control_said, "waiting for the controller's welcome");
	control_start("status --timeout 1 7"); /* not even a challenge */
	control_ends_with(1);
	control_says(control_said, "waiting for the controller's challenge");
	fake_controller_deafen(&control_controller);
	control_start("status 7");
	control_ends_with(1);
	control_says(control_said, "connecting to 127.0.0.1:");
}

static void a_controller_that_hangs_up(void **state)
{
	static const char *const commands[] = { "status 7", "events 7", "grow 2 7", "shrink 1 7", "checkpoint 7" };
	(void)state;
	for (size_t i = 0; i < COUNT(commands); i++) {
		control_start(commands[i]);
		control_asked("{}");
		fake_controller_hang_up(&control_controller);
		control_ends_with(1);
		control_says(control_said, "job 7: the controller closed the connection without an answer");
	}
	control_start("status 7");
	json_decref(fake_controller_challenge(&control_controller));
	control_answer("{\"type\": \"refused\", \"text\": \"not your job\"}");
	control_ends_with(1);
	control_says(control_said, "the controller refused: not your job");
}

/* The controller has too many strangers just now: it is called again, but not for ever. */
static void a_crowded_controller(void **state)
{
	static const char refusal[] = "{\"type\": \"refused\", \"text\": \"there are too many\", \"again\": true}";
	(void)state;
	control_start("status 7");
	for (int i = 0; i < 2; i++) {
		json_decref(fake_controller_challenge(&control_controller));
		control_answer(refusal);
		fake_controller_hang_up(&control_controller);
	}
	control_asked("{}");
	control_answer(status_answer);
	control_ends_with(0);
	control_says(control_out, "job         7: training");
	control_start("grow 2 7");
	for (int i = 0; i < 6; i++) {
		json_decref(fake_controller_challenge(&control_controller));
		control_answer(refusal);
		fake_controller_hang_up(&control_controller);
	}
	control_ends_with(1);
	control_says(control_said, "job 7: the controller refused: there are too many");
}

/* The job was started by an hspmd of another protocol: nobody is called. */
static void another_version(void **state)
{
	(void)state;
	json_t *contact = json_load_file(control_path_of("c-7.json"), 0, NULL);
	json_object_set_new(contact, "protocol", json_integer(HSPMD_PROTOCOL + 1));
	json_object_set_new(contact, "version", json_string("9.0"));
	assert_int_equal(hspmd_contact_write(control_path_of("c-7.json"), contact, &control_err), 0);
	json_decref(contact);
	control_start("status 7");
	control_ends_with(1);
	control_says(control_said, "the job is hspmd 9.0 (protocol 5), this is hspmd " PACKAGE_VERSION " (protocol 4)");
}

/* A controller that ends late leaves the contact file of one that has the same host and pid, in a PID namespace of its own. */
static void another_controller_has_written(void **state)
{
	const char *path = control_path_of("c-7.json");
	(void)state;
	json_t *contact = json_load_file(path, 0, NULL);
	json_object_set_new(contact, "process", json_string("second"));
	assert_int_equal(hspmd_contact_write(path, contact, &control_err), 0);
	json_decref(contact);
	hspmd_contact_remove(path, "first");
	assert_int_equal(access(path, F_OK), 0);
	hspmd_contact_remove(path, "second");
	assert_int_equal(access(path, F_OK), -1);
}

/* Root may look at a user's job, but is not led by one user's file to the job of another; other users may look at their own only. */
static void a_job_of_another_user(void **state)
{
	const uid_t user = 12345;
	(void)state;
	if (getuid())
		skip();
	for (uid_t of = user; of < user + 2; of++) {
		json_t *contact = json_load_file(control_path_of("c-7.json"), 0, NULL);
		json_object_set_new(contact, "user", json_integer(of));
		assert_int_equal(hspmd_contact_write(control_path_of("c-7.json"), contact, &control_err), 0);
		assert_int_equal(chown(control_path_of("c-7.json"), user, user), 0);
		json_decref(contact);
		control_start("shrink 1 7");
		if (of == user) {
			json_decref(fake_controller_accept(&control_controller));
			control_answer("{\"ok\": false, \"text\": \"it was reached\"}");
		}
		control_ends_with(1);
		control_says(control_said, of == user ? "it was reached" : "belongs to user 12345, and is of a job of user 12346");
	}
}

/* "-1" is the value of --timeout, and not a number of nodes. */
static void a_negative_timeout(void **state)
{
	(void)state;
	control_start("grow --timeout -1 4 7");
	control_ends_with(2);
	control_says(control_said, "timeout");
	control_start("shrink --timeout 5 -1 7");
	json_t *hello = fake_controller_accept(&control_controller);
	assert_int_equal(json_integer_value(json_object_get(hello, "by")), 1);
	json_decref(hello);
	control_answer("{\"ok\": true, \"text\": \"done\"}");
	control_ends_with(0);
}

/* Somebody else holds the controller's port. */
static void a_wrong_cookie(void **state)
{
	char cookie[] = FAKE_CONTROLLER_COOKIE;
	(void)state;
	cookie[0] = 'f';
	control_start("status 7");
	json_t *hello = fake_controller_challenge(&control_controller);
	const char *nonce = json_string_value(json_object_get(hello, "nonce"));
	struct hspmd_auth *other = hspmd_auth_cookie(cookie, &control_err);
	json_t *content = json_object();
	fake_controller_send(&control_controller, hspmd_auth_seal(other, "welcome", nonce, content, getuid(), &control_err));
	json_decref(content);
	json_decref(hello);
	hspmd_auth_destroy(other);
	control_ends_with(1);
	control_says(control_said, "does not know the job's cookie");
}

/* A watched job's controller dies and comes back; then the job ends. */
static void watches(void **state)
{
	(void)state;
	control_start("status --watch=0.1 7");
	control_asked("{}");
	control_answer(status_answer);
	control_asked("{}");
	fake_controller_hang_up(&control_controller); /* it has died */
	control_asked("{}");
	control_answer(status_answer);
	unlink(control_path_of("c-7.json"));
	fake_controller_hang_up(&control_controller);
	/* It may have found the contact file before. */
	fake_controller_deafen(&control_controller);
	control_ends_with(0);
	control_says(control_said, "its controller does not answer");
	control_says(control_said, "job 7 is no longer running");
	const char *second = strstr(control_out + 1, "job         7: training");
	assert_non_null(second);
	control_says(control_out, "\n\njob         7");
	/* One that does not come back in time. */
	fake_controller_listen(&control_controller);
	control_job_runs();
	control_start("status --watch=0.1 --timeout 1 7");
	control_asked("{}");
	control_answer(status_answer);
	fake_controller_deafen(&control_controller);
	fake_controller_hang_up(&control_controller);
	control_ends_with(1);
	control_says(control_said, "for its controller to answer again");
}

/* ---- events */

static void events(void **state)
{
	static const char first[] =
	        "{\"events\": [{\"number\": 3, \"time\": 1000, \"text\": \"a plan\", \"x\": 0.1}, {\"number\": 4, \"time\": "
	        "1001, \"text\": \"n1 was lost\"}]}";
	(void)state;
	setenv("TZ", "UTC0", 1);
	control_start("events 7");
	control_asked("{\"command\": \"events\"}");
	control_answer(first);
	control_ends_with(0);
	assert_string_equal(control_out, "1970-01-01 00:16:40  a plan\n1970-01-01 00:16:41  n1 was lost\n");
	control_start("events --json 7");
	control_asked("{}");
	control_answer(first);
	control_ends_with(0);
	control_says(control_out, "{\"number\":3,\"time\":1000,\"text\":\"a plan\",\"x\":0.1");
	assert_int_equal(strchr(control_out, '\n')[1], '{');
	/* Each event once, with those that the job wrote at its end. */
	FILE *f = fopen(control_path_of("output/events.jsonl"), "w");
	assert_non_null(f);
	fputs("{\"number\": 5, \"time\": 1002, \"text\": \"later\"}\n{\"number\": 6, \"time\": 1003, \"text\": \"the end\"}\n{\"numb", f);
	fclose(f);
	control_start("events --follow --timeout 5 7");
	control_asked("{}");
	control_answer(first);
	control_asked("{}");
	control_answer(
	        "{\"events\": [{\"number\": 4, \"time\": 1001, \"text\": \"n1 was lost\"}, {\"number\": 5, \"time\": 1002, \"text\": "
	        "\"later\"}]}");
	unlink(control_path_of("c-7.json"));
	fake_controller_deafen(&control_controller);
	control_ends_with(0);
	assert_string_equal(control_out, "1970-01-01 00:16:40  a plan\n1970-01-01 00:16:41  n1 was lost\n1970-01-01 00:16:42  later\n"
	                                 "1970-01-01 00:16:43  the end\n");
}

/* ---- requests */

static void requests(void **state)
{
	static const struct {
		const char *words, *asks;
	} cases[] = {
		{ "grow 4 7", "{\"command\": \"grow\", \"nodes\": 4, \"timeout_s\": 600.0}" },
		{ "grow +2 7", "{\"command\": \"grow\", \"by\": 2}" },
		{ "grow --timeout 5 4 7", "{\"command\": \"grow\", \"nodes\": 4, \"timeout_s\": 5.0}" },
		{ "shrink 0 7", "{\"command\": \"shrink\", \"nodes\": 0}" },
		{ "shrink -2 7", "{\"command\": \"shrink\", \"by\": 2}" },
		{ "shrink --timeout 5 -2 7", "{\"command\": \"shrink\", \"by\": 2, \"timeout_s\": 5.0}" },
		{ "shrink --nodes n[1-2],x 7", "{\"command\": \"shrink\", \"names\": [\"n1\", \"n2\", \"x\"]}" },
		{ "checkpoint --timeout 9 7", "{\"command\": \"checkpoint\", \"timeout_s\": 9.0}" },
	};
	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		control_start(cases[i].words);
		control_asked(cases[i].asks);
		control_answer(i % 2 ? "{\"ok\": false, \"text\": \"the site allows 2\"}"
		                     : "{\"ok\": true, \"text\": \"it trains on 4 nodes\"}");
		control_ends_with(i % 2 ? 1 : 0);
		assert_string_equal(control_out, i % 2 ? "" : "it trains on 4 nodes\n");
		if (i % 2)
			control_says(control_said, "job 7: the site allows 2");
	}
	control_start("shrink 1 7"); /* the answer names the job already */
	control_asked("{}");
	control_answer("{\"ok\": false, \"text\": \"job 7: giving nodes back: no\"}");
	control_ends_with(1);
	assert_null(strstr(control_said, "job 7: job 7"));
	control_says(control_said, "job 7: giving nodes back: no");
	control_start("shrink --json 1 7");
	control_asked("{}");
	control_answer("{\"ok\": false, \"text\": \"no\", \"nodes\": 3}");
	control_ends_with(1);
	json_t *printed = json_loads(control_out, 0, NULL);
	assert_int_equal(json_integer_value(json_object_get(printed, "nodes")), 3);
	json_decref(printed);
	/* An answer without a verdict is none. */
	control_start("checkpoint 7");
	control_asked("{}");
	control_answer("{\"text\": \"well\"}");
	control_ends_with(1);
}

static void wrong_usage(void **state)
{
	static const struct {
		const char *words, *why;
	} cases[] = {
		{ "grow -2 7", "the sign is the wrong one" },
		{ "shrink +2 7", "the sign is the wrong one" },
		{ "grow many 7", "expected a number of nodes, N or +N, up to 1048576, got 'many'" },
		{ "grow +0 7", "expected a number of nodes, N or +N, up to 1048576, got '+0'" },
		{ "grow 1 2 7", "expected a number of nodes and a job" },
		{ "grow", "expected a number of nodes and a job" },
		{ "shrink --nodes n[ 7", "--nodes: " },
		{ "status 7 8", "expected a job" },
		{ "status --timeout 0 7", "--timeout: expected a number" },
		{ "status --watch=0 7", "--watch: expected a number" },
		{ "status --nonsense 7", "nonsense" },
		{ "events --timeout x 7", "--timeout: expected a number" },
	};
	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		control_start(cases[i].words);
		control_ends_with(2);
		control_says(control_said, cases[i].why);
		control_says(control_said, "--help");
		assert_string_equal(control_out, "");
	}
	static const char *const helps[] = { "status --help", "events -h", "grow --help", "shrink --help", "checkpoint --help" };
	for (size_t i = 0; i < COUNT(helps); i++) {
		control_start(helps[i]);
		control_ends_with(0);
		control_says(control_out, "Usage: hspmd ");
		assert_string_equal(control_said, "");
	}
}

/* `hspmd checkpoint JOB` beside `hspmd checkpoint list PATH`. */
static void words_after_checkpoint(void **state)
{
	static const char *const verbs[] = { "list", "export", NULL };
	static const struct {
		const char *words[5];
		bool job;
	} cases[] = {
		{ { "checkpoint", "7" }, true },
		{ { "checkpoint", "--json", "7" }, true },
		{ { "checkpoint", "--timeout", "5", "7" }, true },
		{ { "checkpoint", "list", "7" }, false },
		{ { "checkpoint", "list" }, false },
		{ { "checkpoint", "7", "8" }, false },
		{ { "checkpoint", "7", "-o", "x" }, false },
		{ { "checkpoint", "--help" }, false },
		{ { "checkpoint" }, false },
	};
	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		int n = 0;
		while (n < 5 && cases[i].words[n])
			n++;
		if (hspmd_control_names_job(n, (char **)cases[i].words, verbs) != cases[i].job)
			fail_msg("case %zu", i);
	}
	char *alone[] = { "checkpoint", NULL };
	setenv("SLURM_JOB_ID", "7", 1);
	assert_true(hspmd_control_names_job(1, alone, verbs));
}

/* Puts lines in place of what squeue knows: ID|STATE|REASON|NODES|COMMENT. */
static void queue_is(const char *lines)
{
	assert_int_equal(hspmd_durable_write(control_path_of("queue"), lines, strlen(lines), &control_err), 0);
}

/* Jobs without a controller, or whose controller does not answer; and all jobs of the user. */
static void by_slurm(void **state)
{
	(void)state;
	queue_is("8|PENDING|JobHeldUser|2|hspmd\n");
	control_start("status 8");
	control_ends_with(0);
	control_says(control_out, "job         8: pending\nwhy         held by its user");
	control_start("status --json 8");
	control_ends_with(0);
	control_says(control_out, "\"phase\": \"pending\"");
	control_start("events 8");
	control_ends_with(1);
	queue_is("8|RUNNING|None|2|mine\n"); /* not an elastic job */
	control_start("status 8");
	control_ends_with(1);
	control_says(control_said, "no elastic job of this user with this id is running");
	queue_is("7|RUNNING|None|2|hspmd\n8|PENDING|Priority|3|hspmd\n9|RUNNING|None|1|other\n10|RUNNING|None|1|hspmd\n");
	control_start("status");
	control_asked("{\"command\": \"status\"}");
	control_answer(
	        "{\"status\": {\"job\": \"7\", \"phase\": \"training\", \"node_count\": 4, \"step\": 5, \"steps\": 9, \"loss\": 2.5, "
	        "\"checkpoints_fail\": {\"for_s\": 3, \"why\": \"full\"}}}");
	control_ends_with(0);
	control_says(control_out, "7         training       4  step 5 of 9, loss 2.5, checkpoints FAIL\n");
	control_says(control_out, "8         pending        3  Priority\n");
	control_says(control_out, "10        starting       1  its script runs");
	assert_null(strstr(control_out, "\n9 "));
	queue_is("7|SUSPENDED|None|2|hspmd\n");
	control_start("status 7"); /* the controller is silent */
	control_ends_with(0);
	control_says(control_out, "job         7: suspended\nwhy         it loses nothing");
	queue_is("");
	assert_int_equal(unlink(control_path_of("c-7.json")), 0);
	control_start("status");
	control_ends_with(0);
	control_says(control_out, "no elastic job of this user runs or waits");
}

static int begin(void **state)
{
	static const char script[] = "#!/bin/sh\nexec /bin/cat %s/queue\n";
	char text[200];
	(void)state;
	if (!mkdtemp(control_folder))
		return -1;
	snprintf(text, sizeof text, script, control_folder);
	queue_is("");
	if (hspmd_durable_write(control_path_of("squeue"), text, strlen(text), &control_err) || chmod(control_path_of("squeue"), 0700))
		return -1;
	snprintf(text, sizeof text, "%s:/usr/bin:/bin", control_folder);
	return setenv("PATH", text, 1) || setenv("HSPMD_CONTACTS", control_folder, 1);
}

static int end(void **state)
{
	char command[64];
	(void)state;
	snprintf(command, sizeof command, "rm -rf %s", control_folder);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_status, control_fresh, control_stop),
		cmocka_unit_test_setup_teardown(which_job, control_fresh, control_stop),
		cmocka_unit_test_setup_teardown(a_silent_controller, control_fresh, control_stop),
		cmocka_unit_test_setup_teardown(a_controller_that_hangs_up, control_fresh, control_stop),
		cmocka_unit_test_setup_teardown(a_crowded_controller, control_fresh, control_stop),
		cmocka_unit_test_setup_teardown(a_wrong_cookie, control_fresh, control_stop),
		cmocka_unit_test_setup_teardown(another_version, control_fresh, control_stop),
		cmocka_unit_test_setup_teardown(another_controller_has_written, control_fresh, control_stop),
		cmocka_unit_test_setup_teardown(a_job_of_another_user, control_fresh, control_stop),
		cmocka_unit_test_setup_teardown(a_negative_timeout, control_fresh, control_stop),
		cmocka_unit_test_setup_teardown(watches, control_fresh, control_stop),
		cmocka_unit_test_setup_teardown(events, control_fresh, control_stop),
		cmocka_unit_test_setup_teardown(requests, control_fresh, control_stop),
		cmocka_unit_test_setup_teardown(by_slurm, control_fresh, control_stop),
		cmocka_unit_test_setup_teardown(wrong_usage, control_fresh, control_stop),
		cmocka_unit_test_setup_teardown(words_after_checkpoint, control_fresh, control_stop),
	};
	return cmocka_run_group_tests(tests, begin, end);
}
