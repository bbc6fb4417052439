/* SPDX-License-Identifier: Apache-2.0 */
/* The start of a large job: all its agents, which are real ones in processes of their own, call the server of the controller at the same
 * moment. All get in, however many of them it has to ask to call again. 300 agents, or 2,000 with HSPMD_LONG. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "controller/run/peer_limits.h"
#include "controller/server/server.h"
#include "runtime/agent/agent.h"
#include "tests/unit/only.h"
#include "tests/unit/own_munged.h"

#define AGENTS_MAX 2000
#define PATIENCE_S 300

static const char cookie[] = "0123456789abcdef0123456789abcdef";
static char cluster[] = "/tmp/hspmd-joining.XXXXXX";
static struct hspmd_error err;

/* One start of a job. */
static struct joining {
	uv_loop_t loop;
	struct hspmd_server *server;
	struct hspmd_peer *peers[AGENTS_MAX];
	pid_t pids[AGENTS_MAX];
	int count, joined, ended, failed; /* failed: ended before they were told to, or not with 0 */
	bool told;
} j;

static int agents(void)
{
	const char *is_long = getenv("HSPMD_LONG");
	return is_long && *is_long == '1' ? AGENTS_MAX : 300;
}

/* ---- the controller */

static int on_hello(void *context, struct hspmd_peer *peer, json_t *hello, uid_t who, struct hspmd_error *e)
{
	(void)context, (void)peer, (void)hello, (void)who, (void)e;
	return 0;
}

static void on_accepted(void *context, struct hspmd_peer *peer, json_t *hello)
{
	(void)context, (void)hello;
	assert_in_range(j.joined, 0, j.count - 1);
	j.peers[j.joined++] = peer;
}

static int on_message(void *context, struct hspmd_peer *peer, json_t *message, struct hspmd_error *e)
{
	(void)context, (void)peer, (void)message, (void)e;
	return 0;
}

static void on_closed(void *context, struct hspmd_peer *peer, const char *why)
{
	(void)context, (void)peer, (void)why;
}

static void open_server(const struct hspmd_auth *auth, const struct hspmd_server_limits *limits)
{
	struct hspmd_server_options o = { .listen = "127.0.0.1:0",
		                          .auth = auth,
		                          .job = "7",
		                          .welcome = json_pack("{s:i}", "version", 1),
		                          .owner_only = true,
		                          .limits = *limits,
		                          .events = { on_hello, on_accepted, on_message, on_closed } };
	uv_loop_init(&j.loop);
	j.server = hspmd_server_open(&j.loop, &o, &err);
	json_decref(o.welcome);
	if (!j.server)
		fail_msg("%s", err.text);
}

/* ---- its agents */

/* Every agent waits until the other end of `gate` is closed. */
static void start_agents(const char *munge_socket)
{
	int gate[2], port = hspmd_server_port(j.server);
	char controllers[32], byte;
	snprintf(controllers, sizeof controllers, "127.0.0.1:%d", port);
	const struct hspmd_agent_options o = { .controllers = controllers,
		                               .cookie = munge_socket ? NULL : cookie,
		                               .munge_socket = munge_socket,
		                               .node = "n",
		                               .cluster = cluster,
		                               .reconnect_timeout_s = PATIENCE_S };
	assert_int_equal(pipe(gate), 0);
	fflush(NULL);
	for (int i = 0; i < j.count; i++) {
		j.pids[i] = fork();
		assert_true(j.pids[i] >= 0);
		if (j.pids[i])
			continue;
		int nowhere = open("/dev/null", O_WRONLY);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(nowhere, STDOUT_FILENO);
		dup2(nowhere, STDERR_FILENO);
		close(gate[1]);
		_exit(read(gate[0], &byte, 1) ? 1 : hspmd_agent_main(&o));
	}
	close(gate[0]);
	close(gate[1]);
}

static void tell_to_quit(void)
{
	json_t *quit = json_pack("{s:s}", "type", "quit");
	for (int i = 0; i < j.count; i++)
		assert_int_equal(hspmd_peer_send(j.peers[i], quit, &err), 0);
	json_decref(quit);
	j.told = true;
}

static void on_tick(uv_timer_t *timer)
{
	int status;
	pid_t pid;
	(void)timer;
	for (int i = 0; i < j.count; i++)
		if (j.pids[i] && (pid = waitpid(j.pids[i], &status, WNOHANG))) {
			j.pids[i] = 0;
			j.ended++;
			j.failed += !j.told || pid < 0 || !WIFEXITED(status) || WEXITSTATUS(status);
		}
}

/* Runs until all agents have joined, and then until all have ended as they were told. Returns how often the server has refused one. */
static uint64_t all_join(int count, const struct hspmd_auth *auth, const char *munge_socket, const struct hspmd_server_limits *limits)
{
	uv_timer_t tick;
	j = (struct joining){ .count = count };
	open_server(auth, limits);
	start_agents(munge_socket);
	uv_timer_init(&j.loop, &tick);
	uv_timer_start(&tick, on_tick, 50, 50);
	double began = hspmd_now();
	while (j.joined < j.count && !j.failed && hspmd_now() < began + PATIENCE_S)
		uv_run(&j.loop, UV_RUN_ONCE);
	uint64_t refused = hspmd_server_counts(j.server).refused;
	printf("%d of %d agents joined in %.1f s; %llu calls were answered with a refusal; %d agents gave up\n", j.joined, j.count,
	       hspmd_now() - began, (unsigned long long)refused, j.failed);
	assert_int_equal(j.failed, 0);
	assert_int_equal(j.joined, j.count);
	tell_to_quit();
	while (j.ended < j.count && hspmd_now() < began + 2 * PATIENCE_S)
		uv_run(&j.loop, UV_RUN_ONCE);
	assert_int_equal(j.ended, j.count);
	assert_int_equal(j.failed, 0);
	uv_close((uv_handle_t *)&tick, NULL);
	hspmd_server_close(j.server);
	uv_run(&j.loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&j.loop), 0);
	return refused;
}

/* ---- */

static void all_at_once(void **state)
{
	struct hspmd_auth *auth = hspmd_auth_cookie(cookie, &err);
	(void)state;
	all_join(agents(), auth, NULL, &run_peer_limits);
	hspmd_auth_destroy(auth);
}

/* As on a cluster: each proof takes munged a while, on both sides. There each node has a munged of its own; this one has a queue of 256
 * calls. */
static void all_at_once_with_munge(void **state)
{
#ifdef HAVE_MUNGE
	struct own_munged munged;
	(void)state;
	if (!own_munged_start(&munged))
		skip();
	struct hspmd_auth *auth = hspmd_auth_munge(munged.socket, &err);
	all_join(200, auth, munged.socket, &run_peer_limits);
	hspmd_auth_destroy(auth);
	own_munged_stop(&munged);
#else
	(void)state;
	skip();
#endif
}

/* So few places for those who have not proved themselves that most must call again, some of them often. */
static void few_places(void **state)
{
	struct hspmd_auth *auth = hspmd_auth_cookie(cookie, &err);
	struct hspmd_server_limits few = run_peer_limits;
	(void)state;
	few.strangers = few.source_strangers = 4;
	assert_true(all_join(150, auth, NULL, &few) > 0);
	hspmd_auth_destroy(auth);
}

/* The node that all agents find in the cluster file, and room for their connections. */
static int prepare(void **state)
{
	static const char text[] =
	        "{ \"format\": \"hspmd-cluster-1\", \"device_types\": { \"core\": { \"kind\": \"cpu\", \"memory_bytes\": 1000000000, "
	        "\"gbytes_per_s\": 10, \"peak_tflops\": { \"fp32\": 0.05 } } }, \"nodes\": [ { \"name\": \"n\", \"devices\": "
	        "[ { \"type\": \"core\", \"count\": 1 } ] } ], "
	        "\"links\": [ { \"scope\": \"node\", \"alpha_s\": 1e-6, \"gbytes_per_s\": 5 } ] }";
	struct rlimit files;
	(void)state;
	if (getrlimit(RLIMIT_NOFILE, &files))
		return -1;
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	int fd = mkstemp(cluster);
	return fd < 0 || write(fd, text, sizeof text - 1) != sizeof text - 1 || close(fd);
}

static int clean(void **state)
{
	(void)state;
	return unlink(cluster);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_at_once),
		cmocka_unit_test(all_at_once_with_munge),
		cmocka_unit_test(few_places),
	};
	only_chosen_tests(tests, sizeof tests / sizeof *tests);
	return cmocka_run_group_tests(tests, prepare, clean);
}
