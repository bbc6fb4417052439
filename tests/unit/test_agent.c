/* SPDX-License-Identifier: Apache-2.0 */
/* A real agent between a controller and workers of this test's own: it starts and ends workers, passes messages on, reports their ends, and
 * keeps them while there is no controller. The agent starts its workers from its own program, which is this one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/durable.h"
#include "common/shm_dir.h"
#include "common/wire.h"
#include "runtime/agent/agent.h"
#include "runtime/state/checkpoint_choice.h"
#include "tests/unit/fake_controller.h"

static struct fake_controller controller;
static struct hspmd_error err;
static char folder[] = "/tmp/hspmd-agent.XXXXXX";
static char controllers[128], cluster[64], *memory;
static pid_t agent;
static int first_lock = -1; /* of the node's memory, as another agent holds it */

/* ---- the worker */

static void worker_says(json_t *m)
{
	struct hspmd_error ignored;
	hspmd_wire_send(3, m, 10, &ignored);
	json_decref(m);
}

/* Sends `count` messages of a type. */
static void worker_counts(const char *type, const json_t *m)
{
	for (int i = 0; i < (int)json_integer_value(json_object_get(m, "count")); i++)
		worker_says(json_pack("{ss,si}", "type", type, "step", i));
}

/* Obeys the messages that the tests send. */
static int worker(void)
{
	struct hspmd_wire_reader *r = hspmd_wire_reader_create(HSPMD_WIRE_MAX);
	bool stubborn = false;
	json_t *m;
	worker_says(json_pack("{ss,si}", "type", "hello", "pid", (int)getpid()));
	while (hspmd_wire_receive(3, r, -1, &m, &err) == 1) {
		const char *type = json_string_value(json_object_get(m, "type"));
		int number = (int)json_integer_value(json_object_get(m, "number"));
		if (!strcmp(type, "echo"))
			worker_says(json_pack("{ss,si}", "type", "echoed", "number", number));
		if (!strcmp(type, "train"))
			worker_counts("step", m);
		if (!strcmp(type, "talk while alone")) { /* as soon as the test's file exists */
			char path[128];
			snprintf(path, sizeof path, "%s/alone", json_string_value(json_object_get(m, "folder")));
			while (access(path, F_OK))
				usleep(1000);
			worker_counts("note", m);
			worker_counts("step", m);
			unlink(path);
		}
		if (!strcmp(type, "stubborn"))
			stubborn = true;
		if (!strcmp(type, "end")) {
			worker_counts("note", m);
			_exit(number);
		}
		if (!strcmp(type, "die"))
			raise(number);
		if (!strcmp(type, "quit") && !stubborn)
			_exit(0);
		json_decref(m);
	}
	return 1;
}

/* ---- the agent */

static const char *path_of(const char *name)
{
	static char path[256];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	return path;
}

static void start_agent(const char *cookie, double reconnect_s)
{
	const struct hspmd_agent_options o = { .controllers = controllers,
		                               .cookie = cookie,
		                               .node = "n1",
		                               .cluster = cluster,
		                               .threads = 3,
		                               .memory = memory,
		                               .reconnect_timeout_s = reconnect_s };
	snprintf(controllers, sizeof controllers, "127.0.0.1:1,127.0.0.1:%d", controller.port); /* nobody answers on the first */
	agent = fork();
	assert_true(agent >= 0);
	if (agent)
		return;
	int log = open(path_of("log"), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	fake_controller_close(&controller); /* its descriptors are the test's */
	if (first_lock >= 0)
		close(first_lock);
	dup2(log, 1);
	dup2(log, 2);
	_exit(hspmd_agent_main(&o));
}

static void agent_ends_with(int expected)
{
	int status;
	assert_int_equal(waitpid(agent, &status, 0), agent);
	agent = 0;
	if (!WIFEXITED(status) || WEXITSTATUS(status) != expected)
		fail_msg("expected exit status %d of the agent, got %#x", expected, status);
}

static bool logged(const char *text)
{
	char all[16384];
	FILE *f = fopen(path_of("log"), "r");
	size_t n = f ? fread(all, 1, sizeof all - 1, f) : 0;
	all[n] = '\0';
	if (f)
		fclose(f);
	return strstr(all, text);
}

/* Waits until the agent has written this into its log. */
static void await_log(const char *text)
{
	double until = hspmd_now() + FAKE_CONTROLLER_WAIT_S;
	while (!logged(text)) {
		if (hspmd_now() > until)
			fail_msg("the agent did not log: %s", text);
		usleep(1000);
	}
}

static void await_no_process(int pid)
{
	double until = hspmd_now() + FAKE_CONTROLLER_WAIT_S;
	while (!kill(pid, 0)) {
		if (hspmd_now() > until)
			fail_msg("process %d is still there", pid);
		usleep(1000);
	}
	assert_int_equal(errno, ESRCH);
}

static int begin_test(void **state)
{
	(void)state;
	fake_controller_open(&controller);
	return 0;
}

/* An agent that has greeted this test's controller. */
static int with_agent(void **state)
{
	begin_test(state);
	start_agent(FAKE_CONTROLLER_COOKIE, 60);
	json_decref(fake_controller_accept(&controller));
	return 0;
}

static int end_test(void **state)
{
	(void)state;
	if (agent > 0) {
		kill(agent, SIGKILL);
		waitpid(agent, NULL, 0);
	}
	agent = 0;
	fake_controller_close(&controller);
	if (memory)
		hspmd_shm_dir_remove(memory, "n1");
	free(memory);
	memory = NULL;
	return 0;
}

/* ---- messages */

static void send(const char *text)
{
	json_t *m = json_loads(text, 0, NULL);
	if (!m)
		fail_msg("%s", text);
	fake_controller_send(&controller, m);
}

/* The next message has these fields. */
static void expect(const char *text)
{
	json_t *expected = json_loads(text, 0, NULL), *m = fake_controller_receive(&controller), *v;
	const char *key;
	assert_non_null(expected);
	json_object_foreach(expected, key, v)
		if (!json_equal(v, json_object_get(m, key)))
			fail_msg("expected %s, got %s", text, json_dumps(m, 0));
	json_decref(expected);
	json_decref(m);
}

/* Starts a worker; returns its process. */
static int spawn(const char *device, int serial)
{
	fake_controller_send(&controller, json_pack("{ss,ss,si}", "type", "spawn", "device", device, "serial", serial));
	json_t *hello = fake_controller_await(&controller, "hello");
	assert_string_equal(json_string_value(json_object_get(hello, "from")), device);
	int pid = (int)json_integer_value(json_object_get(hello, "pid"));
	json_decref(hello);
	return pid;
}

/* ---- tests */

static void the_node(void **state)
{
	(void)state;
	setenv("SLURM_JOB_ID", "17", 1);
	start_agent(FAKE_CONTROLLER_COOKIE, 60);
	unsetenv("SLURM_JOB_ID");
	json_t *hello = fake_controller_accept(&controller), *part = json_object_get(hello, "cluster"),
	       *bindings = json_object_get(hello, "bindings");
	assert_string_equal(json_string_value(json_object_get(hello, "role")), "agent");
	assert_string_equal(json_string_value(json_object_get(hello, "node")), "n1");
	assert_string_equal(json_string_value(json_object_get(hello, "job")), "17");
	assert_int_equal(json_integer_value(json_object_get(hello, "pid")), agent);
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
	send("{\"type\": \"quit\"}");
	agent_ends_with(0);
}

static void starts_and_forwards(void **state)
{
	(void)state;
	int first = spawn("n1:0", 5), second = spawn("n1:1", 6);
	assert_int_not_equal(first, second);
	send("{\"type\": \"echo\", \"number\": 1, \"to\": \"n1:0\"}");
	expect("{\"type\": \"echoed\", \"number\": 1, \"from\": \"n1:0\"}");
	send("{\"type\": \"echo\", \"number\": 2, \"to\": [\"n9:0\", \"n1:1\"]}");
	expect("{\"type\": \"echoed\", \"number\": 2, \"from\": \"n1:1\"}");
	send("{\"type\": \"echo\", \"number\": 3, \"to\": \"n1:9\"}"); /* nobody */
	send("{\"type\": \"echo\", \"number\": 4, \"to\": \"*\"}");
	int seen = 0;
	for (int i = 0; i < 2; i++) {
		json_t *m = fake_controller_await(&controller, "echoed");
		assert_int_equal(json_integer_value(json_object_get(m, "number")), 4);
		seen |= strcmp(json_string_value(json_object_get(m, "from")), "n1:0") ? 2 : 1;
		json_decref(m);
	}
	assert_int_equal(seen, 3);
	/* What cannot be started is reported as an end, and disturbs nobody. */
	send("{\"type\": \"spawn\", \"device\": \"n1:0\", \"serial\": 7}");
	expect("{\"type\": \"exited\", \"device\": \"n1:0\", \"serial\": 7, \"status\": 1, \"signal\": 0, \"text\": \"n1:0 has a worker "
	       "already\"}");
	send("{\"type\": \"spawn\", \"device\": \"n1:4\", \"serial\": 8}");
	expect("{\"type\": \"exited\", \"device\": \"n1:4\", \"serial\": 8, \"status\": 1, \"text\": \"spawn: n1:4 is no device of node "
	       "n1\"}");
	send("{\"type\": \"spawn\", \"serial\": 9}");
	expect("{\"type\": \"exited\", \"device\": \"?\", \"serial\": 9}");
	send("{\"type\": \"echo\", \"number\": 5, \"to\": \"n1:0\"}");
	expect("{\"type\": \"echoed\", \"number\": 5, \"from\": \"n1:0\"}");
	send("{\"type\": \"quit\"}");
	agent_ends_with(0);
	await_no_process(first);
	await_no_process(second);
}

static void ends_of_workers(void **state)
{
	(void)state;
	spawn("n1:0", 5);
	/* A worker's last messages come before its end. */
	send("{\"type\": \"end\", \"number\": 3, \"count\": 20, \"to\": \"n1:0\"}");
	for (int i = 0; i < 20; i++) {
		json_t *m = fake_controller_receive(&controller);
		assert_string_equal(json_string_value(json_object_get(m, "type")), "note");
		assert_int_equal(json_integer_value(json_object_get(m, "step")), i);
		json_decref(m);
	}
	expect("{\"type\": \"exited\", \"device\": \"n1:0\", \"serial\": 5, \"status\": 3, \"signal\": 0, \"text\": \"exit status 3\"}");
	spawn("n1:0", 6);
	send("{\"type\": \"die\", \"number\": 11, \"to\": \"n1:0\"}");
	json_t *m = fake_controller_receive(&controller);
	assert_int_equal(json_integer_value(json_object_get(m, "signal")), SIGSEGV);
	assert_int_equal(json_integer_value(json_object_get(m, "serial")), 6);
	assert_non_null(strstr(json_string_value(json_object_get(m, "text")), "ended by signal 11"));
	json_decref(m);
	/* Only the worker that is meant is killed, and another may start at once. */
	int third = spawn("n1:0", 7);
	send("{\"type\": \"stubborn\", \"to\": \"n1:0\"}");
	send("{\"type\": \"kill\", \"device\": \"n1:0\", \"serial\": 6}");
	send("{\"type\": \"echo\", \"number\": 1, \"to\": \"n1:0\"}");
	expect("{\"type\": \"echoed\", \"number\": 1}");
	kill(agent, SIGSTOP); /* so that it reads both at once, before the killed process has ended */
	send("{\"type\": \"kill\", \"device\": \"n1:0\", \"serial\": 7}");
	send("{\"type\": \"spawn\", \"device\": \"n1:0\", \"serial\": 8}");
	kill(agent, SIGCONT);
	send("{\"type\": \"echo\", \"number\": 2, \"to\": \"n1:0\"}");
	bool killed = false, echoed = false;
	while (!killed || !echoed) {
		m = fake_controller_receive(&controller);
		const char *type = json_string_value(json_object_get(m, "type"));
		if (!strcmp(type, "exited")) {
			assert_int_equal(json_integer_value(json_object_get(m, "serial")), 7);
			assert_int_equal(json_integer_value(json_object_get(m, "signal")), SIGKILL);
			killed = true;
		}
		echoed |= !strcmp(type, "echoed");
		json_decref(m);
	}
	await_no_process(third);
}

/* Without a controller the agent keeps its workers and what they say; the next controller learns both. */
static void a_lost_controller(void **state)
{
	(void)state;
	int pid = spawn("n1:1", 5);
	send("{\"type\": \"train\", \"count\": 3, \"to\": \"n1:1\"}");
	for (int i = 0; i < 3; i++)
		json_decref(fake_controller_await(&controller, "step"));
	fake_controller_send(&controller,
	                     json_pack("{ss,si,ss,ss}", "type", "talk while alone", "count", 2, "folder", folder, "to", "n1:1"));
	send("{\"type\": \"spawn\", \"device\": \"n1:7\", \"serial\": 1}");
	json_decref(fake_controller_await(&controller, "exited")); /* so that it has read all of that */
	fake_controller_deafen(&controller);
	fake_controller_hang_up(&controller);
	await_log("keeping the workers and calling again");
	assert_int_equal(hspmd_durable_write(path_of("alone"), "", 0, &err), 0);
	while (!access(path_of("alone"), F_OK))
		usleep(1000);
	fake_controller_listen(&controller);
	json_t *hello = fake_controller_accept(&controller), *list = json_object_get(hello, "workers");
	assert_int_equal(json_array_size(list), 1);
	assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "device")), "n1:1");
	assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 0), "serial")), 5);
	assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 0), "pid")), pid);
	json_decref(hello);
	/* First the steps that the last controller may not have written down, then what came since, in order. */
	static const char *const types[] = { "step", "step", "step", "note", "note", "step", "step" };
	static const int steps[] = { 0, 1, 2, 0, 1, 0, 1 };
	for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
		json_t *m = fake_controller_receive(&controller);
		if (strcmp(json_string_value(json_object_get(m, "type")), types[i]) != 0 ||
		    json_integer_value(json_object_get(m, "step")) != steps[i])
			fail_msg("message %zu: %s", i, json_dumps(m, 0));
		assert_string_equal(json_string_value(json_object_get(m, "from")), "n1:1");
		json_decref(m);
	}
	send("{\"type\": \"echo\", \"number\": 1, \"to\": \"*\"}");
	expect("{\"type\": \"echoed\", \"number\": 1}");
	assert_true(logged("the controller is back"));
}

static void no_controller_for_too_long(void **state)
{
	(void)state;
	start_agent(FAKE_CONTROLLER_COOKIE, 0.1);
	json_decref(fake_controller_accept(&controller));
	int pid = spawn("n1:0", 1);
	fake_controller_deafen(&controller);
	fake_controller_hang_up(&controller);
	agent_ends_with(1);
	assert_true(logged("no controller for"));
	await_no_process(pid);
}

/* Slurm ends the job: the controller hears of it, and the agent goes on until the controller ends it or is gone. */
static void is_told_to_leave(void **state)
{
	(void)state;
	int pid = spawn("n1:0", 1);
	assert_int_equal(kill(agent, SIGINT), 0); /* of the terminal */
	assert_int_equal(kill(agent, SIGTERM), 0);
	expect("{\"type\": \"terminating\", \"text\": \"Terminated\"}");
	send("{\"type\": \"echo\", \"number\": 1, \"to\": \"n1:0\"}");
	expect("{\"type\": \"echoed\", \"number\": 1}");
	fake_controller_hang_up(&controller);
	agent_ends_with(1);
	assert_false(logged("no controller for")); /* it has not waited for another */
	await_no_process(pid);
}

/* The controller has no room for the first calls: the agent calls again. A refusal for another reason is final. */
static void a_crowded_controller(void **state)
{
	(void)state;
	start_agent(FAKE_CONTROLLER_COOKIE, 60);
	json_decref(fake_controller_challenge(&controller));
	fake_controller_hang_up(&controller);
	json_decref(fake_controller_challenge(&controller));
	send("{\"type\": \"refused\", \"text\": \"crowded\", \"again\": true}");
	json_decref(fake_controller_challenge(&controller));
	send("{\"type\": \"refused\", \"text\": \"you are not wanted\"}");
	agent_ends_with(1);
	assert_true(logged("cannot be reached: the controller refused: you are not wanted"));
}

static void a_stranger_on_the_port(void **state)
{
	char cookie[] = FAKE_CONTROLLER_COOKIE;
	(void)state;
	cookie[0] = 'f';
	start_agent(cookie, 60);
	struct fake_controller other = controller;
	other.auth = hspmd_auth_cookie(cookie, &err);
	other.peer = NULL;
	json_decref(fake_controller_challenge(&other)); /* it reads the agent's proof, and cannot make its own */
	fake_controller_send(&other, json_pack("{ss,ss,ss}", "type", "welcome", "words", "{}", "mac", "00"));
	agent_ends_with(1);
	assert_true(logged("the controller cannot be reached"));
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
	assert_int_equal(mkdir(path_of("local"), 0700), 0);
	for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
		assert_int_equal(mkdir(path_of(folders[i]), 0700), 0);
	assert_int_equal(hspmd_durable_write(path_of("local/n1/step-0000000007-g1/n1-0.safetensors"), "x", 1, &err), 0);
	assert_int_equal(hspmd_durable_write(path_of("shared/step-0000000005-g2/manifest.json"), "{", 1, &err), 0);
	fake_controller_send(&controller,
	                     json_pack("{ss,si,so,so,so}", "type", "list_checkpoints", "id", 12, "local", json_sprintf("%s/local", folder),
	                               "shared", json_sprintf("%s/shared", folder), "memory", json_null()));
	json_t *m = fake_controller_receive(&controller), *list = json_object_get(m, "checkpoints"), *one;
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
	assert_true(logged("step-0000000005-g2")); /* the damaged manifest is named */
}

/* What the agent answers to `read_manifest`. */
static json_t *read_manifest(const char *sum)
{
	fake_controller_send(&controller, json_pack("{ss,si,ss,so,so,so}", "type", "read_manifest", "id", 14, "sum", sum, "local",
	                                            json_sprintf("%s/local", folder), "shared", json_sprintf("%s/shared", folder), "memory",
	                                            json_null()));
	json_t *m = fake_controller_receive(&controller);
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
		mkdir(path_of(folders[i]), 0700);
	for (int i = 0; i < 2; i++) {
		const char *path = path_of(i ? "shared/step-0000000009-g1/manifest.json" : "local/n1/step-0000000007-g1/manifest.json");
		assert_int_equal(hspmd_durable_write(path, texts[i], strlen(texts[i]), &err), 0);
	}
	/* Both have the shard, though too short: a node's own counts by its size, one in the shared folder by its name. */
	assert_int_equal(hspmd_durable_write(path_of("local/n1/step-0000000007-g1/n1-0.safetensors"), "x", 1, &err), 0);
	assert_int_equal(hspmd_durable_write(path_of("shared/step-0000000009-g1/n1-0.safetensors"), "x", 1, &err), 0);
	fake_controller_send(&controller,
	                     json_pack("{ss,si,so,so,so}", "type", "list_checkpoints", "id", 13, "local", json_sprintf("%s/local", folder),
	                               "shared", json_sprintf("%s/shared", folder), "memory", json_null()));
	json_t *list = fake_controller_receive(&controller), *one, *m;
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
		assert_int_equal(hspmd_manifest_is(json_object_get(m, "manifest"), json_string_value(json_object_get(one, "sum")), &err),
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
	memory = hspmd_shm_dir(name);
	if (!memory)
		skip();
	snprintf(own, sizeof own, "%s/n1", memory);
	for (int killed = 1; killed >= 0; killed--) {
		start_agent(FAKE_CONTROLLER_COOKIE, 60);
		json_decref(fake_controller_accept(&controller));
		spawn("n1:0", 1); /* the agent hears messages after it has made the folder */
		if (killed) {
			assert_int_equal(mkdir(own, 0700), 0); /* as a worker does */
			kill(agent, SIGKILL);
			waitpid(agent, NULL, 0);
			assert_int_equal(access(own, F_OK), 0);
		} else {
			send("{\"type\": \"quit\"}");
			agent_ends_with(0);
			assert_int_equal(access(own, F_OK), -1);
			assert_int_equal(access(memory, F_OK), -1);
		}
	}
}

static int begin(void **state)
{
	static const char text[] =
	        "{\"format\": \"hspmd-cluster-1\", \"device_types\": {\"c\": {\"kind\": \"cpu\", \"memory_bytes\": 1000000000, "
	        "\"gbytes_per_s\": 10, "
	        "\"peak_tflops\": {\"fp32\": 0.1}}, \"g\": {\"kind\": \"cuda\", \"memory_bytes\": 1000000000, \"gbytes_per_s\": 10, "
	        "\"peak_tflops\": {\"fp32\": 1}}}, \"nodes\": [{\"name\": \"n0\", \"devices\": [{\"type\": \"c\", \"count\": 1}]}, "
	        "{\"name\": \"n1\", "
	        "\"devices\": [{\"type\": \"c\", \"count\": 2}, {\"type\": \"g\", \"count\": 2}]}], "
	        "\"links\": [{\"scope\": \"node\", \"alpha_s\": 1e-6, \"gbytes_per_s\": 5}, {\"scope\": \"cluster\", \"alpha_s\": 1e-5, "
	        "\"gbytes_per_s\": 1}]}";
	(void)state;
	if (!mkdtemp(folder))
		return -1;
	snprintf(cluster, sizeof cluster, "%s/cluster.json", folder);
	return hspmd_durable_write(cluster, text, strlen(text), &err);
}

static int end(void **state)
{
	char command[64];
	(void)state;
	snprintf(command, sizeof command, "rm -rf %s", folder);
	return system(command);
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
	memory = hspmd_shm_dir(name);
	if (!memory)
		skip();
	snprintf(own, sizeof own, "%s/n1", memory);
	for (int ends = 0; ends < 2; ends++) {
		first_lock = hspmd_shm_dir_lock(memory, "n1", NULL, HSPMD_SHM_DIR_LOOK_S, &err);
		assert_true(first_lock >= 0);
		assert_true(!mkdir(own, 0700));
		start_agent(FAKE_CONTROLLER_COOKIE, 60);
		expect_alone(fake_controller_accept(&controller), 0);
		send("{\"type\": \"ping\"}");
		expect("{\"type\": \"pong\"}");
		if (ends) {
			close(first_lock);
			expect("{\"type\": \"alone\"}");
			fake_controller_hang_up(&controller);
			expect_alone(fake_controller_accept(&controller), 1);
		}
		send(ends ? "{\"type\": \"quit\"}" : "{\"type\": \"turned_away\", \"text\": \"the first one lives\"}");
		agent_ends_with(ends ? 0 : 1);
		assert_true(ends || logged("this agent is not needed, and ends: the first one lives"));
		assert_int_equal(access(own, F_OK), ends ? -1 : 0);
		if (!ends) {
			close(first_lock);
			hspmd_shm_dir_remove(memory, "n1");
		}
		first_lock = -1;
	}
	/* Whoever cannot reach the controller removes nothing either. */
	assert_true(!mkdir(memory, 0700) && !mkdir(own, 0700));
	fake_controller_deafen(&controller);
	start_agent(FAKE_CONTROLLER_COOKIE, 60);
	agent_ends_with(1);
	assert_int_equal(access(own, F_OK), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(the_node, begin_test, end_test),
		cmocka_unit_test_setup_teardown(starts_and_forwards, with_agent, end_test),
		cmocka_unit_test_setup_teardown(ends_of_workers, with_agent, end_test),
		cmocka_unit_test_setup_teardown(a_lost_controller, with_agent, end_test),
		cmocka_unit_test_setup_teardown(no_controller_for_too_long, begin_test, end_test),
		cmocka_unit_test_setup_teardown(is_told_to_leave, with_agent, end_test),
		cmocka_unit_test_setup_teardown(a_crowded_controller, begin_test, end_test),
		cmocka_unit_test_setup_teardown(a_stranger_on_the_port, begin_test, end_test),
		cmocka_unit_test_setup_teardown(lists_checkpoints, with_agent, end_test),
		cmocka_unit_test_setup_teardown(sends_manifests, with_agent, end_test),
		cmocka_unit_test_setup_teardown(memory_of_the_node, begin_test, end_test),
		cmocka_unit_test_setup_teardown(second_agent, begin_test, end_test),
	};
	if (argc > 1 && !strcmp(argv[1], "worker"))
		return worker();
	return cmocka_run_group_tests(tests, begin, end);
}
