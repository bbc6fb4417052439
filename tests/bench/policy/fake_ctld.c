/* SPDX-License-Identifier: Apache-2.0 */
/* hspmdctld on an invented cluster, for benchmarks: fake_ctld PORT JOBS NODES-PER-JOB FOLDER POLICIES COOKIE
 * JOBS running jobs (ids from 1, of this user) of NODES-PER-JOB nodes each, and 16 more nodes that become idle when a file job_state
 * appears in FOLDER, as slurmctld changes its own. Prints at the end (SIGTERM) the processor time used, the RPCs that would have gone to
 * slurmctld, and how many of these per minute while nothing changed (from the fourth minute on, when polls are as rare as they get). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "controller/ctld/daemon.h"

#define SPARE 16
#define SETTLED_S 180.0
#define PARTITIONS_S 300.0

struct world {
	int jobs, each;
	char state[4096];
	double began, partitions_at, quiet_till;
	bool idle_seen;
	long rpcs, looks, quiet_rpcs;
};

static int fill(struct hspmd_slurm_view *v, const struct world *w, bool idle)
{
	for (int i = 0; i < v->node_count; i++) {
		bool spare = i >= w->jobs * w->each;
		v->nodes[i] = (struct hspmd_slurm_view_node){ .name = hspmd_asprintf("n%d", i),
			                                      .state = spare && idle ? HSPMD_SLURM_VIEW_IDLE : HSPMD_SLURM_VIEW_BUSY,
			                                      .cpus = 8,
			                                      .memory_mb = 1000,
			                                      .features = strdup(""),
			                                      .gres = strdup("gpu:H20:8") };
		v->partitions[0].nodes[i] = 1;
	}
	v->partitions[0].name = strdup("main");
	v->partitions[0].up = true;
	for (int k = 0; k < w->jobs; k++) {
		struct hspmd_slurm_view_job *j = &v->jobs[k];
		*j = (struct hspmd_slurm_view_job){ .id = 1 + (uint32_t)k,
			                            .uid = getuid(),
			                            .state = HSPMD_SLURM_VIEW_RUNNING,
			                            .user = strdup("ann"),
			                            .account = strdup(""),
			                            .partition = strdup("main"),
			                            .qos = strdup(""),
			                            .features = strdup(""),
			                            .tres_per_node = strdup(""),
			                            .batch_host = hspmd_asprintf("n%d", k * w->each),
			                            .limit_s = INFINITY,
			                            .priority = 1 };
		j->held = malloc((size_t)w->each * sizeof *j->held);
		for (j->held_count = 0; j->held_count < w->each; j->held_count++)
			j->held[j->held_count] = k * w->each + j->held_count;
	}
	return 1;
}

static int fake_poll(void *context, const struct hspmd_slurm_view *old, struct hspmd_slurm_view **new, int *rpcs, struct hspmd_error *err)
{
	struct world *w = context;
	bool idle = access(w->state, F_OK) == 0;
	(void)err;
	double now = hspmd_now();
	int calls = now >= w->partitions_at ? 3 : 2;
	if (calls == 3)
		w->partitions_at = now + PARTITIONS_S;
	*rpcs += calls;
	w->rpcs += calls;
	if (now >= w->began + SETTLED_S && !idle) {
		w->quiet_rpcs += calls;
		w->quiet_till = now;
	}
	w->looks++;
	*new = NULL;
	if (old && idle == w->idle_seen)
		return 0;
	w->idle_seen = idle;
	struct hspmd_slurm_view *v = calloc(1, sizeof *v);
	v->node_count = w->jobs * w->each + SPARE;
	v->partition_count = 1;
	v->job_count = w->jobs;
	v->nodes = calloc((size_t)v->node_count, sizeof *v->nodes);
	v->partitions = calloc(1, sizeof *v->partitions);
	v->partitions[0].nodes = calloc((size_t)v->node_count, 1);
	v->jobs = calloc((size_t)w->jobs, sizeof *v->jobs);
	*new = v;
	return fill(v, w, idle);
}

int main(int argc, char **argv)
{
	if (argc != 7) {
		fputs("Usage: fake_ctld PORT JOBS NODES-PER-JOB FOLDER POLICIES COOKIE\n", stderr);
		return 2;
	}
	struct world w = { .jobs = atoi(argv[2]), .each = atoi(argv[3]), .began = hspmd_now() };
	char listen[64];
	snprintf(w.state, sizeof w.state, "%s/job_state", argv[4]);
	struct hspmd_error err = { "" };
	struct rlimit files = { 65536, 65536 };
	setrlimit(RLIMIT_NOFILE, &files);
	snprintf(listen, sizeof listen, "127.0.0.1:%s", argv[1]);
	struct ctld_options o = { .listen = listen,
		                  .policies = argv[5],
		                  .cookie = argv[6],
		                  .trust = { getuid() },
		                  .poll_min_s = 1,
		                  .poll_max_s = 75,
		                  .poll = fake_poll,
		                  .poll_context = &w,
		                  .state_folder = argv[4] };
	if (ctld_run(&o, &err) < 0) {
		fprintf(stderr, "fake_ctld: %s\n", err.text);
		return 1;
	}
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	double cpu = (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec),
	       s = hspmd_now() - w.began;
	printf("%.1f s, %.2f s of a processor (%.2f %%), %ld looks, %ld calls, %ld MiB\n", s, cpu, 100 * cpu / s, w.looks, w.rpcs,
	       u.ru_maxrss / 1024);
	double quiet = w.quiet_till - w.began - SETTLED_S;
	if (quiet > 0)
		printf("while nothing changed: %.2f calls a minute, over %.0f s\n", 60 * (double)w.quiet_rpcs / quiet, quiet);
	return 0;
}
