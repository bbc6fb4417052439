/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/standin_agent.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/alloc.h"
#include "common/base64.h"
#include "common/clock.h"
#include "common/durable.h"
#include "common/wire.h"
#include "runtime/command/standin.h"

char agent_folder[] = "/tmp/hspmd-standin.XXXXXX";
struct hspmd_error agent_err;

int agent_make_folder(void **state)
{
	(void)state;
	return mkdtemp(agent_folder) ? 0 : -1;
}

int agent_drop_folder(void **state)
{
	(void)state;
	return hspmd_remove_tree(agent_folder, &agent_err);
}

void agent_tell(struct agent *a, json_t *m)
{
	assert_int_equal(hspmd_wire_send(a->fd, m, PATIENCE_S, &agent_err), 0);
	json_decref(m);
}

json_t *agent_next(struct agent *a, const char *type)
{
	for (;;) {
		json_t *m;
		if (hspmd_wire_receive(a->fd, a->reader, PATIENCE_S, &m, &agent_err) != 1)
			fail_msg("waiting for %s: %s", type, agent_err.text);
		const char *got = json_string_value(json_object_get(m, "type"));
		if (!strcmp(got, type))
			return m;
		if (strcmp(got, "step"))
			fail_msg("expected %s, got %s: %s", type, got, json_string_value(json_object_get(m, "text")));
		json_decref(m);
	}
}

void agent_expect(struct agent *a, const char *type)
{
	json_decref(agent_next(a, type));
}

bool agent_is_warm; /* of the next stand-in */

json_t *shell(const char *script)
{
	return json_pack("[sss]", "bash", "-c", script);
}

void agent_open_with(struct agent *a, json_t *command, const char *notice)
{
	int ends[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	a->pid = fork();
	if (!a->pid) {
		close(ends[0]);
		exit(hspmd_standin_main(ends[1]));
	}
	close(ends[1]);
	a->fd = ends[0];
	a->reader = hspmd_wire_reader_create(HSPMD_WIRE_MAX);
	a->generation = 0;
	agent_expect(a, "hello");
	char *checkpoint = hspmd_asprintf("%s/checkpoint", agent_folder);
	agent_tell(a,
	           json_pack("{ss,s{ss,so,ss,ss,sb},sn,ss,ss,ss,ss,ss,si,ss}", "type", "job", "job", "format", "hspmd-job-1", "command",
	                     command, "notice", notice, "folder", agent_folder, "warm", (int)agent_is_warm, "model", "output", agent_folder,
	                     "node", "n1", "device", "n1:0", "kind", "cpu", "id", "77", "threads", 3, "checkpoint", checkpoint));
	free(checkpoint);
}

json_t *agent_prepare(struct agent *a, json_t *devices)
{
	json_t *pipelines = json_array(), *device;
	size_t i;
	a->generation++;
	json_array_foreach(devices, i, device)
		json_array_append_new(pipelines, json_pack("{s[{s[O]}]}", "stages", "devices", device));
	agent_tell(a, json_pack("{ss,sI,s{so},sO}", "type", "prepare", "generation", (json_int_t)a->generation, "plan", "pipelines",
	                        pipelines, "members", devices));
	return agent_next(a, "prepared");
}

void agent_tell_addresses(struct agent *a, const char *type, int64_t generation, json_t *devices)
{
	json_t *addresses = json_object(), *device;
	size_t i;
	json_array_foreach(devices, i, device) {
		char *text = hspmd_base64_encode("10.0.0.7:4711", 13);
		json_object_set_new(addresses, json_string_value(device), json_string(text));
		free(text);
	}
	agent_tell(a, json_pack("{ss,sI,so,sI,s{}}", "type", type, "generation", (json_int_t)generation, "addresses", addresses, "step",
	                        (json_int_t)5, "state"));
}

void agent_order_start(struct agent *a, json_t *devices)
{
	json_t *prepared = agent_prepare(a, devices);
	size_t n;
	char *address = hspmd_base64_decode(json_string_value(json_object_get(prepared, "address")), &n);
	address[n] = '\0';
	assert_true(atoi(strrchr(address, ':') + 1) > 0);
	free(address);
	json_decref(prepared);
	agent_tell_addresses(a, "start", a->generation, devices);
	json_decref(devices);
}

json_t *agent_start_on(struct agent *a, json_t *devices, const char *answer)
{
	agent_order_start(a, devices);
	return agent_next(a, answer);
}

void agent_start(struct agent *a)
{
	json_t *started = agent_start_on(a, json_pack("[ssss]", "n0:0", "n1:0", "n1:1", "n2:0"), "started");
	assert_int_equal(json_integer_value(json_object_get(started, "step")), 5);
	json_decref(started);
}

void agent_start_alone(struct agent *a)
{
	json_decref(agent_start_on(a, json_pack("[s]", "n1:0"), "started"));
}

json_t *agent_stop(struct agent *a)
{
	agent_tell(a, json_pack("{ss,sI}", "type", "stop", "generation", (json_int_t)a->generation));
	return agent_next(a, "stopped");
}

void agent_wait_end(struct agent *a)
{
	int status;
	assert_int_equal(waitpid(a->pid, &status, 0), a->pid);
	assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
	hspmd_wire_reader_destroy(a->reader);
	close(a->fd);
}

void agent_quit(struct agent *a)
{
	agent_tell(a, json_pack("{ss}", "type", "quit"));
	agent_wait_end(a);
}

char *contents(const char *name)
{
	char *path = hspmd_asprintf("%s/%s", agent_folder, name), *text = NULL;
	double until = hspmd_now() + PATIENCE_S;
	for (size_t n = 0; !n || text[n - 1] != '\n'; nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL)) {
		FILE *f = fopen(path, "r");
		free(text);
		text = calloc(1, 65536);
		n = f ? fread(text, 1, 65535, f) : 0;
		if (f)
			fclose(f);
		if (hspmd_now() > until)
			fail_msg("waited for %s", path);
	}
	free(path);
	return text;
}

pid_t pid_in(const char *name)
{
	char *text = contents(name);
	pid_t pid = atoi(text);
	free(text);
	return pid;
}

void assert_gone(const char *name)
{
	pid_t pid = pid_in(name);
	if (!kill(pid, 0))
		fail_msg("%s: process %d is still there", name, (int)pid);
	char *path = hspmd_asprintf("%s/%s", agent_folder, name);
	unlink(path);
	free(path);
}

void assert_status(json_t *m, int status, bool finished)
{
	json_t *v = json_object_get(m, "status");
	assert_int_equal(v ? json_integer_value(v) : -1, status);
	assert_int_equal(json_is_true(json_object_get(m, "finished")), finished);
	json_decref(m);
}
