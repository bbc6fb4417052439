/* SPDX-License-Identifier: Apache-2.0 */
/* hspmdctld as a service: its status for the service manager, and its lines in syslog. It runs in a process of its own on an invented
 * cluster. The test plays the service manager and, if it may create a mount namespace, syslog. */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h> /* cmocka.h needs it */
#include <cmocka.h>

#include "common/clock.h"
#include "controller/ctld/daemon.h"
#include "controller/ctld_client/client.h"

#define PATIENCE_S 60
static const char secret[] = "0123456789abcdef0123456789abcdef0123456789abcdef";
static const char rules[] = "{\"format\": \"hspmd-policy-1\", \"rules\": [{\"name\": \"fill\", \"grow\": {\"into_idle\": true, "
                            "\"after_idle_s\": 0, \"cooldown_s\": 0, \"min_gain\": 0}}]}";

struct daemon {
	char folder[64], policy[96], address[64];
	int notices, log, out; /* what it writes to the service manager, to syslog, and to standard error */
	pid_t pid;
};

/* ---- the invented cluster: job 7 of this user on n0; n1 is idle */

static int fake_poll(void *context, const struct hspmd_slurm_view *old, struct hspmd_slurm_view **new, int *rpcs, struct hspmd_error *err)
{
	(void)context, (void)err;
	*rpcs += 2;
	*new = NULL;
	if (old)
		return 0;
	struct hspmd_slurm_view *v = calloc(1, sizeof *v);
	v->nodes = calloc(2, sizeof *v->nodes);
	v->partitions = calloc(1, sizeof *v->partitions);
	v->jobs = calloc(1, sizeof *v->jobs);
	v->node_count = 2;
	v->partition_count = v->job_count = 1;
	for (int i = 0; i < 2; i++)
		v->nodes[i] = (struct hspmd_slurm_view_node){ .name = strdup(i ? "n1" : "n0"),
			                                      .state = i ? HSPMD_SLURM_VIEW_IDLE : HSPMD_SLURM_VIEW_BUSY,
			                                      .cpus = 1,
			                                      .features = strdup(""),
			                                      .gres = strdup("") };
	v->partitions[0] = (struct hspmd_slurm_view_partition){ .name = strdup("main"), .up = true, .nodes = malloc(2) };
	memset(v->partitions[0].nodes, 1, 2);
	v->jobs[0] = (struct hspmd_slurm_view_job){ .id = 7,
		                                    .uid = getuid(),
		                                    .state = HSPMD_SLURM_VIEW_RUNNING,
		                                    .user = strdup("ann"),
		                                    .account = strdup(""),
		                                    .partition = strdup("main"),
		                                    .qos = strdup(""),
		                                    .features = strdup(""),
		                                    .tres_per_node = strdup(""),
		                                    .batch_host = strdup("n0"),
		                                    .limit_s = INFINITY,
		                                    .held = calloc(1, sizeof(int)),
		                                    .held_count = 1 };
	*new = v;
	return 1;
}

/* ---- the daemon's process */

static bool own_syslog(int log)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX, .sun_path = "/dev/log" };
	if (unshare(CLONE_NEWNS) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
		return false;
	return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mount("none", "/dev", "tmpfs", 0, NULL) == 0 &&
	       bind(log, (struct sockaddr *)&at, sizeof at) == 0;
}

static void run(struct daemon *d, int out)
{
	struct ctld_options o = { .listen = "127.0.0.1:0",
		                  .policies = d->policy,
		                  .cookie = secret,
		                  .trust = { getuid() },
		                  .poll_min_s = 0.2,
		                  .poll_max_s = 75,
		                  .poll = fake_poll,
		                  .syslog = true };
	struct hspmd_error err = { "" };
	char name[64], limit[16];
	bool syslog = own_syslog(d->log);
	dup2(out, 2);
	dprintf(2, "syslog: %s\n", syslog ? "yes" : "no");
	snprintf(name, sizeof name, "@hspmd-test-notify-%d", (int)getppid());
	snprintf(limit, sizeof limit, "%d", 400000);
	setenv("NOTIFY_SOCKET", name, 1);
	setenv("WATCHDOG_USEC", limit, 1);
	int rc = ctld_run(&o, &err);
	if (rc < 0)
		dprintf(2, "%s\n", err.text);
	exit(rc < 0);
}

static void write_policy(const struct daemon *d, const char *text)
{
	FILE *f = fopen(d->policy, "w");
	assert_non_null(f);
	fputs(text, f);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(chmod(d->policy, 0600), 0);
}

static int start(void **state)
{
	struct daemon *d = calloc(1, sizeof *d);
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int ends[2];
	*state = d;
	strcpy(d->folder, "/tmp/hspmd-test.XXXXXX");
	assert_non_null(mkdtemp(d->folder));
	snprintf(d->policy, sizeof d->policy, "%s/fill.json", d->folder);
	write_policy(d, rules);
	snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "hspmd-test-notify-%d", (int)getpid());
	d->notices = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	d->log = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_int_equal(
	        bind(d->notices, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(at.sun_path + 1))),
	        0);
	assert_int_equal(pipe(ends), 0);
	d->pid = fork();
	if (d->pid == 0)
		run(d, ends[1]);
	close(ends[1]);
	d->out = ends[0];
	return 0;
}

static int stop(void **state)
{
	struct daemon *d = *state;
	if (d->pid > 0) {
		kill(d->pid, SIGKILL);
		waitpid(d->pid, NULL, 0);
	}
	close(d->notices);
	close(d->log);
	close(d->out);
	unlink(d->policy);
	rmdir(d->folder);
	free(d);
	return 0;
}

/* ---- waiting for its output */

/* Reads from a descriptor until `wanted` has arrived; text gets everything read. Drives the client meanwhile, if any. */
static void hear(int fd, const char *wanted, char *text, size_t size, struct ctld_client *line)
{
	double until = hspmd_now() + PATIENCE_S;
	size_t have = 0;
	*text = '\0';
	while (hspmd_now() < until) {
		struct pollfd p[2] = { { .fd = fd, .events = POLLIN }, { .fd = line ? ctld_client_fd(line) : -1, .events = POLLIN } };
		poll(p, 2, 50);
		if (line)
			ctld_client_process(line);
		if (!(p[0].revents & (POLLIN | POLLHUP)))
			continue;
		if (have + 1024 > size)
			have = 0;
		ssize_t n = read(fd, text + have, size - 1 - have);
		if (n <= 0)
			fail_msg("it has ended before it said \"%s\"", wanted);
		have += (size_t)n;
		text[have] = '\0';
		if (strstr(text, wanted))
			return;
	}
	fail_msg("waited %d s for \"%s\"; the last was \"%s\"", PATIENCE_S, wanted, text);
}

static void test_the_service_manager_is_told(void **state)
{
	struct daemon *d = *state;
	char text[2048];
	int status = -1;
	hear(d->notices, "READY=1", text, sizeof text, NULL);
	assert_non_null(strstr(text, "STATUS=policies are taken"));
	hear(d->notices, "WATCHDOG=1", text, sizeof text, NULL);
	hear(d->notices, "WATCHDOG=1", text, sizeof text, NULL);
	write_policy(d, "{}");
	kill(d->pid, SIGHUP);
	hear(d->notices, "RELOADING=1", text, sizeof text, NULL);
	assert_non_null(strstr(text, "\nMONOTONIC_USEC="));
	hear(d->notices, "READY=1", text, sizeof text, NULL);
	assert_non_null(strstr(text, "STATUS=old policies stand: "));
	assert_non_null(strstr(text, "fill.json"));
	kill(d->pid, SIGTERM);
	hear(d->notices, "STOPPING=1", text, sizeof text, NULL);
	assert_int_equal(waitpid(d->pid, &status, 0), d->pid);
	d->pid = 0;
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_decisions_are_in_syslog(void **state)
{
	struct daemon *d = *state;
	struct hspmd_error err;
	char text[4096], where[96];
	int port = 0;
	hear(d->out, " rules in ", text, sizeof text, NULL);
	if (!strstr(text, "syslog: yes")) {
		print_message("no mount namespace may be had here: syslog is not played\n");
		skip();
	}
	const char *at = strstr(text, "listening on port ");
	assert_non_null(at);
	assert_int_equal(sscanf(at, "listening on port %d", &port), 1);
	snprintf(where, sizeof where, "%u@127.0.0.1:%d", (unsigned)getuid(), port);
	struct hspmd_auth *auth = hspmd_auth_cookie(secret, &err);
	struct ctld_client *line = ctld_client_create(where, 7, auth, &err);
	json_t *s = json_pack("{s:i, s:i, s:i, s:f, s:[f, f]}", "min_nodes", 1, "max_nodes", 2, "nodes", 1, "tokens_per_s", 100.0, "curve",
	                      100.0, 190.0);
	ctld_client_set_state(line, s);
	json_decref(s);
	hear(d->log, "grow: 1 idle node brings it 90.0 %", text, sizeof text, line);
	assert_non_null(strstr(text, "hspmdctld["));
	assert_non_null(strstr(text, "job 7: "));
	assert_non_null(strstr(text, "<30>")); /* facility daemon, severity info */
	ctld_client_destroy(line);
	hspmd_auth_destroy(auth);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_the_service_manager_is_told, start, stop),
		cmocka_unit_test_setup_teardown(test_decisions_are_in_syslog, start, stop),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
