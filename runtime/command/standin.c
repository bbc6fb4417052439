/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/command/standin.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "runtime/command/standin_internal.h"

#define UNSENT_MAX ((size_t)16 << 20)
#define KILL_EVERY_MS 5   /* to look again whether all killed processes are gone */
#define PING_EVERY_MS 500 /* to look again whether a command that does not answer works */
#define LAST_WORDS_S 10   /* for the last messages to be read by the agent */

/* ---- the loop */

static void receive_all(struct standin *s)
{
	struct hspmd_error err = { "" };
	int open = hspmd_stream_read(s->stream, &err);
	for (json_t *m; (m = hspmd_stream_next(s->stream)); json_decref(m))
		standin_receive(s, m);
	if (open <= 0)
		standin_end(s, ANSWER_EXIT); /* the agent is gone */
}

static int timeout_ms(const struct standin *s)
{
	if (s->state == STANDIN_ENDING)
		return KILL_EVERY_MS;
	if (s->pinged)
		return PING_EVERY_MS;
	if (s->state != STANDIN_NOTICED && !s->warms)
		return -1;
	double left = ceil(((s->state == STANDIN_NOTICED ? s->notice_by : s->warms_by) - hspmd_now()) * 1e3);
	return left < 0 ? 0 : left > 60e3 ? 60000 : (int)left;
}

static void read_warm(struct standin *s)
{
	hspmd_warm_read(&s->warm);
	if (s->warm.ready || !s->warm.process.pid)
		standin_warmed(s);
}

static void run_once(struct standin *s)
{
	struct hspmd_error err;
	short out = hspmd_stream_has_unsent(s->stream) ? POLLOUT : 0;
	struct pollfd p[5] = { { .fd = hspmd_stream_fd(s->stream), .events = (short)(POLLIN | out) },
		               { .fd = s->signals, .events = POLLIN },
		               { .fd = s->state == STANDIN_IDLE ? -1 : s->process.output, .events = POLLIN },
		               { .fd = s->state == STANDIN_IDLE ? -1 : s->process.steps, .events = POLLIN },
		               { .fd = s->warm.process.pid ? s->warm.process.steps : -1, .events = POLLIN } };
	if (poll(p, 5, timeout_ms(s)) < 0 && errno != EINTR)
		s->over = true;
	if (p[2].revents)
		standin_read_output(s);
	if (p[3].revents)
		standin_read_steps(s);
	if (p[4].revents)
		read_warm(s);
	if (p[1].revents)
		standin_reap(s);
	if ((p[0].revents & POLLOUT) && hspmd_stream_flush(s->stream, &err))
		standin_end(s, ANSWER_EXIT);
	if (p[0].revents & ~POLLOUT)
		receive_all(s);
	if (s->broken && s->answer != ANSWER_EXIT)
		standin_end(s, ANSWER_EXIT);
	else if (s->state == STANDIN_NOTICED && hspmd_now() >= s->notice_by)
		standin_end(s, ANSWER_STOPPED);
	else if (s->state == STANDIN_ENDING)
		standin_kill_again(s);
	if (s->warms && hspmd_now() >= s->warms_by)
		standin_warmed(s);
	standin_ping_again(s);
}

static void tear_down(struct standin *s)
{
	hspmd_warm_close(&s->warm);
	struct hspmd_error err;
	struct pollfd p = { .fd = s->stream ? hspmd_stream_fd(s->stream) : -1, .events = POLLOUT };
	double until = hspmd_now() + LAST_WORDS_S;
	while (s->stream && hspmd_stream_has_unsent(s->stream) && hspmd_now() < until && poll(&p, 1, 100) >= 0)
		if (hspmd_stream_flush(s->stream, &err))
			break;
	hspmd_stream_destroy(s->stream);
	json_decref(s->start_line);
	hspmd_placement_clear(&s->next);
	hspmd_placement_clear(&s->place);
	hspmd_job_destroy(s->job);
	free(s->device);
	free(s->output_folder);
	free(s->id);
	free(s->checkpoint);
	free(s->warm_list);
	if (s->port_socket >= 0)
		close(s->port_socket);
	if (s->signals >= 0)
		close(s->signals);
}

int hspmd_standin_main(int fd)
{
	struct standin s = { .port_socket = -1, .status = STATUS_SIGNALLED };
	struct hspmd_error err = { "" };
	sigset_t child;
	s.process = (struct hspmd_rank_process){ .output = -1, .steps = -1, .steps_peer = -1 };
	s.warm.process = s.process;
	s.output.log = s.output.echo = -1;
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, NULL);
	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	s.signals = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
	s.stream = hspmd_stream_create(fd, HSPMD_WIRE_MAX, UNSENT_MAX, &err);
	if (s.signals < 0 || !s.stream) {
		hspmd_error_log("%s", s.stream ? "signalfd failed" : err.text);
		tear_down(&s);
		return 1;
	}
	standin_send(&s, json_pack("{ss,si}", "type", "hello", "pid", (int)getpid()));
	while (!s.over)
		run_once(&s);
	tear_down(&s);
	return 0;
}
