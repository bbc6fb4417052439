/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/scale/played_scenes.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/contact.h"
#include "controller/run/journal_memory.h"
#include "tests/bench/scale/played_agents.h"

#define PATIENCE_S 240.0    /* for a phase; */
#define PATIENCE_EACH_S 0.1 /* ... or so long for each device, if that is longer: the player itself is slow */
#define RACK 32 /* nodes */
#define STILL_S 1.0
#define COOKIE "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

struct play {
	struct played_site *site;
	struct played_agents *agents;
	struct played_controller controller;
	pid_t pid;
	clockid_t clock; /* CPU time of the controller */
	char folder[64];
	double began, cpu, train_s;
	struct played_phase *phase; /* what was seen, PLAYED_PHASES_MAX of them */
	int phases;
	struct played_counts before;
	int64_t whole;                 /* workers of the generation that WHOLE_AGAIN waits for */
	int asked_before, srun_before; /* calls of Slurm, as in struct played_phase */
	struct hspmd_stream *asked;    /* a command that has not been answered */
	json_t *reply;
};

static double cpu_of(clockid_t clock)
{
	struct timespec t;
	return clock_gettime(clock, &t) ? 0 : (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the controller */

static int launch(struct play *p, bool again, struct hspmd_error *err)
{
	p->pid = played_controller_start(&p->controller, again, err);
	if (p->pid < 0)
		return -1;
	return clock_getcpuclockid(p->pid, &p->clock) ? hspmd_fail(err, "no clock of the controller") : 0;
}

static json_t *contact_of(const struct play *p)
{
	char path[96];
	snprintf(path, sizeof path, "%s/contact.json", p->folder);
	return json_load_file(path, 0, NULL);
}

static int find_controller(struct play *p, struct hspmd_error *err)
{
	double until = hspmd_now() + PATIENCE_S;
	json_t *contact;
	while (!(contact = contact_of(p)) && hspmd_now() < until && waitpid(p->pid, NULL, WNOHANG) == 0)
		nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
	const char *address = json_string_value(json_array_get(json_object_get(contact, "addresses"), 0));
	const char *colon = address ? strrchr(address, ':') : NULL;
	if (colon) {
		p->controller.port = atoi(colon + 1);
		played_agents_call(p->agents, address);
	}
	json_decref(contact);
	return colon ? 0 : hspmd_fail(err, "the controller has not begun");
}

static int ask(struct play *p, const char *command, int by, struct hspmd_error *err)
{
	json_t *contact = contact_of(p), *hello = json_pack("{s:s, s:s, s:f}", "role", "command", "command", command, "timeout_s", 600.0);
	if (by)
		json_object_set_new(hello, "by", json_integer(by));
	p->asked = hspmd_contact_connect(contact, hello, 30, NULL, err);
	json_decref(contact);
	json_decref(hello);
	return p->asked ? 0 : -1;
}

static void hear_reply(struct play *p)
{
	struct hspmd_error err;
	if (!p->asked || p->reply)
		return;
	hspmd_stream_read(p->asked, &err);
	p->reply = hspmd_stream_next(p->asked);
}

/* ---- phases */

enum until { NEW_GENERATION, WHOLE_AGAIN, COMMITTED, SECONDS, ALL_BACK };

static void begin(struct play *p)
{
	json_decref(p->reply);
	p->reply = NULL;
	hspmd_stream_destroy(p->asked);
	p->asked = NULL;
	p->before = played_agents_counts(p->agents);
	p->asked_before = atomic_load(&p->site->asked);
	p->srun_before = atomic_load(&p->site->srun);
	p->began = hspmd_now();
	p->cpu = cpu_of(p->clock);
}

/* A command that has been refused. */
static const char *refusal(const struct play *p)
{
	const json_t *text = json_object_get(p->reply, "text");
	return json_is_false(json_object_get(p->reply, "ok")) && text ? json_string_value(text) : NULL;
}

static bool reached(const struct play *p, const struct played_counts *c, enum until what)
{
	switch (what) {
	case NEW_GENERATION:
		return c->training > p->before.training && c->steps >= p->before.steps + 2 && (!p->asked || p->reply);
	case WHOLE_AGAIN: /* not of a better plan for a part, which may come first */
		return c->training > p->before.training && c->steps >= p->before.steps + 2 && c->workers >= p->whole;
	case COMMITTED: /* and all nodes know it */
		return p->reply && c->committed - p->before.committed >= c->workers / PLAYED_NODE_DEVICES;
	case ALL_BACK:
		return c->agents >= p->before.agents && c->steps >= p->before.steps + 2;
	default:
		return hspmd_now() >= p->began + p->train_s;
	}
}

/* Play until something has been reached, and print what it took. */
static int phase(struct play *p, const char *name, enum until what, struct hspmd_error *err)
{
	struct played_counts c = p->before;
	int64_t largest = 0;
	int status = 0;
	double patience = fmax(PATIENCE_S, PATIENCE_EACH_S * p->site->nodes * PLAYED_NODE_DEVICES), until = hspmd_now() + patience;
	while (!reached(p, &c, what)) {
		status = played_agents_run(p->agents, 0.05, err);
		hear_reply(p);
		c = played_agents_counts(p->agents);
		largest = c.largest > largest ? c.largest : largest;
		if (!status && hspmd_now() > until)
			status = hspmd_fail(err, "waited %.0f s", patience);
		if (!status && refusal(p))
			status = hspmd_fail(err, "%s", refusal(p));
		if (!status && waitpid(p->pid, NULL, WNOHANG))
			status = hspmd_fail(err, "the controller has ended");
		if (status)
			return hspmd_error_prefix(err, "%s", name);
	}
	p->phase[p->phases++] = (struct played_phase){
		.name = name,
		.wall_s = hspmd_now() - p->began,
		.cpu_s = cpu_of(p->clock) - p->cpu,
		.bytes_down = c.bytes_down - p->before.bytes_down,
		.bytes_up = c.bytes_up - p->before.bytes_up,
		.down = c.down - p->before.down,
		.up = c.up - p->before.up,
		.largest = largest,
		.workers = c.workers,
		.manifests = c.manifests - p->before.manifests,
		.asked_for_manifest = c.asked_for_manifest - p->before.asked_for_manifest,
		.found_bytes = c.found_bytes - p->before.found_bytes,
		.asked = atomic_load(&p->site->asked) - p->asked_before,
		.srun = atomic_load(&p->site->srun) - p->srun_before,
		.connects = c.connects - p->before.connects,
		.generation = c.training,
		.from = c.from,
	};
	return 0;
}

static void lose(struct play *p, int first, int count)
{
	for (int n = first; n < first + count; n++) {
		atomic_store(&p->site->node[n].held, false);
		played_agents_lose(p->agents, n);
	}
}

static int restart(struct play *p, struct hspmd_error *err)
{
	kill(p->pid, SIGKILL);
	waitpid(p->pid, NULL, 0);
	if (launch(p, true, err))
		return -1;
	p->cpu = 0;
	return phase(p, "controller lost", ALL_BACK, err);
}

/* The controller's node is so busy that it does nothing for a while. */
static int stand_still(struct play *p, struct hspmd_error *err)
{
	double until = hspmd_now() + STILL_S;
	int status = 0;
	kill(p->pid, SIGSTOP);
	while (!status && hspmd_now() < until)
		status = played_agents_run(p->agents, 0.05, err);
	kill(p->pid, SIGCONT);
	if (!status)
		status = phase(p, "controller slow", SECONDS, err);
	begin(p);
	return status;
}

/* All workers are killed at once, as by a fault of the network that they share: all state comes from the checkpoint. */
static int scene_of_restart(struct play *p, struct hspmd_error *err)
{
	p->cpu = 0;
	if (find_controller(p, err) || phase(p, "start", NEW_GENERATION, err))
		return -1;
	begin(p);
	if (ask(p, "checkpoint", 0, err) || phase(p, "checkpoint", COMMITTED, err))
		return -1;
	begin(p);
	played_agents_kill_workers(p->agents);
	return phase(p, "workers lost", NEW_GENERATION, err);
}

static int scenes(struct play *p, int nodes, struct hspmd_error *err)
{
	int more = nodes / 8, rack = nodes / 4 < RACK ? nodes / 4 : RACK;
	p->cpu = 0;
	if (find_controller(p, err) || phase(p, "start", NEW_GENERATION, err))
		return -1;
	begin(p);
	if (phase(p, "train", SECONDS, err))
		return -1;
	begin(p);
	if (ask(p, "checkpoint", 0, err) || phase(p, "checkpoint", COMMITTED, err))
		return -1;
	begin(p);
	if (ask(p, "grow", more, err) || phase(p, "grow", NEW_GENERATION, err))
		return -1;
	begin(p);
	if (ask(p, "shrink", more, err) || phase(p, "shrink", NEW_GENERATION, err))
		return -1;
	begin(p);
	lose(p, 1, 1);
	if (phase(p, "one node lost", NEW_GENERATION, err))
		return -1;
	begin(p);
	lose(p, 2, rack);
	if (phase(p, "rack lost", NEW_GENERATION, err))
		return -1;
	begin(p);
	p->whole = p->before.workers;
	/* Part of what is left: the first nodes keep the controller. */
	int first = nodes / 2, cut = nodes / 8;
	played_agents_cut(p->agents, first, cut, true);
	if (phase(p, "partition", NEW_GENERATION, err))
		return -1;
	begin(p);
	played_agents_cut(p->agents, first, cut, false);
	if (phase(p, "healed", WHOLE_AGAIN, err))
		return -1;
	begin(p);
	return stand_still(p, err) ? -1 : restart(p, err);
}

int played_scenes_run(enum played_what what, int devices, double train_s, struct played_phase *phases, int *count, struct hspmd_error *err)
{
	int nodes = devices / PLAYED_NODE_DEVICES;
	struct play p = { .folder = "/tmp/hspmd-played.XXXXXX", .train_s = train_s, .phase = phases };
	p.site = mkdtemp(p.folder) ? played_site_create(devices, nodes - nodes / 8, err) : NULL;
	p.agents = p.site ? played_agents_create(p.site, COOKIE, err) : NULL;
	p.controller = (struct played_controller){ p.site, p.folder, COOKIE, run_journal_memory_create(err), 0 };
	int status = -1;
	if (p.agents && p.controller.journal && !launch(&p, false, err)) {
		p.began = hspmd_now();
		status = what == PLAYED_RESTART ? scene_of_restart(&p, err) : scenes(&p, nodes, err);
		kill(p.pid, SIGKILL);
		waitpid(p.pid, NULL, 0);
	}
	*count = p.phases;
	hspmd_stream_destroy(p.asked);
	json_decref(p.reply);
	played_agents_destroy(p.agents);
	played_site_destroy(p.site);
	run_journal_memory_destroy(p.controller.journal);
	char *remove = hspmd_asprintf("rm -rf %s", p.folder);
	if (remove && system(remove))
		perror("rm");
	free(remove);
	return status;
}
