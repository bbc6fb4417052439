/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/control_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/contact.h"
#include "controller/cli/commands.h"
#include "controller/cli/control.h"
#include "tests/unit/fake_controller.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

struct fake_controller control_controller;
struct hspmd_error control_err;
char control_folder[] = "/tmp/hspmd-control.XXXXXX";
char control_out[65536], control_said[65536]; /* of the last command: standard output and standard error */
pid_t control_running;

const char *control_path_of(const char *name)
{
	static char path[256];
	snprintf(path, sizeof path, "%s/%s", control_folder, name);
	return path;
}

void control_job_runs(void)
{
	json_t *contact = json_pack("{ss,ss,si,s[s],ss,ss,ss,si,so}", "job", "7", "cluster", "c", "user", (int)getuid(), "addresses", "?",
	                            "auth", "cookie", "cookie", FAKE_CONTROLLER_COOKIE, "host", "here", "pid", (int)getpid(), "output",
	                            json_sprintf("%s/output", control_folder));
	json_object_set_new(contact, "addresses", json_pack("[o]", json_sprintf("127.0.0.1:%d", control_controller.port)));
	assert_int_equal(hspmd_auth_add_version(contact, &control_err), 0);
	assert_int_equal(hspmd_contact_write(control_path_of("c-7.json"), contact, &control_err), 0);
	json_decref(contact);
}

int control_fresh(void **state)
{
	(void)state;
	fake_controller_open(&control_controller);
	mkdir(control_path_of("output"), 0700);
	control_job_runs();
	unsetenv("SLURM_JOB_ID");
	return 0;
}

int control_stop(void **state)
{
	(void)state;
	if (control_running > 0) {
		kill(control_running, SIGKILL);
		waitpid(control_running, NULL, 0);
	}
	control_running = 0;
	fake_controller_close(&control_controller);
	unlink(control_path_of("c-7.json"));
	unlink(control_path_of("output/events.jsonl"));
	return 0;
}

static hspmd_command *command_of(const char *name)
{
	static const struct {
		const char *name;
		hspmd_command *run;
	} commands[] = {
		{ "status", hspmd_command_status }, { "events", hspmd_command_events },         { "grow", hspmd_command_grow },
		{ "shrink", hspmd_command_shrink }, { "checkpoint", hspmd_control_checkpoint },
	};
	for (size_t i = 0; i < COUNT(commands); i++)
		if (!strcmp(commands[i].name, name))
			return commands[i].run;
	return NULL;
}

void control_start(const char *words)
{
	control_running = fork();
	assert_true(control_running >= 0);
	if (control_running)
		return;
	char *copy = strdup(words), *argv[16] = { NULL }, *save = NULL;
	int argc = 0, to_out = open(control_path_of("out"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
	int to_err = open(control_path_of("said"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	fake_controller_close(&control_controller); /* its descriptors are the test's */
	dup2(to_out, 1);
	dup2(to_err, 2);
	for (char *word = strtok_r(copy, " ", &save); word && argc < 15; word = strtok_r(NULL, " ", &save))
		argv[argc++] = word;
	optind = 0;
	int status = command_of(argv[0])(argc, argv);
	fflush(stdout);
	_exit(status);
}

static void read_file(const char *name, char *to, size_t size)
{
	FILE *f = fopen(control_path_of(name), "r");
	size_t n = f ? fread(to, 1, size - 1, f) : 0;
	to[n] = '\0';
	if (f)
		fclose(f);
}

void control_ends_with(int expected)
{
	int status;
	assert_int_equal(waitpid(control_running, &status, 0), control_running);
	control_running = 0;
	read_file("out", control_out, sizeof control_out);
	read_file("said", control_said, sizeof control_said);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != expected)
		fail_msg("expected exit status %d, got %#x; %s", expected, status, control_said);
}

void control_says(const char *where, const char *text)
{
	if (!strstr(where, text))
		fail_msg("expected \"%s\" in \"%s\"", text, where);
}

void control_asked(const char *fields)
{
	json_t *hello = fake_controller_accept(&control_controller), *expected = json_loads(fields, 0, NULL), *v;
	const char *key;
	assert_non_null(expected);
	json_object_foreach(expected, key, v)
		if (!json_equal(v, json_object_get(hello, key)))
			fail_msg("%s of the request %s", key, json_dumps(hello, 0));
	assert_string_equal(json_string_value(json_object_get(hello, "role")), "command");
	json_decref(expected);
	json_decref(hello);
}

void control_answer(const char *text)
{
	json_error_t why;
	json_t *v = json_loads(text, 0, &why);
	if (!v)
		fail_msg("%s: %s", text, why.text);
	fake_controller_send(&control_controller, v);
}
