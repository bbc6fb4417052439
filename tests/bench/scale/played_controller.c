/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/scale/played_controller.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/log.h"
#include "controller/cli/run_state.h"
#include "controller/run/choose_plan.h"
#include "controller/run/coverage.h"
#include "controller/run/loop.h"
#include "controller/run/step_model.h"
#include "runtime/facts/facts.h"
#include "tests/bench/scale/problem.h"

#define DESCRIPTORS 16384
#define PATIENCE_S 300.0 /* one thread plays all workers, and takes long to hear all of them */

struct played_site *played_site_create(int devices, int held, struct hspmd_error *err)
{
	int nodes = devices / PLAYED_NODE_DEVICES;
	size_t bytes = sizeof(struct played_site) + (size_t)nodes * sizeof(((struct played_site *)0)->node[0]);
	struct played_site *s = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s == MAP_FAILED) {
		hspmd_fail_errno(err, "making a site");
		return NULL;
	}
	s->nodes = nodes;
	for (int i = 0; i < held; i++)
		atomic_store(&s->node[i].held, true);
	return s;
}

void played_site_destroy(struct played_site *s)
{
	if (s)
		munmap(s, sizeof *s + (size_t)s->nodes * sizeof s->node[0]);
}

/* ---- the allocation */

struct allocation {
	struct run_allocation base;
	struct played_site *site;
};

static json_t *poll_allocation(struct run_allocation *a, struct hspmd_error *err)
{
	struct played_site *s = ((struct allocation *)a)->site;
	json_t *nodes = json_array();
	atomic_fetch_add(&s->asked, 1);
	for (int i = 0; nodes && i < s->nodes; i++)
		if (atomic_load(&s->node[i].held))
			json_array_append_new(nodes, json_sprintf("n%d", i));
	json_t *v = json_pack("{s:o, s:s, s:n}", "nodes", nodes, "state", "running", "end_in_s");
	if (!v)
		hspmd_fail_memory(err, "listing nodes");
	return v;
}

static int index_of(const struct played_site *s, const char *node)
{
	int i = atoi(node + 1);
	return i >= 0 && i < s->nodes ? i : 0;
}

/* The agents connect by themselves; the process that "starts" them stays, as srun would. */
static char **start(struct run_allocation *a, char **nodes, int *count, const char *const *command, struct hspmd_error *err)
{
	struct played_site *s = ((struct allocation *)a)->site;
	static const char *const wait[] = { "/proc/self/exe", PLAYED_WAIT, NULL };
	char **list = calloc(1, sizeof wait);
	(void)command;
	if (!list) {
		hspmd_fail_memory(err, "starting agents");
		return NULL;
	}
	memcpy(list, wait, sizeof wait);
	atomic_fetch_add(&s->srun, 1);
	for (int i = 0; i < *count; i++)
		atomic_fetch_add(&s->node[index_of(s, nodes[i])].starts, 1);
	return list;
}

static int grow(struct run_allocation *a, int count, const char *const *command, struct hspmd_error *err)
{
	struct played_site *s = ((struct allocation *)a)->site;
	(void)command;
	for (int i = 0; i < s->nodes && count > 0; i++)
		count -= !atomic_exchange(&s->node[i].held, true);
	return count ? hspmd_fail(err, "there are no more nodes") : 0;
}

static int shrink(struct run_allocation *a, char *const *nodes, int count, struct hspmd_error *err)
{
	struct played_site *s = ((struct allocation *)a)->site;
	(void)err;
	for (int i = 0; i < count; i++)
		atomic_store(&s->node[index_of(s, nodes[i])].held, false);
	return 0;
}

static int cancel_grow(struct run_allocation *a, struct hspmd_error *err)
{
	(void)a, (void)err;
	return 0;
}

static double poll_interval(struct run_allocation *a)
{
	(void)a;
	return 0;
}

static void end(struct run_allocation *a, bool done)
{
	(void)a, (void)done;
}

static void destroy(struct run_allocation *a)
{
	(void)a;
}

/* ---- the job */

static struct hspmd_job *make_job(int nodes, struct hspmd_error *err)
{
	int devices = nodes * PLAYED_NODE_DEVICES;
	json_t *value = json_pack("{s:s, s:s, s:s, s:{s:[s], s:s}, s:i, s:i, s:i, s:i, s:s, s:{s:s, s:f}, s:{s:i, s:i}, s:{s:i, s:f}}",
	                          "format", "hspmd-job-1", "model", "/none", "init", "random", "data", "train", "/none", "kind", "bytes",
	                          "seq_len", 4096, "global_batch", devices < 1024 ? 1024 : devices, "steps", 100000000, "seed", 5,
	                          "precision", "bf16", "optimizer", "type", "adamw", "lr", 1e-4, "elastic", "min_nodes", 1, "max_nodes",
	                          nodes, "checkpoint", "replicas", 1, "every_s", 86400.0 /* none but those that are asked for */);
	struct hspmd_job *job = value ? hspmd_job_from_json(value, "job.json", NULL, err) : NULL;
	json_decref(value);
	return job;
}

static int live(const struct played_controller *p, bool again, struct hspmd_error *err)
{
	static const struct run_allocation_ops ops = { poll_allocation, start, grow, shrink, cancel_grow, poll_interval, end, destroy };
	static const char *const agent[] = { "played", NULL };
	struct allocation a = { { &ops, true }, p->site };
	struct run_output output = { 0 };
	struct hspmd_model *model = scale_model(err);
	struct hspmd_job *job = model ? make_job(p->site->nodes, err) : NULL;
	struct hspmd_model_facts *facts = job ? hspmd_model_facts_of(model, (int)job->seq_len, err) : NULL;
	struct hspmd_graph_source source = job ? hspmd_graph_source_job(model, job) : (struct hspmd_graph_source){ 0 };
	struct hspmd_root_checker roots = { .source = &source };
	struct hspmd_auth *auth = facts ? hspmd_auth_cookie(p->cookie, err) : NULL;
	if (!auth || run_output_open(&output, p->folder, again, false, err))
		return -1;
	hspmd_log_tee(output.log);
	struct run_config c = {
		.job = job,
		.facts = facts,
		.model = model,
		.job_json = hspmd_job_to_json(job),
		.model_json = model->config,
		.layers = hspmd_model_layers(model),
		.job_id = "1",
		.output = output.folder,
		.local = "/none",
		.shared = "/none",
		.generation = output.generation,
		.last_step = output.steps_reported,
		.resize_reported = output.resize_reported,
		.run = output.run,
		.events = output.events,
		.resizable = true,
		.policy_terms = { .max_nodes = INT32_MAX, .max_devices = INT32_MAX, .min_gain = 0 },
		.max_attempts = 5,
		.timeouts = run_timeouts_default(),
		.expected_busy = run_expected_busy,
		.covered = hspmd_stages_cover,
	};
	run_state_bind(&c, &roots);
	c.timeouts.ping = c.timeouts.step_min = c.timeouts.stop = c.timeouts.abort = PATIENCE_S;
	c.journal = again ? run_journal_memory_load(p->journal) : NULL;
	struct run_loop_options o = { .config = &c,
		                      .facts = facts,
		                      .allocation = &a.base,
		                      .output = &output,
		                      .journal = p->journal,
		                      .auth = auth,
		                      .cluster = "played",
		                      .port = p->port,
		                      .loopback = true,
		                      .agent_command = agent,
		                      .solve_limit_s = 10,
		                      .repair_devices = RUN_REPAIR_DEVICES };
	return run_loop(&o);
}

int played_wait(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (getppid() != 1)
		sleep(1);
	return 0;
}

pid_t played_controller_start(const struct played_controller *c, bool again, struct hspmd_error *err)
{
	pid_t pid = fork();
	if (pid < 0)
		hspmd_fail_errno(err, "starting a controller");
	if (pid)
		return pid;
	struct hspmd_error why = { "" };
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int fd = 3; fd < DESCRIPTORS; fd++) /* of the agents */
		close(fd);
	int nowhere = open("/dev/null", O_WRONLY);
	if (!getenv("PLAYED_LOG") && nowhere >= 0)
		dup2(nowhere, 2);
	setenv("HSPMD_CONTACTS", c->folder, 1);
	int status = live(c, again, &why);
	if (why.text[0])
		fprintf(stderr, "%s\n", why.text);
	_exit(status ? 1 : 0);
}
