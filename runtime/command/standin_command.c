/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in's command: its start, its output, and its end. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/process_tree.h"
#include "common/template.h"
#include "runtime/command/environment.h"
#include "runtime/command/newest.h"
#include "runtime/command/standin_internal.h"

#define WARM_UP_S 60 /* for the imports of a rank that joins; the others train meanwhile */

/* ---- what the command writes */

static void tell_steps(struct standin *s, const char *data, size_t size)
{
	for (size_t i = 0; i < size; i++) {
		if (data[i] != '\n') {
			if (s->line_used < sizeof s->line - 1)
				s->line[s->line_used++] = data[i];
			continue;
		}
		s->line[s->line_used] = '\0';
		s->line_used = 0;
		standin_line(s, s->line);
	}
}

/* Reads what is there now, and closes the pipe at its end. */
void standin_read_output(struct standin *s)
{
	char data[65536];
	ssize_t n = -1;
	while (s->process.output >= 0 && (n = read(s->process.output, data, sizeof data)) != 0) {
		if (n > 0)
			hspmd_rank_output_write(&s->output, data, (size_t)n);
		else if (errno != EINTR)
			break;
		if (n > 0 && n < (ssize_t)sizeof data)
			break; /* others are waiting, too */
	}
	if (s->process.output >= 0 && n == 0) {
		close(s->process.output);
		s->process.output = -1;
	}
}

void standin_read_steps(struct standin *s)
{
	char data[65536];
	ssize_t n;
	while (s->process.steps >= 0 && (n = read(s->process.steps, data, sizeof data)) != 0) {
		if (n < 0 && errno != EINTR)
			return;
		if (n > 0)
			tell_steps(s, data, (size_t)n);
	}
	if (s->process.steps >= 0)
		close(s->process.steps);
	s->process.steps = -1;
}

/* Reads all that the command has written before its end. */
static void read_rest(struct standin *s)
{
	struct pollfd p = { .fd = s->process.output, .events = POLLIN };
	for (int i = 0; i < 10000 && s->process.output >= 0 && poll(&p, 1, 0) > 0; i++)
		standin_read_output(s);
	standin_read_steps(s);
}

/* ---- start */

static void destroy_list(char **list)
{
	for (char **at = list; at && *at; at++)
		free(*at);
	free(list);
}

/* The command's arguments for this rank. */
static char **make_arguments(const struct standin *s, const struct hspmd_placement *place, struct hspmd_error *err)
{
	char *latest = NULL, **argv = hspmd_calloc((size_t)s->job->command.argc + 1, sizeof *argv);
	if (s->checkpoint)
		hspmd_newest_save(s->checkpoint, &latest);
	const struct hspmd_template_values v = { .world = place->world,
		                                 .nodes = place->nodes,
		                                 .rank = place->rank,
		                                 .local_rank = place->local_rank,
		                                 .latest = latest,
		                                 .checkpoint = s->checkpoint };
	bool failed = !argv;
	for (int i = 0; !failed && i < s->job->command.argc; i++)
		failed = hspmd_template_expand(s->job->command.argv[i], &v, &argv[i], err) != HSPMD_TEMPLATE_DONE;
	free(latest);
	if (!failed)
		return argv;
	if (!argv)
		hspmd_fail_memory(err, "starting the command");
	destroy_list(argv);
	return NULL;
}

static char **make_environment(const struct standin *s, const struct hspmd_placement *place, int64_t generation, const char *host, int port)
{
	extern char **environ;
	const struct hspmd_environment_input in = { .place = place,
		                                    .master_host = host,
		                                    .master_port = port,
		                                    .generation = generation,
		                                    .restarts = generation - 1,
		                                    .id = s->id,
		                                    .checkpoint = s->checkpoint,
		                                    .steps_fd = s->process.steps_peer,
		                                    .threads = s->threads,
		                                    .gpus = s->gpu };
	return hspmd_environment_make(environ, &in);
}

static int launch(struct standin *s, const struct hspmd_placement *place, int64_t generation, const char *host, int port,
                  struct hspmd_error *err)
{
	char title[200];
	char **argv = make_arguments(s, place, err), **environment = NULL;
	snprintf(title, sizeof title, "hspmd: generation %lld: rank %d of %d on %s", (long long)generation, place->rank, place->world,
	         s->device);
	int rc = argv ? hspmd_rank_process_open(&s->process, SOCK_STREAM, err) : -1;
	if (!rc && !(environment = make_environment(s, place, generation, host, port)))
		rc = hspmd_fail_memory(err, "starting the command");
	if (!rc) {
		hspmd_rank_output_open(&s->output, s->output_folder, place->rank, place->rank ? -1 : STDOUT_FILENO, title);
		if (!s->job->command.warm ||
		    !hspmd_warm_start(&s->warm, &s->process, argv, environment, s->job->command.folder, s->warm_list))
			rc = hspmd_rank_process_start(&s->process, argv, environment, s->job->command.folder, -1, err);
	}
	destroy_list(argv);
	hspmd_environment_destroy(environment);
	return rc;
}

bool standin_warm_up(struct standin *s, const char *host, int port)
{
	struct hspmd_error unused;
	char **argv = s->job->command.warm ? make_arguments(s, &s->next, &unused) : NULL;
	char **environment = argv ? make_environment(s, &s->next, s->prepared, host, port) : NULL;
	bool opened =
	        !s->warm.process.pid && environment && hspmd_warm_open(&s->warm, argv, environment, s->job->command.folder, s->warm_list);
	destroy_list(argv);
	hspmd_environment_destroy(environment);
	s->warms = opened ? s->prepared : 0;
	s->warms_by = hspmd_now() + WARM_UP_S;
	return opened;
}

void standin_warmed(struct standin *s)
{
	if (s->warms && s->warms == s->prepared)
		standin_prepared(s);
	s->warms = 0;
}

void standin_launch(struct standin *s, const struct hspmd_placement *place, int64_t generation, const char *host, int port)
{
	struct hspmd_error err = { "" };
	bool begins = generation == s->generation;
	s->line_used = 0;
	s->told_step = -1;
	s->told_at = hspmd_now();
	s->elastic = s->ended = s->finished = false;
	s->status = STATUS_SIGNALLED;
	s->holds = 0;
	if (launch(s, place, generation, host, port, &err)) {
		hspmd_rank_process_close(&s->process);
		hspmd_rank_output_close(&s->output);
		standin_fault(s, generation, err.text, NULL);
		return;
	}
	s->state = begins ? STANDIN_RUNNING : STANDIN_PAUSED;
	if (begins)
		standin_started(s);
}

/* ---- end */

static void all_gone(struct standin *s)
{
	read_rest(s);
	hspmd_rank_process_close(&s->process);
	hspmd_rank_output_close(&s->output);
	s->process.pid = 0;
	s->state = STANDIN_IDLE;
	s->elastic = false;
	s->holds = s->prepare_waits = 0;
	s->debt = DEBT_NONE;
	standin_answer(s);
}

static bool is_warm(void *context, pid_t pid)
{
	const struct standin *s = context;
	return pid == s->warm.process.pid;
}

void standin_kill_again(struct standin *s)
{
	if (s->answer == ANSWER_EXIT)
		hspmd_warm_close(&s->warm);
	if (hspmd_process_tree_kill(is_warm, s) == 0)
		all_gone(s);
}

void standin_end(struct standin *s, enum standin_answer answer)
{
	if (s->answer != ANSWER_EXIT)
		s->answer = answer;
	if (s->state == STANDIN_IDLE) {
		standin_answer(s);
		return;
	}
	s->state = STANDIN_ENDING;
	standin_kill_again(s);
}

void standin_notice(struct standin *s, double notice_s)
{
	s->answer = ANSWER_STOPPED;
	s->debt = DEBT_NONE;
	if (notice_s <= 0) {
		standin_end(s, ANSWER_STOPPED);
		return;
	}
	s->state = STANDIN_NOTICED;
	s->notice_by = hspmd_now() + notice_s;
	if (!s->elastic)
		hspmd_process_signal_command(s->process.pid, s->job->command.notice_signal);
}

/* The command has ended although nobody has told it to, and not well. */
static void report_failure(struct standin *s, int how)
{
	char text[HSPMD_ERROR_MAX], reason[128];
	json_t *tail = hspmd_rank_output_tail(&s->output);
	const char *last = json_string_value(json_array_get(tail, json_array_size(tail) - 1));
	if (WIFSIGNALED(how))
		snprintf(reason, sizeof reason, "ended by signal %d (%s)", WTERMSIG(how), strsignal(WTERMSIG(how)));
	else
		snprintf(reason, sizeof reason, "exit status %d", WEXITSTATUS(how));
	const struct hspmd_placement *place = s->state == STANDIN_PAUSED && s->prepared ? &s->next : &s->place;
	snprintf(text, sizeof text, "rank %d: %s%s%.300s", place->rank, reason, last ? ": " : "", last ? last : "");
	standin_fault(s, s->state == STANDIN_PAUSED && s->prepared ? s->prepared : s->generation, text, tail);
}

static void on_command_end(struct standin *s, int how)
{
	s->ended = true;
	s->status = WIFEXITED(how) ? WEXITSTATUS(how) : STATUS_SIGNALLED;
	if (s->state == STANDIN_NOTICED && WIFSIGNALED(how) && WTERMSIG(how) == s->job->command.notice_signal)
		s->status = STATUS_NOTICED;
	s->process.pid = 0;
	read_rest(s);
	if (s->state == STANDIN_NOTICED) {
		standin_end(s, ANSWER_STOPPED);
	} else if (s->debt == DEBT_ABORTED || s->debt == DEBT_SETTLED) {
		standin_end(s, s->debt == DEBT_ABORTED ? ANSWER_ABORTED : ANSWER_SETTLED);
	} else if (s->state == STANDIN_RUNNING && (s->status == 0 || s->status == STATUS_MORE)) {
		s->finished = true;
		standin_end(s, ANSWER_FINISHED);
	} else if (s->state == STANDIN_RUNNING || s->state == STANDIN_PAUSED) {
		report_failure(s, how);
		standin_end(s, ANSWER_NONE);
	}
}

/* Collects ended children: the command, and what it has left to this process. */
void standin_reap(struct standin *s)
{
	struct signalfd_siginfo unused;
	int how;
	while (read(s->signals, &unused, sizeof unused) > 0)
		;
	for (pid_t pid; (pid = waitpid(-1, &how, WNOHANG)) > 0;)
		if (!hspmd_warm_ended(&s->warm, pid) && pid == s->process.pid)
			on_command_end(s, how);
	if (s->warms && !s->warm.process.pid)
		standin_warmed(s);
}
