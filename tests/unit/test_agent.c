/* SPDX-License-Identifier: Apache-2.0 */
/* A real agent between a controller and workers of this test's own: it starts and ends workers, passes messages on, reports their ends, and
 * keeps them while there is no controller. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/durable.h"
#include "common/shm_dir.h"
#include "runtime/state/checkpoint_choice.h"
#include "tests/unit/agent_case.h"

static void the_node(void **state)
{
	(void)state;
	setenv("SLURM_JOB_ID", "17", 1);
	agent_case_start(FAKE_CONTROLLER_COOKIE, 60);
	unsetenv("SLURM_JOB_ID");
	json_t *hello = fake_controller_accept(&agent_case.controller), *part = json_object_get(hello, "cluster"),
	       *bindings = json_object_get(hello, "bindings");
	assert_string_equal(json_string_value(json_object_get(hello, "role")), "agent");
	assert_string_equal(json_string_value(json_object_get(hello, "node")), "n1");
	assert_string_equal(json_string_value(json_object_get(hello, "job")), "17");
	assert_int_equal(json_integer_value(json_object_get(hello, "pid")), agent_case.agent);
	assert_true(json_is_array(json_object_get(hello, "workers")) && !json_array_size(json_object_get(hello, "workers")));
	assert_int_equal(json_array_size(json_object_get(part, "nodes")), 1);
	assert_string_equal(json_string_value(json_object_get(json_array_get(json_object_get(part, "nodes"), 0), "name")), "n1");
	/* Two CPU devices, and two GPUs, which are numbered among themselves. */
	static const int index[] = { 0, 0, 0, 1 };
	assert_int_equal(json_array_size(bindings), 4);
	for (size_t i = 0; i < 4; i++) {
		assert_int_equal(json_integer_value(json_object_get(json_array_get(bindings, i), "threads")), 3);
		assert_int_equal(json_integer_value(json_object_get(json_array_get(bindings, i), "index")), index[i]);
	}
	json_decref(hello);
	agent_case_send("{\"type\": \"quit\"}");
	agent_case_ends_with(0);
}

static void starts_and_forwards(void **state)
{
	(void)state;
	int first = agent_case_spawn("n1:0", 5), second = agent_case_spawn("n1:1", 6);
	assert_int_not_equal(first, second);
	agent_case_send("{\"type\": \"echo\", \"number\": 1, \"to\": \"n1:0\"}");
	agent_case_expect("{\"type\": \"echoed\", \"number\": 1, \"from\": \"n1:0\"}");
	agent_case_send("{\"type\": \"echo\", \"number\": 2, \"to\": [\"n9:0\", \"n1:1\"]}");
	agent_case_expect("{\"type\": \"echoed\", \"number\": 2, \"from\": \"n1:1\"}");
	agent_case_send("{\"type\": \"echo\", \"number\": 3, \"to\": \"n1:9\"}"); /* nobody */
	agent_case_send("{\"type\": \"echo\", \"number\": 4, \"to\": \"*\"}");
	int seen = 0;
	for (int i = 0; i < 2; i++) {
		json_t *m = fake_controller_await(&agent_case.controller, "echoed");
		assert_int_equal(json_integer_value(json_object_get(m, "number")), 4);
		seen |= strcmp(json_string_value(json_object_get(m, "from")), "n1:0") ? 2 : 1;
		json_decref(m);
	}
	assert_int_equal(seen, 3);
	/* What cannot be started is reported as an end, and disturbs nobody. */
	agent_case_send("{\"type\": \"spawn\", \"device\": \"n1:0\", \"serial\": 7}");
	agent_case_expect(
	        "{\"type\": \"exited\", \"device\": \"n1:0\", \"serial\": 7, \"status\": 1, \"signal\": 0, \"text\": \"n1:0 has a worker "
	        "already\"}");
	agent_case_send("{\"type\": \"spawn\", \"device\": \"n1:4\", \"serial\": 8}");
	agent_case_expect(
	        "{\"type\": \"exited\", \"device\": \"n1:4\", \"serial\": 8, \"status\": 1, \"text\": \"spawn: n1:4 is no device of node "
	        "n1\"}");
	agent_case_send("{\"type\": \"spawn\", \"serial\": 9}");
	agent_case_expect("{\"type\": \"exited\", \"device\": \"?\", \"serial\": 9}");
	agent_case_send("{\"type\": \"echo\", \"number\": 5, \"to\": \"n1:0\"}");
	agent_case_expect("{\"type\": \"echoed\", \"number\": 5, \"from\": \"n1:0\"}");
	agent_case_send("{\"type\": \"quit\"}");
	agent_case_ends_with(0);
	agent_case_await_no_process(first);
	agent_case_await_no_process(second);
}

static void ends_of_workers(void **state)
{
	(void)state;
	agent_case_spawn("n1:0", 5);
	/* A worker's last messages come before its end. */
	agent_case_send("{\"type\": \"end\", \"number\": 3, \"count\": 20, \"to\": \"n1:0\"}");
	for (int i = 0; i < 20; i++) {
		json_t *m = fake_controller_receive(&agent_case.controller);
		assert_string_equal(json_string_value(json_object_get(m, "type")), "note");
		assert_int_equal(json_integer_value(json_object_get(m, "step")), i);
		json_decref(m);
	}
	agent_case_expect(
	        "{\"type\": \"exited\", \"device\": \"n1:0\", \"serial\": 5, \"status\": 3, \"signal\": 0, \"text\": \"exit status 3\"}");
	agent_case_spawn("n1:0", 6);
	agent_case_send("{\"type\": \"die\", \"number\": 6, \"to\": \"n1:0\"}"); /* sanitizers handle SIGSEGV */
	json_t *m = fake_controller_receive(&agent_case.controller);
	assert_int_equal(json_integer_value(json_object_get(m, "signal")), SIGABRT);
	assert_int_equal(json_integer_value(json_object_get(m, "serial")), 6);
	assert_non_null(strstr(json_string_value(json_object_get(m, "text")), "ended by signal 6"));
	json_decref(m);
	/* Only the worker that is meant is killed, and another may start at once. */
	int third = agent_case_spawn("n1:0", 7);
	agent_case_send("{\"type\": \"stubborn\", \"to\": \"n1:0\"}");
	agent_case_send("{\"type\": \"kill\", \"device\": \"n1:0\", \"serial\": 6}");
	agent_case_send("{\"type\": \"echo\", \"number\": 1, \"to\": \"n1:0\"}");
	agent_case_expect("{\"type\": \"echoed\", \"number\": 1}");
	kill(agent_case.agent, SIGSTOP); /* so that it reads both at once, before the killed process has ended */
	agent_case_send("{\"type\": \"kill\", \"device\": \"n1:0\", \"serial\": 7}");
	agent_case_send("{\"type\": \"spawn\", \"device\": \"n1:0\", \"serial\": 8}");
	kill(agent_case.agent, SIGCONT);
	agent_case_send("{\"type\": \"echo\", \"number\": 2, \"to\": \"n1:0\"}");
	bool killed = false, echoed = false;
	while (!killed || !echoed) {
		m = fake_controller_receive(&agent_case.controller);
		const char *type = json_string_value(json_object_get(m, "type"));
		if (!strcmp(type, "exited")) {
			assert_int_equal(json_integer_value(json_object_get(m, "serial")), 7);
			assert_int_equal(json_integer_value(json_object_get(m, "signal")), SIGKILL);
			killed = true;
		}
		echoed |= !strcmp(type, "echoed");
		json_decref(m);
	}
	agent_case_await_no_process(third);
}

/* Without a controller the agent keeps its workers and what they say; the next controller learns both. */
static void a_lost_controller(void **state)
{
	(void)state;
	int pid = agent_case_spawn("n1:1", 5);
	agent_case_send("{\"type\": \"train\", \"count\": 3, \"to\": \"n1:1\"}");
	for (int i = 0; i < 3; i++)
		json_decref(fake_controller_await(&agent_case.controller, "step"));
	fake_controller_send(&agent_case.controller,
	                     json_pack("{ss,si,ss,ss}", "type", "talk while alone", "count", 2, "folder", agent_case.folder, "to", "n1:1"));
	agent_case_send("{\"type\": \"spawn\", \"device\": \"n1:7\", \"serial\": 1}");
	json_decref(fake_controller_await(&agent_case.controller, "exited")); /* so that it has read all of that */
	fake_controller_deafen(&agent_case.controller);
	fake_controller_hang_up(&agent_case.controller);
	agent_case_await_log("keeping the workers and calling again");
	assert_int_equal(hspmd_durable_write(agent_case_path("alone"), "", 0, &agent_case.err), 0);
	while (!access(agent_case_path("alone"), F_OK))
		usleep(1000);
	fake_controller_listen(&agent_case.controller);
	json_t *hello = fake_controller_accept(&agent_case.controller), *list = json_object_get(hello, "workers");
	assert_int_equal(json_array_size(list), 1);
	assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "device")), "n1:1");
	assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 0), "serial")), 5);
	assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 0), "pid")), pid);
	json_decref(hello);
	/* First the steps that the last controller may not have written down, then what came since, in order. */
	static const char *const types[] = { "step", "step", "step", "note", "note", "step", "step" };
	static const int steps[] = { 0, 1, 2, 0, 1, 0, 1 };
	for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
		json_t *m = fake_controller_receive(&agent_case.controller);
		if (strcmp(json_string_value(json_object_get(m, "type")), types[i]) != 0 ||
		    json_integer_value(json_object_get(m, "step")) != steps[i])
			fail_msg("message %zu: %s", i, json_dumps(m, 0));
		assert_string_equal(json_string_value(json_object_get(m, "from")), "n1:1");
		json_decref(m);
	}
	agent_case_send("{\"type\": \"echo\", \"number\": 1, \"to\": \"*\"}");
	agent_case_expect("{\"type\": \"echoed\", \"number\": 1}");
	assert_true(agent_case_logged("the controller is back"));
}

static void no_controller_for_too_long(void **state)
{
	(void)state;
	agent_case_start(FAKE_CONTROLLER_COOKIE, 0.1);
	json_decref(fake_controller_accept(&agent_case.controller));
	int pid = agent_case_spawn("n1:0", 1);
	fake_controller_deafen(&agent_case.controller);
	fake_controller_hang_up(&agent_case.controller);
	agent_case_ends_with(1);
	assert_true(agent_case_logged("no controller for"));
	agent_case_await_no_process(pid);
}

/* Slurm ends the job: the controller hears of it, and the agent goes on until the controller ends it or is gone. */
static void is_told_to_leave(void **state)
{
	(void)state;
	int pid = agent_case_spawn("n1:0", 1);
	assert_int_equal(kill(agent_case.agent, SIGINT), 0); /* of the terminal */
	assert_int_equal(kill(agent_case.agent, SIGTERM), 0);
	agent_case_expect("{\"type\": \"terminating\", \"text\": \"Terminated\"}");
	agent_case_send("{\"type\": \"echo\", \"number\": 1, \"to\": \"n1:0\"}");
	agent_case_expect("{\"type\": \"echoed\", \"number\": 1}");
	fake_controller_hang_up(&agent_case.controller);
	agent_case_ends_with(1);
	assert_false(agent_case_logged("no controller for")); /* it has not waited for another */
	agent_case_await_no_process(pid);
}

/* The controller has no room for the first calls: the agent calls again. A refusal for another reason is final. */
static void a_crowded_controller(void **state)
{
	(void)state;
	agent_case_start(FAKE_CONTROLLER_COOKIE, 60);
	json_decref(fake_controller_challenge(&agent_case.controller));
	fake_controller_hang_up(&agent_case.controller);
	json_decref(fake_controller_challenge(&agent_case.controller));
	agent_case_send("{\"type\": \"refused\", \"text\": \"crowded\", \"again\": true}");
	json_decref(fake_controller_challenge(&agent_case.controller));
	agent_case_send("{\"type\": \"refused\", \"text\": \"you are not wanted\"}");
	agent_case_ends_with(1);
	assert_true(agent_case_logged("cannot be reached: the controller refused: you are not wanted"));
}

static void a_stranger_on_the_port(void **state)
{
	char cookie[] = FAKE_CONTROLLER_COOKIE;
	(void)state;
	cookie[0] = 'f';
	agent_case_start(cookie, 60);
	struct fake_controller other = agent_case.controller;
	other.auth = hspmd_auth_cookie(cookie, &agent_case.err);
	other.peer = NULL;
	json_decref(fake_controller_challenge(&other)); /* it reads the agent's proof, and cannot make its own */
	fake_controller_send(&other, json_pack("{ss,ss,ss}", "type", "welcome", "words", "{}", "mac", "00"));
	agent_case_ends_with(1);
	assert_true(agent_case_logged("the controller cannot be reached"));
	fake_controller_hang_up(&other);
	hspmd_auth_destroy(other.auth);
}

static void lists_checkpoints(void **state)
{
	static const char *const folders[] = { "local/n1",
		                               "local/n1/step-0000000007-g1",
		                               "local/n2",
		                               "local/n2/step-0000000008-g1",
		                               "shared",
		                               "shared/step-0000000005-g2",
		                               "shared/step-0000000006-g2",
		                               "shared/other" };
	(void)state;
	assert_int_equal(mkdir(agent_case_path("local"), 0700), 0);
	for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
		assert_int_equal(mkdir(agent_case_path(folders[i]), 0700), 0);
	assert_int_equal(hspmd_durable_write(agent_case_path("local/n1/step-0000000007-g1/n1-0.safetensors"), "x", 1, &agent_case.err), 0);
	assert_int_equal(hspmd_durable_write(agent_case_path("shared/step-0000000005-g2/manifest.json"), "{", 1, &agent_case.err), 0);
	fake_controller_send(&agent_case.controller, json_pack("{ss,si,so,so,so}", "type", "list_checkpoints", "id", 12, "local",
	                                                       json_sprintf("%s/local", agent_case.folder), "shared",
	                                                       json_sprintf("%s/shared", agent_case.folder), "memory", json_null()));
	json_t *m = fake_controller_receive(&agent_case.controller), *list = json_object_get(m, "checkpoints"), *one;
	size_t i;
	bool own = false;
	assert_string_equal(json_string_value(json_object_get(m, "type")), "checkpoint_list");
	assert_int_equal(json_integer_value(json_object_get(m, "id")), 12);
	json_array_foreach(list, i, one) {
		const char *place = json_string_value(json_object_get(one, "place"));
		int step = (int)json_integer_value(json_object_get(one, "step"));
		assert_null(json_object_get(one, "sum"));
		assert_int_not_equal(step, 8); /* of another node */
		if (step != 7)
			continue;
		own = true;
		assert_string_equal(place, "local");
		assert_int_equal(json_integer_value(json_object_get(one, "generation")), 1);
		assert_int_equal(json_array_size(json_object_get(one, "shards")), 1);
		assert_string_equal(json_string_value(json_array_get(json_object_get(one, "shards"), 0)), "n1-0.safetensors");
	}
	assert_true(own);
	json_decref(m);
	assert_true(agent_case_logged("step-0000000005-g2")); /* the damaged manifest is named */
}

/* What the agent answers to `read_manifest`. */
static json_t *read_manifest(const char *sum)
{
	fake_controller_send(&agent_case.controller, json_pack("{ss,si,ss,so,so,so}", "type", "read_manifest", "id", 14, "sum", sum,
	                                                       "local", json_sprintf("%s/local", agent_case.folder), "shared",
	                                                       json_sprintf("%s/shared", agent_case.folder), "memory", json_null()));
	json_t *m = fake_controller_receive(&agent_case.controller);
	assert_string_equal(json_string_value(json_object_get(m, "type")), "manifest");
	assert_string_equal(json_string_value(json_object_get(m, "sum")), sum);
	assert_int_equal(json_integer_value(json_object_get(m, "id")), 14);
	return m;
}

/* Manifests of both formats are named in the list, and sent if they are asked for. */
static void sends_manifests(void **state)
{
	static const char *const texts[] = {
		"{\"format\": \"hspmd-checkpoint-1\", \"step\": 7, \"generation\": 1, \"time\": 1790000000.1, \"job\": {\"run\": \"r\", "
		"\"b\": 1e-4},"
		"\"shards\": [{\"file\": \"n1-0.safetensors\", \"bytes\": 16, \"nodes\": [\"n1\"], \"extents\": [{\"tensor\": \"w\", "
		"\"kind\": \"param\","
		"\"dtype\": \"F32\", \"shape\": [2], \"lo\": [0], \"hi\": [2], \"offset\": 8, \"bytes\": 8, \"xxh3\": "
		"\"0123456789abcdef\"}]}]}",
		"{\"format\": \"hspmd-checkpoint-2\", \"step\": 9, \"generation\": 1, \"time\": 1790000000.1, \"job\": {\"run\": \"r\"}, "
		"\"sets\": [\"f3\"],"
		"\"shards\": [{\"file\": \"n1-0.safetensors\", \"bytes\": 4096, \"nodes\": [\"n1\"], \"list\": \"0123456789abcdef\", "
		"\"set\": 0}]}",
	};
	static const char *const folders[] = { "local", "local/n1", "shared", "local/n1/step-0000000007-g1", "shared/step-0000000009-g1" };
	(void)state;
	for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
		mkdir(agent_case_path(folders[i]), 0700);
	for (int i = 0; i < 2; i++) {
		const char *path =
		        agent_case_path(i ? "shared/step-0000000009-g1/manifest.json" : "local/n1/step-0000000007-g1/manifest.json");
		assert_int_equal(hspmd_durable_write(path, texts[i], strlen(texts[i]), &agent_case.err), 0);
	}
	/* Both have the shard, though too short: a node's own counts by its size, one in the shared folder by its name. */
	assert_int_equal(hspmd_durable_write(agent_case_path("local/n1/step-0000000007-g1/n1-0.safetensors"), "x", 1, &agent_case.err), 0);
	assert_int_equal(hspmd_durable_write(agent_case_path("shared/step-0000000009-g1/n1-0.safetensors"), "x", 1, &agent_case.err), 0);
	fake_controller_send(&agent_case.controller, json_pack("{ss,si,so,so,so}", "type", "list_checkpoints", "id", 13, "local",
	                                                       json_sprintf("%s/local", agent_case.folder), "shared",
	                                                       json_sprintf("%s/shared", agent_case.folder), "memory", json_null()));
	json_t *list = fake_controller_receive(&agent_case.controller), *one, *m;
	size_t i;
	int named = 0;
	json_array_foreach(json_object_get(list, "checkpoints"), i, one) {
		int step = (int)json_integer_value(json_object_get(one, "step"));
		if (!json_object_get(one, "sum"))
			continue;
		assert_true(step == 7 || step == 9);
		assert_string_equal(json_string_value(json_object_get(one, "run")), "r");
		assert_null(json_object_get(one, "manifest"));
		assert_int_equal(json_is_true(json_object_get(one, "shards")), step == 9);
		assert_int_equal(json_array_size(json_object_get(one, "shards")), 0);
		json_t *whole = json_loads(texts[step == 9], 0, NULL);
		m = read_manifest(json_string_value(json_object_get(one, "sum")));
		assert_true(json_equal(json_object_get(m, "manifest"), whole));
		assert_int_equal(
		        hspmd_manifest_is(json_object_get(m, "manifest"), json_string_value(json_object_get(one, "sum")), &agent_case.err),
		        0);
		json_decref(whole);
		json_decref(m);
		named |= step;
	}
	assert_int_equal(named, 7 | 9);
	json_decref(list);
	/* One that has gone meanwhile. */
	m = read_manifest("0123456789abcdef");
	assert_null(json_object_get(m, "manifest"));
	assert_non_null(strstr(json_string_value(json_object_get(m, "error")), "not there any more"));
	json_decref(m);
}

/* The node's part of the folder in memory lives as long as somebody may come back for it. */
static void memory_of_the_node(void **state)
{
	char name[32], own[300];
	(void)state;
	snprintf(name, sizeof name, "agent-%d", (int)getpid());
	agent_case.memory = hspmd_shm_dir(name);
	if (!agent_case.memory)
		skip();
	snprintf(own, sizeof own, "%s/n1", agent_case.memory);
	for (int killed = 1; killed >= 0; killed--) {
		agent_case_start(FAKE_CONTROLLER_COOKIE, 60);
		json_decref(fake_controller_accept(&agent_case.controller));
		agent_case_spawn("n1:0", 1); /* the agent hears messages after it has made the folder */
		if (killed) {
			assert_int_equal(mkdir(own, 0700), 0); /* as a worker does */
			kill(agent_case.agent, SIGKILL);
			waitpid(agent_case.agent, NULL, 0);
			assert_int_equal(access(own, F_OK), 0);
		} else {
			agent_case_send("{\"type\": \"quit\"}");
			agent_case_ends_with(0);
			assert_int_equal(access(own, F_OK), -1);
			assert_int_equal(access(agent_case.memory, F_OK), -1);
		}
	}
}

static void expect_alone(json_t *hello, int expected)
{
	json_t *alone = json_object_get(hello, "alone");
	assert_int_equal(!alone ? -1 : json_is_true(alone), expected);
	json_decref(hello);
}

/* An agent tells whether another one of its node lives, and when that has ended. If it is turned away, the other one's memory stays, and
 * the exit status tells. */
static void second_agent(void **state)
{
	(void)state;
	char name[32], own[64];
	snprintf(name, sizeof name, "test%d", (int)getpid());
	agent_case.memory = hspmd_shm_dir(name);
	if (!agent_case.memory)
		skip();
	snprintf(own, sizeof own, "%s/n1", agent_case.memory);
	for (int ends = 0; ends < 2; ends++) {
		agent_case.first_lock = hspmd_shm_dir_lock(agent_case.memory, "n1", NULL, HSPMD_SHM_DIR_LOOK_S, &agent_case.err);
		assert_true(agent_case.first_lock >= 0);
		assert_true(!mkdir(own, 0700));
		agent_case_start(FAKE_CONTROLLER_COOKIE, 60);
		expect_alone(fake_controller_accept(&agent_case.controller), 0);
		agent_case_send("{\"type\": \"ping\"}");
		agent_case_expect("{\"type\": \"pong\"}");
		if (ends) {
			close(agent_case.first_lock);
			agent_case_expect("{\"type\": \"alone\"}");
			fake_controller_hang_up(&agent_case.controller);
			expect_alone(fake_controller_accept(&agent_case.controller), 1);
		}
		agent_case_send(ends ? "{\"type\": \"quit\"}" : "{\"type\": \"turned_away\", \"text\": \"the first one lives\"}");
		agent_case_ends_with(ends ? 0 : 1);
		assert_true(ends || agent_case_logged("this agent is not needed, and ends: the first one lives"));
		assert_int_equal(access(own, F_OK), ends ? -1 : 0);
		if (!ends) {
			close(agent_case.first_lock);
			hspmd_shm_dir_remove(agent_case.memory, "n1");
		}
		agent_case.first_lock = -1;
	}
	/* Whoever cannot reach the controller removes nothing either. */
	assert_true(!mkdir(agent_case.memory, 0700) && !mkdir(own, 0700));
	fake_controller_deafen(&agent_case.controller);
	agent_case_start(FAKE_CONTROLLER_COOKIE, 60);
	agent_case_ends_with(1);
	assert_int_equal(access(own, F_OK), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(the_node, agent_case_begin_test, agent_case_end_test),
		cmocka_unit_test_setup_teardown(starts_and_forwards, agent_case_begin, agent_case_end_test),
		cmocka_unit_test_setup_teardown(ends_of_workers, agent_case_begin, agent_case_end_test),
		cmocka_unit_test_setup_teardown(a_lost_controller, agent_case_begin, agent_case_end_test),
		cmocka_unit_test_setup_teardown(no_controller_for_too_long, agent_case_begin_test, agent_case_end_test),
		cmocka_unit_test_setup_teardown(is_told_to_leave, agent_case_begin, agent_case_end_test),
		cmocka_unit_test_setup_teardown(a_crowded_controller, agent_case_begin_test, agent_case_end_test),
		cmocka_unit_test_setup_teardown(a_stranger_on_the_port, agent_case_begin_test, agent_case_end_test),
		cmocka_unit_test_setup_teardown(lists_checkpoints, agent_case_begin, agent_case_end_test),
		cmocka_unit_test_setup_teardown(sends_manifests, agent_case_begin, agent_case_end_test),
		cmocka_unit_test_setup_teardown(memory_of_the_node, agent_case_begin_test, agent_case_end_test),
		cmocka_unit_test_setup_teardown(second_agent, agent_case_begin_test, agent_case_end_test),
	};
	if (argc > 1 && !strcmp(argv[1], "worker"))
		return agent_case_worker();
	return cmocka_run_group_tests(tests, agent_case_setup, agent_case_teardown);
}
