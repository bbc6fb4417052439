/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "tests/unit/ctld_case.h"

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
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/durable.h"

#ifdef HAVE_MICROHTTPD
#define METRICS "127.0.0.1:0"
#else
#define METRICS NULL
#endif

struct greeting ctld_case_greeting;
bool ctld_case_dry_run, ctld_case_completing;
double ctld_case_poll_min_s = 0.2;
unsigned ctld_case_labels = 1u << CTLD_LABEL_JOB;

static const char secret[] = "0123456789abcdef0123456789abcdef0123456789abcdef",
                  other[] = "fedcba9876543210fedcba9876543210fedcba9876543210";
static const char rules[] =
        "{\"format\": \"hspmd-policy-1\", \"rules\": [{\"name\": \"any\", \"shrink\": {\"for_pending\": \"any\", \"cooldown_s\": 0},"
        "\"grow\": {\"into_idle\": true, \"after_idle_s\": 0, \"cooldown_s\": 0, \"min_gain\": 0}}]}";

/* ---- the invented cluster */

static struct hspmd_slurm_view_job job_on(uint32_t id, uid_t uid, int first, int count)
{
	struct hspmd_slurm_view_job j = { .id = id,
		                          .uid = uid,
		                          .state = HSPMD_SLURM_VIEW_RUNNING,
		                          .user = strdup("ann"),
		                          .account = strdup(id == 7 ? "phys" : "a\"b\\c"),
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

struct hspmd_slurm_view *ctld_case_view(bool waits)
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

static int fake_poll(void *context, const struct hspmd_slurm_view *old, struct hspmd_slurm_view **new, int *rpcs, struct hspmd_error *err)
{
	struct ctld_case_world *w = context;
	int n = w->polls < CTLD_CASE_POLLS ? w->polls : CTLD_CASE_POLLS - 1;
	bool waits = w->waits, ended = w->job_ended, completing = w->completing;
	(void)err;
	*rpcs += 2;
	w->began[n] = hspmd_now();
	for (double until = w->began[n] + w->slow_s; hspmd_now() < until;)
		usleep(10000);
	w->ended[n] = hspmd_now();
	w->polls = n + 1;
	*new = NULL;
	if (old && (old->jobs[2].state == HSPMD_SLURM_VIEW_PENDING) == waits && (old->jobs[0].id == 6) == ended &&
	    (old->nodes[5].state == HSPMD_SLURM_VIEW_LEAVING) == completing)
		return 0;
	*new = ctld_case_view(waits);
	if (ended)
		(*new)->jobs[0].id = 6; /* another one has its nodes */
	if (completing) {
		(*new)->jobs[1].held_count = 1;
		(*new)->nodes[4].state = HSPMD_SLURM_VIEW_IDLE;
		(*new)->nodes[5].state = HSPMD_SLURM_VIEW_LEAVING;
	}
	return 1;
}

/* ---- the daemon's process */

static void run(struct ctld_case *d, int out)
{
	char policy[96];
	snprintf(policy, sizeof policy, "%s/any.json", d->folder);
	struct ctld_options o = { .listen = "127.0.0.1:0",
		                  .policies = policy,
		                  .cookie = secret,
		                  .trust = { getuid() },
		                  .poll_min_s = ctld_case_poll_min_s,
		                  .poll_max_s = fmax(75, ctld_case_poll_min_s),
		                  .poll = fake_poll,
		                  .poll_context = d->world,
		                  .dry_run = ctld_case_dry_run,
		                  .metrics = METRICS,
		                  .job_labels = ctld_case_labels,
		                  .state_folder = d->folder };
	struct hspmd_error err = { "" };
	dup2(out, 2);
	int rc = ctld_run(&o, &err);
	if (rc < 0)
		dprintf(2, "%s\n", err.text);
	_exit(rc < 0);
}

void ctld_case_write(const struct ctld_case *d, const char *name, const char *text)
{
	char path[128];
	snprintf(path, sizeof path, "%s/%s", d->folder, name);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(chmod(path, 0600), 0);
}

void ctld_case_turn(struct ctld_case *d, int ms)
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

void ctld_case_wait_said(struct ctld_case *d, const char *what)
{
	for (double until = hspmd_now() + CTLD_CASE_PATIENCE_S; !strstr(d->said, what); ctld_case_turn(d, 20))
		if (hspmd_now() > until)
			fail_msg("waited %d s for \"%s\"; it said:\n%s", CTLD_CASE_PATIENCE_S, what, d->said);
}

int ctld_case_count_said(const struct ctld_case *d, const char *what)
{
	int n = 0;
	for (const char *at = d->said; (at = strstr(at, what)); at++)
		n++;
	return n;
}

int ctld_case_start(void **state)
{
	struct ctld_case *d = calloc(1, sizeof *d);
	int ends[2];
	*state = d;
	d->world = mmap(NULL, sizeof *d->world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(d->world, MAP_FAILED);
	d->world->completing = ctld_case_completing;
	strcpy(d->folder, "/tmp/hspmd-test.XXXXXX");
	assert_non_null(mkdtemp(d->folder));
	ctld_case_write(d, "any.json", rules);
	assert_int_equal(pipe(ends), 0);
	d->pid = fork();
	if (d->pid == 0)
		run(d, ends[1]);
	close(ends[1]);
	d->out = ends[0];
	fcntl(d->out, F_SETFL, O_NONBLOCK);
	d->auth = hspmd_auth_cookie(secret, NULL);
	d->stranger = hspmd_auth_cookie(other, NULL);
	ctld_case_wait_said(d, " rules in ");
	assert_int_equal(sscanf(strstr(d->said, "listening on port "), "listening on port %d", &d->port), 1);
	const char *metrics = strstr(d->said, "metrics are on port ");
	assert_true(!metrics || sscanf(metrics, "metrics are on port %d", &d->metrics) == 1);
	return 0;
}

int ctld_case_stop(void **state)
{
	struct ctld_case *d = *state;
	kill(d->pid, SIGKILL);
	waitpid(d->pid, NULL, 0);
	for (int i = 0; i < 2; i++)
		ctld_client_destroy(d->line[i]);
	hspmd_auth_destroy(d->auth);
	hspmd_auth_destroy(d->stranger);
	json_decref(ctld_case_greeting.hello);
	ctld_case_greeting.hello = NULL;
	munmap(d->world, sizeof *d->world);
	close(d->out);
	int rc = hspmd_remove_tree(d->folder, NULL);
	free(d);
	return rc;
}

/* ---- controllers */

void ctld_case_set_limits(struct ctld_case *d, int i, int min_nodes, double rate)
{
	json_t *s = json_pack("{s:i, s:i, s:i, s:f, s:[f, f, f]}", "min_nodes", min_nodes, "max_nodes", 3, "nodes", 3, "tokens_per_s",
	                      2.8 * rate, "curve", rate, 1.9 * rate, 2.8 * rate);
	ctld_client_set_state(d->line[i], s);
	json_decref(s);
}

void ctld_case_set_state(struct ctld_case *d, int i, double rate)
{
	ctld_case_set_limits(d, i, 1, rate);
}

void ctld_case_call_with(struct ctld_case *d, int i, int min_nodes, double rate)
{
	char where[96], greeted[64];
	snprintf(where, sizeof where, "%u@127.0.0.1:%d", (unsigned)getuid(), d->port);
	d->line[i] = ctld_client_create(where, 7 + (uint32_t)i, d->auth, NULL);
	assert_non_null(d->line[i]);
	ctld_case_set_limits(d, i, min_nodes, rate);
	snprintf(greeted, sizeof greeted, "job %d: greeting", 7 + i);
	ctld_case_wait_said(d, greeted);
}

void ctld_case_call(struct ctld_case *d, int i, double rate)
{
	ctld_case_call_with(d, i, 1, rate);
}

json_t *ctld_case_next_request(struct ctld_case *d, int i, double seconds)
{
	json_t *ask = NULL;
	for (double until = hspmd_now() + seconds; !ask && hspmd_now() < until; ctld_case_turn(d, 20))
		ask = ctld_client_next_request(d->line[i]);
	return ask;
}

json_t *ctld_case_expect_request(struct ctld_case *d, int i, const char *command, size_t nodes)
{
	json_t *ask = ctld_case_next_request(d, i, CTLD_CASE_PATIENCE_S);
	if (!ask)
		fail_msg("job %d was asked nothing; it said:\n%s", 7 + i, d->said);
	assert_string_equal(json_string_value(json_object_get(ask, "command")), command);
	assert_int_equal(json_array_size(json_object_get(ask, "names")), nodes);
	return ask;
}
