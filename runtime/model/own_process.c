/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that run the code of a model of the user's own, with a deadline: a crash, an exit or a hang there is an error here. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/durable.h"
#include "runtime/model/own_internal.h"

#define ANSWER_S 30                        /* HSPMD_MODEL_TIMEOUT_S in the environment replaces it */
#define ANSWER_MAX ((size_t)256 << 20)     /* bytes */
#define FD_FREE (HSPMD_OWN_OBJECT_FD + 10) /* descriptors from here on are not replaced in the child */

extern char **environ;

static const char *program_of(const char *program)
{
	return program ? program : "/proc/self/exe";
}

int hspmd_own_memory_file(const char *name, const void *bytes, size_t size)
{
	int low = memfd_create(name, MFD_CLOEXEC), fd = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, FD_FREE);
	if (low >= 0)
		close(low);
	if (fd < 0)
		return -1;
	if (hspmd_write_all(fd, bytes, size) || lseek(fd, 0, SEEK_SET) < 0) {
		int saved = errno;
		close(fd);
		errno = saved;
		return -1;
	}
	return fd;
}

/* ---- a process */

struct answer {
	char *text; /* what has come so far; ends in '\0' */
	size_t size, capacity;
	bool complete, late;
	int status; /* of waitpid */
};

/* Start the program in a process group of its own. files: in the child 0, answer and object; -1: none. */
static pid_t start(const char *program, char *const *argv, const int files[3])
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	pid_t pid = -1;
	sigset_t none;
	sigemptyset(&none);
	if (posix_spawn_file_actions_init(&actions))
		return -1;
	if (posix_spawnattr_init(&attr)) {
		posix_spawn_file_actions_destroy(&actions);
		return -1;
	}
	int bad = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK) ||
	          posix_spawnattr_setsigmask(&attr, &none) || posix_spawn_file_actions_adddup2(&actions, 2, 1);
	if (files[0] >= 0)
		bad |= posix_spawn_file_actions_adddup2(&actions, files[0], 0);
	else
		bad |= posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	if (files[1] >= 0)
		bad |= posix_spawn_file_actions_adddup2(&actions, files[1], HSPMD_OWN_ANSWER_FD);
	if (files[2] >= 0)
		bad |= posix_spawn_file_actions_adddup2(&actions, files[2], HSPMD_OWN_OBJECT_FD);
	/* hspmd may be elsewhere than the plugin was told: then the user's PATH has it. */
	const char *there = access(program, X_OK) ? argv[0] : program;
	if (bad || posix_spawnp(&pid, there, &actions, &attr, argv, environ))
		pid = -1;
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attr);
	return pid;
}

static int grow(struct answer *a)
{
	size_t more = a->capacity ? 2 * a->capacity : 1 << 16;
	char *text = more <= 2 * ANSWER_MAX ? realloc(a->text, more) : NULL;
	if (!text)
		return -1;
	a->text = text;
	a->capacity = more;
	return 0;
}

/* Returns true if the last line is whole and is the answer itself. */
static bool is_complete(const struct answer *a)
{
	size_t line = a->size - 1;
	if (!a->size || a->text[line] != '\n')
		return false;
	while (line && a->text[line - 1] != '\n')
		line--;
	return !strncmp(a->text + line, HSPMD_OWN_ANSWER, strlen(HSPMD_OWN_ANSWER));
}

/* Read until the process has answered or closed its end, or time is up. */
static void receive(struct answer *a, int fd, double until)
{
	while (!(a->complete = is_complete(a))) {
		double left = until - hspmd_now();
		struct pollfd p = { .fd = fd, .events = POLLIN };
		if (left <= 0 || (a->size + 1 >= a->capacity && grow(a))) {
			a->late = left <= 0;
			return;
		}
		int ready = poll(&p, 1, left > 1 ? 1000 : (int)(1000 * left) + 1);
		if (ready < 0 && errno != EINTR)
			return;
		if (ready <= 0)
			continue;
		ssize_t n = read(fd, a->text + a->size, a->capacity - a->size - 1);
		if (n == 0 || (n < 0 && errno != EINTR))
			return;
		a->size += n > 0 ? (size_t)n : 0;
		a->text[a->size] = '\0';
	}
}

/* Wait for a process that has closed its end: it may still not end. One that has answered is of no more use. Whatever it has started ends
 * with it. */
static void reap(struct answer *a, pid_t pid, double until)
{
	bool ended = false;
	while (!a->late && !a->complete && !ended) {
		pid_t which = waitpid(pid, &a->status, WNOHANG);
		ended = which == pid || (which < 0 && errno != EINTR);
		a->late = !ended && hspmd_now() > until;
		if (!ended)
			poll(NULL, 0, 2);
	}
	kill(-pid, SIGKILL);
	while (!ended && waitpid(pid, &a->status, 0) < 0 && errno == EINTR)
		;
}

static double patience(void)
{
	const char *text = getenv("HSPMD_MODEL_TIMEOUT_S");
	double s = text ? strtod(text, NULL) : 0;
	return s > 0 ? s : ANSWER_S;
}

/* ---- its answer */

/* The last line that begins with `head`; NULL: none. */
static const char *last_line(const struct answer *a, const char *head)
{
	const char *found = NULL;
	for (const char *at = a->text; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
		if (!strncmp(at, head, strlen(head)))
			found = at + strlen(head);
	return found;
}

static json_t *understand(const struct hspmd_own *o, const struct answer *a, struct hspmd_error *err)
{
	const char *at = last_line(a, HSPMD_OWN_AT), *text = last_line(a, HSPMD_OWN_ANSWER);
	char doing[64] = "before it was loaded";
	if (at)
		snprintf(doing, sizeof doing, "in %.*s", (int)strcspn(at, "\n"), at);
	json_t *answer = text ? json_loads(text, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
	const char *error = json_string_value(json_object_get(answer, "error"));
	if (answer && !error)
		return answer;
	if (error)
		hspmd_fail(err, "%s: %s", o->path, error);
	else if (a->late)
		hspmd_fail(err, "%s: no answer within %g s, %s (HSPMD_MODEL_TIMEOUT_S)", o->path, patience(), doing);
	else if (WIFSIGNALED(a->status))
		hspmd_fail(err, "%s: killed by signal %d (%s) %s", o->path, WTERMSIG(a->status), strsignal(WTERMSIG(a->status)), doing);
	else if (text)
		hspmd_fail(err, "%s: an answer that cannot be understood, %s", o->path, doing);
	else
		hspmd_fail(err, "%s: ended its process with status %d, %s", o->path, WEXITSTATUS(a->status), doing);
	json_decref(answer);
	return NULL;
}

/* The request with what every request has. */
static json_t *complete(const struct hspmd_own *o, const json_t *request)
{
	const char *slash = strrchr(o->path, '/');
	json_t *all = json_pack("{s:s, s:s}", "name", slash ? slash + 1 : o->path, "config", o->config);
	return hspmd_json_unless_failed(!all || json_object_update(all, (json_t *)request), all);
}

json_t *hspmd_own_ask(const struct hspmd_own *o, const json_t *request, struct hspmd_error *err)
{
	const char *program = program_of(o->program);
	char *const argv[] = { (char *)"hspmd", (char *)"model-answer", NULL };
	json_t *all = complete(o, request);
	char *text = all ? json_dumps(all, JSON_COMPACT) : NULL;
	int ends[2] = { -1, -1 }, files[3] = { -1, -1, -1 };
	struct answer a = { 0 };
	pid_t pid = -1;
	double until = hspmd_now() + patience();
	if (text && !grow(&a) && !pipe2(ends, O_CLOEXEC)) {
		a.text[0] = '\0';
		files[0] = hspmd_own_memory_file("request", text, strlen(text));
		files[1] = fcntl(ends[1], F_DUPFD_CLOEXEC, FD_FREE);
		files[2] = hspmd_own_memory_file("object", o->object, o->size);
	}
	bool prepared = files[0] >= 0 && files[1] >= 0 && files[2] >= 0;
	if (!prepared)
		hspmd_fail_errno(err, "%s: preparing a process to load it", o->path);
	else if ((pid = start(program, argv, files)) < 0)
		hspmd_fail(err, "%s: cannot start %s, which would load it, and there is no hspmd in PATH", o->path, program);
	for (int i = 0; i < 3; i++)
		if (files[i] >= 0)
			close(files[i]);
	if (ends[1] >= 0)
		close(ends[1]);
	json_t *answer = NULL;
	if (pid > 0) {
		receive(&a, ends[0], until);
		reap(&a, pid, until);
		answer = understand(o, &a, err);
	}
	if (ends[0] >= 0)
		close(ends[0]);
	free(a.text);
	free(text);
	json_decref(all);
	return answer;
}

int hspmd_own_run(const char *program, char *const *argv, struct hspmd_error *err)
{
	struct answer a = { 0 };
	pid_t pid = start(program_of(program), argv, (int[]){ -1, -1, -1 });
	if (pid < 0)
		return hspmd_fail(err, "cannot start %s", program_of(program));
	reap(&a, pid, hspmd_now() + 4 * patience());
	if (!a.late && WIFEXITED(a.status) && !WEXITSTATUS(a.status))
		return 0;
	return hspmd_fail(err, a.late ? "takes too long" : "failed: see the messages above");
}
