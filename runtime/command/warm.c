/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/command/warm.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/cgroup.h"
#include "common/clock.h"
#include "common/log.h"

#define ANSWER_S 5.0 /* for a fork, also if an import is under way */
#define PACKET_MAX 4096
#define STARTS 2 /* a second interpreter if the first one is stale */

static const char program[] =
#include "runtime/command/warm_interpreter.h"
        ;
/* In names of its own, so that those of __main__ are free for the script. */
static const char loader[] = "exec(open(0, closefd=False).read(), {'__name__': 'hspmd_warm'})";

/* ---- the command line */

/* Options of Python that an interpreter without a script takes as well. */
static bool is_plain_option(const char *text)
{
	return text[0] == '-' && text[1] && text[1 + strspn(text + 1, "uBsEOqIP")] == '\0';
}

/* Returns the index of the script, or of "-m"; 0: this is no command for Python. */
static int script_index(char *const *argv)
{
	const char *slash = argv[0] ? strrchr(argv[0], '/') : NULL, *name = slash ? slash + 1 : argv[0];
	int at = 1;
	if (!name || strncmp(name, "python", 6) || name[6 + strspn(name + 6, "0123456789.")])
		return 0;
	while (argv[at] && is_plain_option(argv[at]))
		at++;
	bool module = argv[at] && !strcmp(argv[at], "-m");
	return argv[at] && (argv[at][0] != '-' || module) && (!module || argv[at + 1]) ? at : 0;
}

/* ---- open, close */

/* A file in memory with these bytes, at its beginning; -1. */
static int memory_file(const char *bytes, size_t size)
{
	int fd = memfd_create("hspmd-warm", MFD_CLOEXEC);
	if (fd >= 0 && (write(fd, bytes, size) != (ssize_t)size || lseek(fd, 0, SEEK_SET))) {
		close(fd);
		return -1;
	}
	return fd;
}

/* python OPTIONS -c LOADER FD LIST SCRIPT ARGUMENTS...; the list alone is malloc'd. */
static char **make_arguments(char *const *argv, int script, char *fd, const char *list)
{
	int n = 0, count = 0;
	while (argv[count])
		count++;
	char **all = hspmd_calloc((size_t)count + 5, sizeof *all);
	for (int i = 0; all && i < count; i++) {
		if (i == script) {
			all[n++] = "-c";
			all[n++] = (char *)loader;
			all[n++] = fd;
			all[n++] = (char *)list;
		}
		all[n++] = argv[i];
	}
	return all;
}

bool hspmd_warm_open(struct hspmd_warm *w, char *const *argv, char *const *environment, const char *folder, const char *list)
{
	struct hspmd_error err;
	char fd[16];
	int script = script_index(argv);
	if (w->process.pid)
		return true;
	if (w->refused || !script || hspmd_rank_process_open(&w->process, SOCK_SEQPACKET, &err))
		return false;
	snprintf(fd, sizeof fd, "%d", w->process.steps_peer);
	char **all = make_arguments(argv, script, fd, list);
	int input = memory_file(program, sizeof program - 1);
	if (!all || input < 0 || hspmd_rank_process_start(&w->process, all, environment, folder, input, &err)) {
		hspmd_rank_process_close(&w->process);
		w->process.pid = 0;
	}
	if (input >= 0)
		close(input);
	free(all);
	w->ready = false;
	w->bytes = w->modules = 0;
	return w->process.pid > 0;
}

static void forget(struct hspmd_warm *w)
{
	hspmd_rank_process_close(&w->process);
	w->process.pid = 0;
	w->ready = false;
	w->bytes = 0;
}

void hspmd_warm_close(struct hspmd_warm *w)
{
	if (!w->process.pid)
		return;
	kill(w->process.pid, SIGKILL);
	waitpid(w->process.pid, NULL, 0);
	forget(w);
}

bool hspmd_warm_ended(struct hspmd_warm *w, pid_t pid)
{
	if (!pid || pid != w->process.pid)
		return false;
	forget(w);
	return true;
}

/* ---- what it says */

/* The next packet; NULL: none has come in this time, or it is gone. */
static json_t *next_packet(struct hspmd_warm *w, double seconds)
{
	char bytes[PACKET_MAX];
	struct pollfd p = { .fd = w->process.steps, .events = POLLIN };
	double until = hspmd_now() + seconds, left;
	int n;
	while ((n = poll(&p, 1, (left = until - hspmd_now()) > 0 ? (int)(left * 1e3) + 1 : 0)) < 0 && errno == EINTR)
		;
	ssize_t size = n > 0 ? recv(p.fd, bytes, sizeof bytes, MSG_DONTWAIT) : 0;
	return size > 0 ? json_loadb(bytes, (size_t)size, 0, NULL) : NULL;
}

static void refuse(struct hspmd_warm *w, const char *why)
{
	hspmd_info("no warm interpreter: %s", why);
	w->refused = true;
	hspmd_warm_close(w);
}

static void on_packet(struct hspmd_warm *w, const json_t *m)
{
	const char *unfit = json_string_value(json_object_get(m, "unfit"));
	struct hspmd_cgroup limits;
	if (unfit) {
		refuse(w, unfit);
	} else if (json_object_get(m, "ready")) {
		bool first = !w->modules;
		w->ready = true;
		w->modules = (int)json_integer_value(json_object_get(m, "ready"));
		w->bytes = json_integer_value(json_object_get(m, "bytes"));
		hspmd_cgroup_read(&limits, "");
		if (limits.memory_unused_bytes < w->bytes)
			refuse(w, "the memory that this job may use is short");
		else if (first && w->modules)
			hspmd_info("a warm interpreter has %d modules, and %.0f MB of memory", w->modules, (double)w->bytes / 1e6);
	}
}

void hspmd_warm_read(struct hspmd_warm *w)
{
	json_t *m = next_packet(w, 0);
	if (m)
		on_packet(w, m);
	else if (w->process.pid)
		hspmd_warm_close(w);
	json_decref(m);
}

/* ---- start */

/* The request: the number of words, the words, the environment, each with a 0 behind it. malloc'd; NULL: out of memory. */
static char *make_request(char *const *words, char *const *environment, size_t *size)
{
	char *bytes = NULL;
	FILE *f = open_memstream(&bytes, size);
	int count = 0;
	while (words[count])
		count++;
	if (!f)
		return NULL;
	fprintf(f, "%d%c", count, 0);
	for (char *const *at = words; *at; at++)
		fprintf(f, "%s%c", *at, 0);
	for (char *const *at = environment; *at; at++)
		fprintf(f, "%s%c", *at, 0);
	if (!fclose(f))
		return bytes;
	free(bytes);
	return NULL;
}

static int send_request(int to, int request, int output, int steps)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(3 * sizeof(int))];
	} control;
	int fds[3] = { request, output, steps };
	struct iovec byte = { .iov_base = "s", .iov_len = 1 };
	struct msghdr m = { .msg_iov = &byte, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes };
	memset(&control, 0, sizeof control);
	control.head = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof fds), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
	memcpy(CMSG_DATA(&control.head), fds, sizeof fds);
	return sendmsg(to, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == 1 ? 0 : -1;
}

/* Waits for its answer. Returns the new process; 0: it is stale, or gone; -1: it does not answer. */
static pid_t wait_for_process(struct hspmd_warm *w)
{
	double until = hspmd_now() + ANSWER_S;
	pid_t pid = -1;
	for (json_t *m; pid < 0 && w->process.pid && (m = next_packet(w, until - hspmd_now())); json_decref(m)) {
		const char *stale = json_string_value(json_object_get(m, "stale"));
		if (json_is_integer(json_object_get(m, "pid")))
			pid = (pid_t)json_integer_value(json_object_get(m, "pid"));
		else if (stale && w->modules)
			hspmd_info("the warm interpreter is not used: %s", stale);
		else if (!stale)
			on_packet(w, m);
		pid = stale ? 0 : pid;
	}
	return pid < 0 && hspmd_now() < until ? 0 : pid;
}

bool hspmd_warm_start(struct hspmd_warm *w, struct hspmd_rank_process *p, char *const *argv, char *const *environment, const char *folder,
                      const char *list)
{
	int output[2] = { -1, -1 }, request = -1;
	size_t size = 0;
	pid_t pid = 0;
	char *bytes = script_index(argv) ? make_request(argv + script_index(argv), environment, &size) : NULL;
	if (!bytes || pipe2(output, O_CLOEXEC)) {
		free(bytes);
		return false;
	}
	for (int i = 0; i < STARTS && pid <= 0 && hspmd_warm_open(w, argv, environment, folder, list); i++) {
		request = memory_file(bytes, size);
		pid = request < 0 ? -1 : send_request(w->process.steps, request, output[1], p->steps_peer) ? 0 : wait_for_process(w);
		if (request >= 0)
			close(request);
		if (pid <= 0)
			hspmd_warm_close(w);
		w->refused |= pid < 0;
	}
	free(bytes);
	if (pid > 0)
		hspmd_rank_process_started(p, pid, output);
	for (int i = 0; pid <= 0 && i < 2; i++)
		close(output[i]);
	return pid > 0;
}
