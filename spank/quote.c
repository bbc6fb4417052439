/* SPDX-License-Identifier: Apache-2.0 */
/* A quote from hspmdctld at submission, through the program `hspmd cluster`: the plugin, which is loaded into every sbatch, must stay small
 * and must not block for long. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/log.h"
#include "spank/plugin.h"

#define ASK_S "2"    /* timeout of each step of the call */
#define MOST_MS 5000 /* timeout of the whole call */
#define ANSWER_MAX 4096

extern char **environ;

static pid_t spawn(const char *program, char *const *argv, int *from)
{
	int ends[2];
	pid_t pid = -1;
	posix_spawn_file_actions_t files;
	if (pipe2(ends, O_CLOEXEC) < 0)
		return -1;
	if (posix_spawn_file_actions_init(&files) == 0) {
		/* Its errors, for example about a daemon that is not running, do not concern the user who submits a job. */
		int rc = posix_spawn_file_actions_adddup2(&files, ends[1], 1) ||
		         posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0) ||
		         posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0) ||
		         posix_spawnp(&pid, program, &files, NULL, argv, environ);
		if (rc)
			pid = -1;
		posix_spawn_file_actions_destroy(&files);
	}
	close(ends[1]);
	if (pid < 0)
		close(ends[0]);
	*from = ends[0];
	return pid;
}

/* Reads its output until it ends or time is up. */
static size_t read_output(int fd, char *text, size_t size)
{
	size_t n = 0;
	for (int left = MOST_MS; n < size && left > 0; left -= 50) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		if (poll(&p, 1, 50) <= 0)
			continue;
		ssize_t got = read(fd, text + n, size - n);
		if (got == 0 || (got < 0 && errno != EINTR))
			break;
		n += got > 0 ? (size_t)got : 0;
		left += 50;
	}
	return n;
}

size_t hspmd_spank_output_of(const char *program, const char *const *argv, char *text, size_t size)
{
	int from, status;
	pid_t pid = spawn(program, (char *const *)argv, &from);
	*text = '\0';
	if (pid < 0)
		return 0;
	size_t n = read_output(from, text, size - 1);
	text[n] = '\0';
	close(from);
	kill(pid, SIGKILL); /* its output is complete, or it is too slow */
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return n;
}

static bool parse_quote(const char *text, size_t n, struct hspmd_spank_quote *quote)
{
	json_t *v = json_loadb(text, n, 0, NULL), *jobs = json_object_get(v, "jobs"), *price = json_object_get(v, "price_per_hour");
	bool good = json_is_integer(jobs) && json_is_number(price) && json_integer_value(jobs) >= 0 && json_integer_value(jobs) < 1 << 30;
	if (good)
		*quote = (struct hspmd_spank_quote){ (int)json_integer_value(jobs), json_number_value(price) };
	json_decref(v);
	return good;
}

bool hspmd_spank_quote(const struct hspmd_spank_args *args, uid_t owner, int nodes, const char *partition, const char *features,
                       const char *gres, struct hspmd_spank_quote *quote)
{
	char where[300], count[16], text[ANSWER_MAX];
	const char *argv[16] = { "hspmd", "cluster", "--json", "--timeout", ASK_S, "--ctld", where, "--quote", count };
	const char *const more[] = { "--partition", partition, "--constraint", features, "--gres", gres };
	int n = 9;
	if (!args->ctld || (size_t)snprintf(where, sizeof where, "%u@%s", owner, args->ctld) >= sizeof where)
		return false;
	snprintf(count, sizeof count, "%d", nodes);
	for (int i = 0; i < 6; i += 2)
		if (more[i + 1]) {
			argv[n++] = more[i];
			argv[n++] = more[i + 1];
		}
	return parse_quote(text, hspmd_spank_output_of(args->hspmd, argv, text, sizeof text), quote);
}
