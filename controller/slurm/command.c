/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/slurm/command.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/gres.h"

extern char **environ;

void hspmd_slurm_argv_add(struct hspmd_slurm_argv *w, const char *format, ...)
{
	va_list ap;
	char *text = NULL;
	va_start(ap, format);
	if (w->count >= HSPMD_SLURM_ARGV_MAX || vasprintf(&text, format, ap) < 0)
		w->failed = true;
	else
		w->argv[w->count++] = text;
	va_end(ap);
}

void hspmd_slurm_argv_clear(struct hspmd_slurm_argv *w)
{
	for (int i = 0; i < w->count; i++)
		free(w->argv[i]);
	memset(w, 0, sizeof *w);
}

static void add_gres(struct hspmd_slurm_argv *w, const char *list_of_slurm, bool typed)
{
	char list[512];
	if (!*list_of_slurm)
		return;
	if (hspmd_gres_request(list_of_slurm, typed, list, sizeof list))
		w->failed = true;
	else if (*list)
		hspmd_slurm_argv_add(w, "--gres=%s", list);
}

static bool given(const char *text)
{
	return text && *text;
}

void hspmd_slurm_same_resources(struct hspmd_slurm_argv *w, const struct hspmd_slurm_job *job, int count,
                                const struct hspmd_slurm_member_terms *terms)
{
	static const struct hspmd_slurm_member_terms none = { .qos = NULL };
	if (!terms)
		terms = &none;
	time_t left = job->end > time(NULL) ? job->end - time(NULL) : 60;
	const char *partition = given(terms->partition) ? terms->partition : job->partition;
	const char *qos = given(terms->qos) ? terms->qos : job->qos;
	bool elsewhere = strcmp(partition, job->partition) != 0;
	hspmd_slurm_argv_add(w, "--nodes=%d", count);
	hspmd_slurm_argv_add(w, "--ntasks-per-node=1");
	hspmd_slurm_argv_add(w, "--partition=%s", partition);
	hspmd_slurm_argv_add(w, "--time=%ld", left < 120 ? 1 : (long)left / 60); /* not beyond the end of the job; 0 would mean no limit */
	if (terms->time_min_s > 0 && terms->time_min_s < (double)left - 60)
		hspmd_slurm_argv_add(w, "--time-min=%ld", (long)((terms->time_min_s + 59) / 60));
	if (job->exclusive)
		hspmd_slurm_argv_add(w, "--exclusive");
	else if (job->node_count > 0 && job->cpus >= job->node_count)
		hspmd_slurm_argv_add(w, "--cpus-per-task=%d", job->cpus / job->node_count);
	if (*job->account)
		hspmd_slurm_argv_add(w, "--account=%s", job->account);
	if (*qos)
		hspmd_slurm_argv_add(w, "--qos=%s", qos);
	if (*job->constraints && !elsewhere)
		hspmd_slurm_argv_add(w, "--constraint=%s", job->constraints);
	if (*job->reservation && !elsewhere)
		hspmd_slurm_argv_add(w, "--reservation=%s", job->reservation);
	if (job->cpu_memory_mb)
		hspmd_slurm_argv_add(w, "--mem-per-cpu=%lluM", (unsigned long long)job->cpu_memory_mb);
	else if (job->node_memory_mb)
		hspmd_slurm_argv_add(w, "--mem=%lluM", (unsigned long long)job->node_memory_mb);
	add_gres(w, job->gres, !elsewhere);
}

/* Returns the environment without the variables by which Slurm's commands would refer to the job in which this process runs,
 * or take options that were meant for a user's own jobs and tasks. */
static char **slurm_environment(void)
{
	size_t n = 0, kept = 0;
	while (environ[n])
		n++;
	char **env = hspmd_calloc(n + 1, sizeof *env);
	for (size_t i = 0; env && i < n; i++) {
		bool ours = !strncmp(environ[i], "_SLURM_", 7) || !strncmp(environ[i], "SPANK_", 6) ||
		            (!strncmp(environ[i], "SLURM_", 6) && strncmp(environ[i], "SLURM_CONF=", 11) &&
		             strncmp(environ[i], "SLURM_CONF_SERVER=", 18)); /* where a configless cluster has its configuration */
		bool options = !strncmp(environ[i], "SALLOC_", 7) || !strncmp(environ[i], "SBATCH_", 7) ||
		               !strncmp(environ[i], "SRUN_", 5) || !strncmp(environ[i], "HSPMD_", 6);
		if (!ours && !options)
			env[kept++] = environ[i];
	}
	return env;
}

/* Reads the child's output until it closes the pipe or time is up. */
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

/* Returns the child's exit status; -1: it did not exit by itself in time. */
static int await_child(pid_t child, int end, double deadline)
{
	int status = 0;
	pid_t ended;
	while (!(ended = waitpid(child, &status, WNOHANG))) {
		if (hspmd_now() > deadline) {
			kill(child, end);
			waitpid(child, &status, 0);
			return -1;
		}
		usleep(20000);
	}
	return ended == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int hspmd_slurm_await_output(pid_t child, int fd, int end, double wait_s, char *text, size_t size)
{
	double deadline = hspmd_now() + wait_s;
	collect(fd, deadline, text, size);
	close(fd);
	return await_child(child, end, deadline);
}

int hspmd_slurm_run_command(const struct hspmd_slurm_argv *w, double wait_s, char *text, size_t size, struct hspmd_error *err)
{
	char *const *command = w->argv;
	int ends[2];
	pid_t child;
	posix_spawn_file_actions_t files;
	char **env = w->failed ? NULL : slurm_environment();
	if (!env)
		return hspmd_fail_memory(err, "running a command of Slurm");
	if (pipe2(ends, O_CLOEXEC)) {
		free(env);
		return hspmd_fail_errno(err, "running a command of Slurm: pipe");
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
	int status = hspmd_slurm_await_output(child, ends[0], SIGTERM, wait_s, text, size);
	return status < 0 ? hspmd_fail(err, "%s did not end within %.0f s", command[0], wait_s) : status;
}

const char *hspmd_slurm_error_line(char *text)
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
