/* SPDX-License-Identifier: Apache-2.0 */
/* Growing a running job in place: a helper allocation of the same shape that depends on it ("expand:ID") and has no step, whose nodes are then moved over: the helper is updated to no nodes,
 * the job to all it can have. Works only where SchedulerParameters has permit_job_expansion and neither job holds GRES. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/log.h"
#include "controller/slurm/session.h"
#include "controller/slurm/job.h"

extern char **environ;

/* The environment without what would make salloc think that it speaks of the job we are in. */
static char **outside_environment(void)
{
	size_t n = 0, kept = 0;
	while (environ[n])
		n++;
	char **env = hspmd_calloc(n + 1, sizeof *env);
	for (size_t i = 0; env && i < n; i++) {
		bool ours = !strncmp(environ[i], "SLURM_", 6) && strncmp(environ[i], "SLURM_CONF=", 11);
		bool options = !strncmp(environ[i], "SALLOC_", 7) || !strncmp(environ[i], "SBATCH_", 7) || !strncmp(environ[i], "HSPMD_", 6);
		if (!ours && !options)
			env[kept++] = environ[i];
	}
	return env;
}

/* Everything the child writes, until it closes its end or time is up. */
static void collect(int fd, double deadline, char *text, size_t size)
{
	size_t used = 0;
	while (used + 1 < size && hspmd_now() < deadline) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		if (poll(&p, 1, 200) < 0 && errno != EINTR)
			break;
		if (!(p.revents & (POLLIN | POLLHUP)))
			continue;
		ssize_t n = read(fd, text + used, size - 1 - used);
		if (n <= 0)
			break;
		used += (size_t)n;
	}
	text[used] = '\0';
}

static int await_child(pid_t child, double deadline)
{
	int status;
	while (waitpid(child, &status, WNOHANG) == 0) {
		if (hspmd_now() > deadline) {
			kill(child, SIGTERM);
			waitpid(child, &status, 0);
			return -1;
		}
		usleep(20000);
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Run salloc; its messages into text. Exit status, or -1 with err. */
static int run(char *const *command, double wait_s, char *text, size_t size, struct hspmd_error *err)
{
	int ends[2];
	pid_t child;
	posix_spawn_file_actions_t files;
	char **env = outside_environment();
	if (!env)
		return hspmd_fail_memory(err, "growing the job");
	if (pipe2(ends, O_CLOEXEC)) {
		free(env);
		return hspmd_fail_errno(err, "growing the job: pipe");
	}
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&files, ends[1], 1);
	posix_spawn_file_actions_adddup2(&files, ends[1], 2);
	int failed = posix_spawnp(&child, command[0], &files, NULL, command, env);
	posix_spawn_file_actions_destroy(&files);
	free(env);
	close(ends[1]);
	if (failed) {
		close(ends[0]);
		errno = failed;
		return hspmd_fail_errno(err, "%s cannot be started", command[0]);
	}
	double deadline = hspmd_now() + wait_s + 10; /* salloc keeps the time itself; this is for a slurmctld that does not answer */
	collect(ends[0], deadline, text, size);
	close(ends[0]);
	int status = await_child(child, deadline);
	return status < 0 ? hspmd_fail(err, "%s did not end within %.0f s", command[0], wait_s + 10) : status;
}

/* The helper's number from salloc's "Granted job allocation N". 0: none. */
static uint32_t granted(const char *text)
{
	const char *at = strstr(text, "Granted job allocation ");
	return at ? (uint32_t)strtoul(at + 23, NULL, 10) : 0;
}

/* The last line that says what went wrong. */
static const char *complaint(char *text)
{
	char *best = text, *line = text;
	for (char *next; line && *line; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		if (strstr(line, "error") || strstr(line, "nable"))
			best = line;
	}
	return *best ? best : "it said nothing";
}

static uint32_t allocate_helper(const struct hspmd_slurm_job *job, int count, double wait_s, struct hspmd_error *err)
{
	char said[4096], *arg[16];
	int n = 0, per_node = job->node_count > 0 ? job->cpus / job->node_count : 1;
	time_t left = job->end > time(NULL) ? job->end - time(NULL) : 60;
	uint32_t helper = 0;
	int first = n + 2;
	arg[n++] = "salloc";
	arg[n++] = "--no-shell";
	arg[n++] = hspmd_asprintf("--dependency=expand:%u", job->id);
	arg[n++] = hspmd_asprintf("--nodes=%d", count);
	arg[n++] = hspmd_asprintf("--ntasks-per-node=1");
	arg[n++] = hspmd_asprintf("--cpus-per-task=%d", per_node > 0 ? per_node : 1);
	arg[n++] = hspmd_asprintf("--partition=%s", job->partition);
	arg[n++] = hspmd_asprintf("--time=%ld", (long)(left + 59) / 60);
	arg[n++] = hspmd_asprintf("--immediate=%d", wait_s < 1 ? 1 : (int)wait_s);
	arg[n++] = hspmd_asprintf("--job-name=grow-%u", job->id);
	if (*job->account)
		arg[n++] = hspmd_asprintf("--account=%s", job->account);
	if (*job->qos)
		arg[n++] = hspmd_asprintf("--qos=%s", job->qos);
	if (*job->constraints)
		arg[n++] = hspmd_asprintf("--constraint=%s", job->constraints);
	if (job->exclusive)
		arg[n++] = hspmd_asprintf("--exclusive");
	arg[n] = NULL;
	bool short_of_memory = false;
	for (int i = first; i < n; i++)
		short_of_memory |= !arg[i];
	int status = short_of_memory ? hspmd_fail_memory(err, "growing the job") : run(arg, wait_s, said, sizeof said, err);
	if (status >= 0 && !(helper = granted(said)))
		hspmd_fail(err, "no %d more nodes like those of job %u within %.0f s: salloc: %s", count, job->id, wait_s, complaint(said));
	for (int i = first; i < n; i++)
		free(arg[i]);
	return helper;
}

/* Move all nodes of the helper into the job. */
static int hand_over(uint32_t helper, uint32_t job, struct hspmd_error *err)
{
	job_desc_msg_t change;
	slurm_init_job_desc_msg(&change);
	change.min_nodes = 0;
	if (hspmd_slurm_update(&change, helper, "giving its nodes up", err))
		return -1;
	slurm_init_job_desc_msg(&change);
	change.min_nodes = INFINITE;
	return hspmd_slurm_update(&change, job, "taking the nodes", err);
}

int hspmd_slurm_job_grow(const struct hspmd_slurm_job *job, int count, double wait_s, struct hspmd_error *err)
{
	int allowed = hspmd_slurm_scheduler_has("permit_job_expansion", err);
	if (allowed < 0)
		return -1;
	if (!allowed)
		return hspmd_fail(err, "job %u cannot grow in place: SchedulerParameters of this site has no permit_job_expansion", job->id);
	if (job->holds_gres)
		return hspmd_fail(err, "job %u cannot grow in place: Slurm refuses that for jobs that hold GRES", job->id);
	uint32_t helper = allocate_helper(job, count, wait_s, err);
	if (!helper)
		return -1;
	if (!hand_over(helper, job->id, err))
		return 0;
	if (slurm_kill_job(helper, SIGKILL, 0))
		hspmd_debug("helper job %u ended by itself", helper);
	return -1;
}
