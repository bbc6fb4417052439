/* SPDX-License-Identifier: Apache-2.0 */
/* The whole of hspmdctld in a process of its own on an invented cluster, with all kinds of job controllers: which jobs get requests while
 * another has not answered, how a slow slurmctld is spared, that clients of other versions are understood, and that hostile clients change
 * nothing and are logged once. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/log_limit.h"
#include "common/durable.h"
#include "controller/ctld/daemon_internal.h"
#include "controller/ctld_client/client.h"
#include "controller/ctld_client/protocol.h"
#include "tests/unit/greeting.h"

static struct greeting greeting; /* of the client that greeted last */

#define PATIENCE_S 60
#define POLLS_MAX 4096

static const char secret[] = "0123456789abcdef0123456789abcdef0123456789abcdef",
                  other[] = "fedcba9876543210fedcba9876543210fedcba9876543210";
static const char rules[] =
        "{\"format\": \"hspmd-policy-1\", \"rules\": [{\"name\": \"any\", \"shrink\": {\"for_pending\": \"any\", \"cooldown_s\": 0},"
        "\"grow\": {\"into_idle\": true, \"after_idle_s\": 0, \"cooldown_s\": 0, \"min_gain\": 0}}]}";

/* Memory that the test and the daemon's process share. */
struct world {
	volatile bool waits;    /* job 9 wants two nodes */
	volatile double slow_s; /* duration of a poll */
	volatile int polls;
	double began[POLLS_MAX], ended[POLLS_MAX];
};

struct daemon {
	struct world *world;
	char folder[64];
	int port, out;
	char said[1 << 16]; /* on standard error */
	size_t said_count;
	pid_t pid;
	struct hspmd_auth *auth, *stranger;
	struct ctld_client *line[2]; /* of jobs 7 and 8 */
};

/* ---- the invented cluster: job 7 has n0 to n2, job 8 n3 to n5; job 9, another user's, is pending or completing */

static struct hspmd_slurm_view_job job_on(uint32_t id, uid_t uid, int first, int count)
{
	struct hspmd_slurm_view_job j = { .id = id,
		                          .uid = uid,
		                          .state = HSPMD_SLURM_VIEW_RUNNING,
		                          .user = strdup("ann"),
		                          .account = strdup(""),
		                          .partition = strdup("main"),
		                          .qos = strdup(""),
		                          .features = strdup(""),
		                          .tres_per_node = strdup(""),
		                          .batch_host = malloc(16),
		                          .limit_s = INFINITY,
		                          .held = calloc(4, sizeof(int)),
		                          .held_count = count };
	snprintf(j.batch_host, 16, "n%d", first);
	for (int i = 0; i < count; i++)
		j.held[i] = first + i;
	return j;
}

static struct hspmd_slurm_view *whole_view(bool waits)
{
	struct hspmd_slurm_view *v = calloc(1, sizeof *v);
	v->node_count = 6;
	v->partition_count = 1;
	v->job_count = 3;
	v->nodes = calloc(6, sizeof *v->nodes);
	v->partitions = calloc(1, sizeof *v->partitions);
	v->jobs = calloc(3, sizeof *v->jobs);
	for (int i = 0; i < 6; i++) {
		char name[16];
		snprintf(name, sizeof name, "n%d", i);
		v->nodes[i] = (struct hspmd_slurm_view_node){
			.name = strdup(name), .state = HSPMD_SLURM_VIEW_BUSY, .cpus = 1, .features = strdup(""), .gres = strdup("")
		};
	}
	v->partitions[0] = (struct hspmd_slurm_view_partition){ .name = strdup("main"), .up = true, .nodes = malloc(6) };
	memset(v->partitions[0].nodes, 1, 6);
	v->jobs[0] = job_on(7, getuid(), 0, 3);
	v->jobs[1] = job_on(8, getuid(), 3, 3);
	v->jobs[2] = job_on(9, getuid() + 1, 0, 0);
	v->jobs[2].state = waits ? HSPMD_SLURM_VIEW_PENDING : HSPMD_SLURM_VIEW_COMPLETING;
	v->jobs[2].ready = true;
	v->jobs[2].nodes = 2;
	return v;
}

static bool dry_run; /* of the next daemon */

static int fake_poll(void *context, const struct hspmd_slurm_view *old, struct hspmd_slurm_view **new, int *rpcs, struct hspmd_error *err)
{
	struct world *w = context;
	int n = w->polls < POLLS_MAX ? w->polls : POLLS_MAX - 1;
	bool waits = w->waits;
	(void)err;
	*rpcs += 2;
	w->began[n] = hspmd_now();
	for (double until = w->began[n] + w->slow_s; hspmd_now() < until;)
		usleep(10000);
	w->ended[n] = hspmd_now();
	w->polls = n + 1;
	*new = NULL;
	if (old && (old->jobs[2].state == HSPMD_SLURM_VIEW_PENDING) == waits)
		return 0;
	*new = whole_view(waits);
	return 1;
}

/* ---- the daemon's process */

static void run(struct daemon *d, int out)
{
	char policy[96];
	snprintf(policy, sizeof policy, "%s/any.json", d->folder);
	struct ctld_options o = { .listen = "127.0.0.1:0",
		                  .policies = policy,
		                  .cookie = secret,
		                  .trust = { getuid() },
		                  .poll_min_s = 0.2,
		                  .poll_max_s = 75,
		                  .poll = fake_poll,
		                  .poll_context = d->world,
		                  .dry_run = dry_run,
		                  .state_folder = d->folder };
	struct hspmd_error err = { "" };
	dup2(out, 2);
	int rc = ctld_run(&o, &err);
	if (rc < 0)
		dprintf(2, "%s\n", err.text);
	_exit(rc < 0);
}

static void put(const struct daemon *d, const char *name, const char *text)
{
	char path[128];
	snprintf(path, sizeof path, "%s/%s", d->folder, name);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(chmod(path, 0600), 0);
}

/* Drives the clients and reads the daemon's output, for at most `ms`. */
static void turn(struct daemon *d, int ms)
{
	struct pollfd p[3] = { { .fd = d->out, .events = POLLIN } };
	for (int i = 0; i < 2; i++)
		p[i + 1] = (struct pollfd){ .fd = d->line[i] ? ctld_client_fd(d->line[i]) : -1, .events = POLLIN };
	poll(p, 3, ms < 20 ? ms : 20);
	for (int i = 0; i < 2; i++)
		if (d->line[i])
			ctld_client_process(d->line[i]);
	ssize_t n = read(d->out, d->said + d->said_count, sizeof d->said - 1 - d->said_count);
	if (n == 0)
		fail_msg("hspmdctld has ended: %s", d->said);
	if (n > 0)
		d->said_count += (size_t)n;
}

static void wait_said(struct daemon *d, const char *what)
{
	for (double until = hspmd_now() + PATIENCE_S; !strstr(d->said, what); turn(d, 20))
		if (hspmd_now() > until)
			fail_msg("waited %d s for \"%s\"; it said:\n%s", PATIENCE_S, what, d->said);
}

static int count_said(const struct daemon *d, const char *what)
{
	int n = 0;
	for (const char *at = d->said; (at = strstr(at, what)); at++)
		n++;
	return n;
}

static int start(void **state)
{
	struct daemon *d = calloc(1, sizeof *d);
	int ends[2];
	*state = d;
	d->world = mmap(NULL, sizeof *d->world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(d->world, MAP_FAILED);
	strcpy(d->folder, "/tmp/hspmd-test.XXXXXX");
	assert_non_null(mkdtemp(d->folder));
	put(d, "any.json", rules);
	assert_int_equal(pipe(ends), 0);
	d->pid = fork();
	if (d->pid == 0)
		run(d, ends[1]);
	close(ends[1]);
	d->out = ends[0];
	fcntl(d->out, F_SETFL, O_NONBLOCK);
	d->auth = hspmd_auth_cookie(secret, NULL);
	d->stranger = hspmd_auth_cookie(other, NULL);
	wait_said(d, " rules in ");
	assert_int_equal(sscanf(strstr(d->said, "listening on port "), "listening on port %d", &d->port), 1);
	return 0;
}

static int stop(void **state)
{
	struct daemon *d = *state;
	kill(d->pid, SIGKILL);
	waitpid(d->pid, NULL, 0);
	for (int i = 0; i < 2; i++)
		ctld_client_destroy(d->line[i]);
	hspmd_auth_destroy(d->auth);
	hspmd_auth_destroy(d->stranger);
	json_decref(greeting.hello);
	greeting.hello = NULL;
	munmap(d->world, sizeof *d->world);
	close(d->out);
	int rc = hspmd_remove_tree(d->folder, NULL);
	free(d);
	return rc;
}

/* ---- controllers */

static void state_with(struct daemon *d, int i, int min_nodes, double rate)
{
	json_t *s = json_pack("{s:i, s:i, s:i, s:f, s:[f, f, f]}", "min_nodes", min_nodes, "max_nodes", 3, "nodes", 3, "tokens_per_s",
	                      2.8 * rate, "curve", rate, 1.9 * rate, 2.8 * rate);
	ctld_client_set_state(d->line[i], s);
	json_decref(s);
}

static void state_of(struct daemon *d, int i, double rate)
{
	state_with(d, i, 1, rate);
}

static void call_with(struct daemon *d, int i, int min_nodes, double rate)
{
	char where[96], greeted[64];
	snprintf(where, sizeof where, "%u@127.0.0.1:%d", (unsigned)getuid(), d->port);
	d->line[i] = ctld_client_create(where, 7 + (uint32_t)i, d->auth, NULL);
	assert_non_null(d->line[i]);
	state_with(d, i, min_nodes, rate);
	snprintf(greeted, sizeof greeted, "job %d: greeting", 7 + i);
	wait_said(d, greeted);
}

static void call(struct daemon *d, int i, double rate)
{
	call_with(d, i, 1, rate);
}

/* The next request to a client; NULL: none within this time. */
static json_t *asked(struct daemon *d, int i, double seconds)
{
	json_t *ask = NULL;
	for (double until = hspmd_now() + seconds; !ask && hspmd_now() < until; turn(d, 20))
		ask = ctld_client_next_request(d->line[i]);
	return ask;
}

static json_t *expect_ask(struct daemon *d, int i, const char *command, size_t nodes)
{
	json_t *ask = asked(d, i, PATIENCE_S);
	if (!ask)
		fail_msg("job %d was asked nothing; it said:\n%s", 7 + i, d->said);
	assert_string_equal(json_string_value(json_object_get(ask, "command")), command);
	assert_int_equal(json_array_size(json_object_get(ask, "names")), nodes);
	return ask;
}

static void answer(struct daemon *d, int i, json_t *ask, bool ok)
{
	ctld_client_send_answer(d->line[i], json_integer_value(json_object_get(ask, "id")), ok, ok ? "" : "not now");
	json_decref(ask);
}

/* Job 7 loses least and gets the request. Until it answers, although hspmdctld decides again, no other job gets a request in its place;
 * once it declines, the other job does. */
static void test_one_that_thinks_and_one_that_declines(void **state)
{
	struct daemon *d = *state;
	call(d, 0, 100);
	call(d, 1, 1000);
	d->world->waits = true;
	put(d, "job_state", "");
	json_t *ask = expect_ask(d, 0, "shrink", 2);
	for (int i = 0; i < 4; i++) {
		state_of(d, 1, 1000 + 100 * i); /* a new fact, so that hspmdctld decides */
		json_t *none = asked(d, 1, 1.2);
		if (none)
			fail_msg("job 8 was asked as well: %s", json_string_value(json_object_get(none, "reason")));
	}
	/* On a machine so busy that the next decision takes seconds, job 7 gets the request again, ever later. */
	json_t *given = NULL;
	for (double until = hspmd_now() + PATIENCE_S; !given && hspmd_now() < until; given = asked(d, 1, 0.1)) {
		if (ask)
			answer(d, 0, ask, false);
		ask = asked(d, 0, 0.1);
	}
	json_decref(ask);
	if (!given)
		fail_msg("job 8 was asked nothing; it said:\n%s", d->said);
	assert_int_equal(json_array_size(json_object_get(given, "names")), 2);
	assert_true(count_said(d, "declined: shrink by 2: declined: not now") >= 1);
	/* Carried out, but Slurm does not show it yet: no job gets a further request. */
	int asks = count_said(d, ": shrink: ");
	answer(d, 1, given, true);
	assert_null(asked(d, 0, 3));
	assert_null(asked(d, 1, 1));
	assert_int_equal(count_said(d, ": shrink: "), asks);
}

static int start_dry(void **state)
{
	dry_run = true;
	int rc = start(state);
	dry_run = false;
	return rc;
}

/* A dry run says once whom it would ask, and why, and asks nobody; and says something again only when it changes its mind. */
static void test_a_dry_run_asks_nobody(void **state)
{
	struct daemon *d = *state;
	call(d, 0, 100);
	call(d, 1, 1000);
	d->world->waits = true;
	put(d, "job_state", "");
	wait_said(d, "job 7: would_shrink: shrink by 2: ");
	for (int i = 0; i < 3; i++) {
		int decided = d->world->polls;
		state_of(d, 1, 1000 + 100 * i);
		put(d, "job_state", "more");
		for (double until = hspmd_now() + PATIENCE_S; d->world->polls == decided && hspmd_now() < until;)
			turn(d, 20);
		assert_null(asked(d, 0, 0.3));
		assert_null(asked(d, 1, 0.3));
	}
	assert_int_equal(count_said(d, "would_"), 1);
	assert_int_equal(count_said(d, ": shrink: "), 0);
}

/* Polls that take long, as when libslurm waits because slurmctld limits its rate (rl_enable): however much changes meanwhile, no poll
 * follows for five times as long. */
static void test_a_slow_slurmctld_is_left_in_peace(void **state)
{
	struct daemon *d = *state;
	struct world *w = d->world;
	call(d, 0, 100);
	w->slow_s = 1.05;
	int first = w->polls + 1; /* a fast one may be under way */
	for (double until = hspmd_now() + 2 * PATIENCE_S; w->polls < first + 3 && hspmd_now() < until; turn(d, 20))
		put(d, "job_state", "");
	assert_true(w->polls >= first + 3);
	for (int i = first; i < first + 2; i++) {
		double took = w->ended[i] - w->began[i], rest = w->began[i + 1] - w->ended[i];
		if (rest < 5 * took - 0.1)
			fail_msg("a poll took %.2f s, and the next came %.2f s later", took, rest);
	}
	w->slow_s = 0;
	int now = w->polls;
	for (double until = hspmd_now() + PATIENCE_S; w->polls < now + 4 && hspmd_now() < until; turn(d, 20))
		put(d, "job_state", "");
	assert_true(w->polls >= now + 4);
}

/* The view may be old: the last poll of a slow slurmctld is more than five seconds ago when job 7 lowers its min_nodes. Another poll
 * precedes the request for its nodes. */
static void test_no_request_on_an_old_view(void **state)
{
	struct daemon *d = *state;
	struct world *w = d->world;
	call_with(d, 0, 3, 100);
	w->waits = true;
	put(d, "job_state", "");
	int before = w->polls;
	for (double until = hspmd_now() + PATIENCE_S; w->polls < before + 2 && hspmd_now() < until;)
		turn(d, 20);
	w->slow_s = 1.6; /* then no poll for eight seconds */
	before = w->polls;
	put(d, "job_state", "");
	for (double until = hspmd_now() + PATIENCE_S;
	     hspmd_now() < until && (w->polls < before + 2 || hspmd_now() < w->ended[w->polls - 1] + 5.3);)
		turn(d, 20);
	before = w->polls;
	assert_null(ctld_client_next_request(d->line[0]));
	state_with(d, 0, 1, 100);
	json_decref(expect_ask(d, 0, "shrink", 2));
	assert_true(w->polls > before);
}

/* ---- hostile clients */

static struct hspmd_stream *stranger_calls(const struct daemon *d, char *nonce)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)d->port), .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	json_t *challenge = NULL;
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	struct hspmd_stream *s = hspmd_stream_create(fd, CTLD_FRAME, 8u << 20, NULL);
	assert_non_null(s);
	assert_int_equal(hspmd_stream_receive(s, PATIENCE_S, &challenge, NULL), 1);
	snprintf(nonce, HSPMD_NONCE_HEX, "%s", json_string_value(json_object_get(challenge, "nonce")));
	json_decref(challenge);
	return s;
}

static json_t *hello_as(const char *role, const struct hspmd_auth *who, const char *nonce, int job)
{
	json_t *content = json_pack("{s:s, s:i, s:s}", "role", role, "job", job, "nonce", "n");
	return greeting_hello(&greeting, who, nonce, content);
}

static json_t *hello(const struct hspmd_auth *who, const char *nonce, int job)
{
	return hello_as("controller", who, nonce, job);
}

/* The daemon closes the connection, with or without a reason. */
static void expect_end(struct hspmd_stream *s)
{
	json_t *m = NULL;
	double until = hspmd_now() + PATIENCE_S;
	while (hspmd_stream_receive(s, PATIENCE_S, &m, NULL) == 1) {
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

static void mean_it_ill(const struct daemon *d, int kind)
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
	struct daemon *d = *state;
	const char *word = "refused a connection from ";
	enum { OF_EACH = 40, LINE_KINDS = 3 }; /* not proved, not wanted, no message */
	call(d, 0, 100);
	double began = hspmd_now();
	for (int i = 0; i < OF_EACH * ILL_KINDS; i++)
		mean_it_ill(d, i % ILL_KINDS);
	double took = hspmd_now() - began;
	turn(d, 20);
	wait_said(d, word);
	if (count_said(d, word) > LINE_KINDS * (HSPMD_LOG_LIMIT_BURST + (int)(took / HSPMD_LOG_LIMIT_EVERY_S)))
		fail_msg("told of %d times in %.0f s:\n%s", count_said(d, word), took, d->said);
	/* The honest controller is still connected, and no message was attributed to it or another. */
	assert_true(ctld_client_is_connected(d->line[0]));
	assert_int_equal(count_said(d, ": greeting: "), 1);
	assert_int_equal(count_said(d, ": gone: "), 0);
	d->world->waits = true;
	put(d, "job_state", "");
	json_decref(expect_ask(d, 0, "shrink", 2));
}

/* A user who proves himself connects and disconnects all the time, also for jobs that do not exist. That does not fill the log. */
static void test_coming_and_going_fills_no_log(void **state)
{
	struct daemon *d = *state;
	char nonce[HSPMD_NONCE_HEX];
	double began = hspmd_now();
	for (int i = 0; i < 60; i++) {
		struct hspmd_stream *s = stranger_calls(d, nonce);
		json_t *welcome = NULL;
		say(s, hello(d->auth, nonce, i % 3 ? 7 : 1000 + i));
		assert_int_equal(hspmd_stream_receive(s, PATIENCE_S, &welcome, NULL), 1);
		json_decref(welcome);
		hspmd_stream_destroy(s);
		turn(d, 20);
	}
	call(d, 1, 100);
	int spans = 1 + (int)((hspmd_now() - began) / 60), lines = count_said(d, "job 7: ");
	if (lines > 6 * spans)
		fail_msg("%d lines:\n%s", lines, d->said);
	assert_int_equal(count_said(d, "job 10"), 0);
}

/* A process that holds hspmdctld's port but runs as another user than the trusted one learns nothing of the job. */
static void test_a_port_that_another_holds_is_not_trusted(void **state)
{
	struct daemon *d = *state;
	char where[96];
	snprintf(where, sizeof where, "%u@127.0.0.1:%d", (unsigned)getuid() + 1, d->port);
	d->line[0] = ctld_client_create(where, 7, d->auth, NULL);
	assert_non_null(d->line[0]);
	state_of(d, 0, 100);
	for (double until = hspmd_now() + PATIENCE_S; !strstr(ctld_client_last_error(d->line[0]), "is held by user"); turn(d, 20))
		if (ctld_client_is_connected(d->line[0]) || hspmd_now() > until)
			fail_msg("the line is %s: %s", ctld_client_is_connected(d->line[0]) ? "up" : "down",
			         ctld_client_last_error(d->line[0]));
}

/* The next message of this type; others are skipped. */
static json_t *receive_type(const struct daemon *d, struct hspmd_stream *s, const char *type)
{
	json_t *m = NULL;
	while (hspmd_stream_receive(s, PATIENCE_S, &m, NULL) == 1) {
		const char *got = json_string_value(json_object_get(m, "type"));
		if (got && !strcmp(got, type))
			return m;
		json_decref(m);
		m = NULL;
	}
	fail_msg("no message \"%s\"; it said:\n%s", type, d->said);
	return NULL;
}

static void expect_welcome(const struct daemon *d, struct hspmd_stream *s)
{
	json_t *m = receive_type(d, s, "welcome");
	assert_int_equal(greeting_welcomed(&greeting, d->auth, s, m), 0);
	json_decref(m);
}

/* A daemon understands controllers and viewers of other versions, as running jobs outlive its upgrade: the names of messages and members
 * are written out here, because they must never change. */
static void test_the_names_on_the_wire_stay(void **state)
{
	struct daemon *d = *state;
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
	struct daemon *d = *state;
	char nonce[HSPMD_NONCE_HEX];
	struct hspmd_stream *s = stranger_calls(d, nonce);
	say(s, hello(d->auth, nonce, 1000));
	expect_welcome(d, s);
	d->world->waits = true;
	put(d, "job_state", "");
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
	const uid_t owner = getuid() + 5, operator = getuid() + 6, stranger = getuid() + 7;
	struct ctld_options options = { .policies = "", .operators = &operator, .operator_count = 1 };
	struct ctld d = { .options = &options };
	assert_int_equal(uv_loop_init(&d.loop), 0);
	assert_int_equal(uv_timer_init(&d.loop, &d.tick), 0);
	assert_int_equal(on_hello(&d, 7, owner, &err), 0);
	d.view = whole_view(false);
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
	d.view = whole_view(false);
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
		cmocka_unit_test_setup_teardown(test_a_port_that_another_holds_is_not_trusted, start, stop),
		cmocka_unit_test_setup_teardown(test_the_names_on_the_wire_stay, start, stop),
		cmocka_unit_test_setup_teardown(test_a_job_that_slurm_does_not_know_is_disconnected, start, stop),
		cmocka_unit_test_setup_teardown(test_one_that_thinks_and_one_that_declines, start, stop),
		cmocka_unit_test_setup_teardown(test_a_dry_run_asks_nobody, start_dry, stop),
		cmocka_unit_test_setup_teardown(test_a_slow_slurmctld_is_left_in_peace, start, stop),
		cmocka_unit_test_setup_teardown(test_no_request_on_an_old_view, start, stop),
		cmocka_unit_test_setup_teardown(test_the_ill_meaning_change_nothing_and_fill_no_log, start, stop),
		cmocka_unit_test_setup_teardown(test_coming_and_going_fills_no_log, start, stop),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
