/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/agent_case.h"

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
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/durable.h"
#include "common/shm_dir.h"
#include "common/wire.h"
#include "runtime/agent/agent.h"

struct agent_case agent_case = { .folder = "/tmp/hspmd-agent.XXXXXX", .first_lock = -1 };

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

int agent_case_worker(void)
{
	struct hspmd_wire_reader *r = hspmd_wire_reader_create(HSPMD_WIRE_MAX);
	bool stubborn = false;
	json_t *m;
	worker_says(json_pack("{ss,si}", "type", "hello", "pid", (int)getpid()));
	while (hspmd_wire_receive(3, r, -1, &m, &agent_case.err) == 1) {
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

const char *agent_case_path(const char *name)
{
	static char path[256];
	snprintf(path, sizeof path, "%s/%s", agent_case.folder, name);
	return path;
}

void agent_case_start(const char *cookie, double reconnect_s)
{
	const struct hspmd_agent_options o = { .controllers = agent_case.controllers,
		                               .cookie = cookie,
		                               .node = "n1",
		                               .cluster = agent_case.cluster,
		                               .threads = 3,
		                               .memory = agent_case.memory,
		                               .reconnect_timeout_s = reconnect_s };
	snprintf(agent_case.controllers, sizeof agent_case.controllers, "127.0.0.1:1,127.0.0.1:%d",
	         agent_case.controller.port); /* nobody answers on the first */
	agent_case.agent = fork();
	assert_true(agent_case.agent >= 0);
	if (agent_case.agent)
		return;
	int log = open(agent_case_path("log"), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	fake_controller_close(&agent_case.controller); /* its descriptors are the test's */
	if (agent_case.first_lock >= 0)
		close(agent_case.first_lock);
	dup2(log, 1);
	dup2(log, 2);
	_exit(hspmd_agent_main(&o));
}

void agent_case_ends_with(int expected)
{
	int status;
	assert_int_equal(waitpid(agent_case.agent, &status, 0), agent_case.agent);
	agent_case.agent = 0;
	if (!WIFEXITED(status) || WEXITSTATUS(status) != expected)
		fail_msg("expected exit status %d of the agent, got %#x", expected, status);
}

bool agent_case_logged(const char *text)
{
	char all[16384];
	FILE *f = fopen(agent_case_path("log"), "r");
	size_t n = f ? fread(all, 1, sizeof all - 1, f) : 0;
	all[n] = '\0';
	if (f)
		fclose(f);
	return strstr(all, text);
}

void agent_case_await_log(const char *text)
{
	double until = hspmd_now() + FAKE_CONTROLLER_WAIT_S;
	while (!agent_case_logged(text)) {
		if (hspmd_now() > until)
			fail_msg("the agent did not log: %s", text);
		usleep(1000);
	}
}

void agent_case_await_no_process(int pid)
{
	double until = hspmd_now() + FAKE_CONTROLLER_WAIT_S;
	while (!kill(pid, 0)) {
		if (hspmd_now() > until)
			fail_msg("process %d is still there", pid);
		usleep(1000);
	}
	assert_int_equal(errno, ESRCH);
}

int agent_case_begin_test(void **state)
{
	(void)state;
	fake_controller_open(&agent_case.controller);
	return 0;
}

int agent_case_begin(void **state)
{
	agent_case_begin_test(state);
	agent_case_start(FAKE_CONTROLLER_COOKIE, 60);
	json_decref(fake_controller_accept(&agent_case.controller));
	return 0;
}

int agent_case_end_test(void **state)
{
	(void)state;
	if (agent_case.agent > 0) {
		kill(agent_case.agent, SIGKILL);
		waitpid(agent_case.agent, NULL, 0);
	}
	agent_case.agent = 0;
	fake_controller_close(&agent_case.controller);
	if (agent_case.memory)
		hspmd_shm_dir_remove(agent_case.memory, "n1");
	free(agent_case.memory);
	agent_case.memory = NULL;
	return 0;
}

/* ---- messages */

void agent_case_send(const char *text)
{
	json_t *m = json_loads(text, 0, NULL);
	if (!m)
		fail_msg("%s", text);
	fake_controller_send(&agent_case.controller, m);
}

void agent_case_expect(const char *text)
{
	json_t *expected = json_loads(text, 0, NULL), *m = fake_controller_receive(&agent_case.controller), *v;
	const char *key;
	assert_non_null(expected);
	json_object_foreach(expected, key, v)
		if (!json_equal(v, json_object_get(m, key)))
			fail_msg("expected %s, got %s", text, json_dumps(m, 0));
	json_decref(expected);
	json_decref(m);
}

int agent_case_spawn(const char *device, int serial)
{
	fake_controller_send(&agent_case.controller, json_pack("{ss,ss,si}", "type", "spawn", "device", device, "serial", serial));
	json_t *hello = fake_controller_await(&agent_case.controller, "hello");
	assert_string_equal(json_string_value(json_object_get(hello, "from")), device);
	int pid = (int)json_integer_value(json_object_get(hello, "pid"));
	json_decref(hello);
	return pid;
}

/* ---- the folder */

int agent_case_setup(void **state)
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
	if (!mkdtemp(agent_case.folder))
		return -1;
	snprintf(agent_case.cluster, sizeof agent_case.cluster, "%s/cluster.json", agent_case.folder);
	return hspmd_durable_write(agent_case.cluster, text, strlen(text), &agent_case.err);
}

int agent_case_teardown(void **state)
{
	char command[64];
	(void)state;
	snprintf(command, sizeof command, "rm -rf %s", agent_case.folder);
	return system(command);
}
