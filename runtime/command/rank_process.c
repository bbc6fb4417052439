/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/command/rank_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void close_one(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

int hspmd_rank_process_open(struct hspmd_rank_process *p, int type, struct hspmd_error *err)
{
	int ends[2];
	*p = (struct hspmd_rank_process){ .output = -1, .steps = -1, .steps_peer = -1 };
	if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends))
		return hspmd_fail_errno(err, "socketpair");
	p->steps = ends[0];
	p->steps_peer = ends[1];
	if (fcntl(p->steps, F_SETFL, O_NONBLOCK))
		return hspmd_fail_errno(err, "socketpair");
	return 0;
}

/* In the child. Returns what failed. */
static const char *become(const struct hspmd_rank_process *p, int output, pid_t parent, char *const *argv, char *const *environment,
                          const char *folder, int input)
{
	sigset_t none;
	sigemptyset(&none);
	for (int s = 1; s < NSIG; s++)
		signal(s, SIG_DFL);
	sigprocmask(SIG_SETMASK, &none, NULL);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	setsid();
	int from = input >= 0 ? input : open("/dev/null", O_RDONLY);
	if (from < 0 || dup2(from, 0) < 0 || dup2(output, 1) < 0 || dup2(output, 2) < 0 || fcntl(p->steps_peer, F_SETFD, 0) < 0)
		return "its standard input and output";
	if (from > 2)
		close(from);
	if (folder && chdir(folder))
		return folder;
	execvpe(argv[0], argv, environment);
	return argv[0];
}

struct failure {
	int number;
	char what[256];
};

void hspmd_rank_process_started(struct hspmd_rank_process *p, pid_t pid, const int output[2])
{
	p->pid = pid;
	p->output = output[0];
	fcntl(p->output, F_SETFL, O_NONBLOCK);
	close(output[1]);
	close_one(&p->steps_peer);
}

int hspmd_rank_process_start(struct hspmd_rank_process *p, char *const *argv, char *const *environment, const char *folder, int input,
                             struct hspmd_error *err)
{
	int output[2] = { -1, -1 }, failure[2] = { -1, -1 }, status;
	struct failure f = { 0 };
	pid_t parent = getpid();
	if (pipe2(output, O_CLOEXEC) || pipe2(failure, O_CLOEXEC) || (p->pid = fork()) < 0) {
		hspmd_fail_errno(err, "starting %s", argv[0]);
		p->pid = 0;
		close_one(&output[0]);
		close_one(&output[1]);
		close_one(&failure[0]);
		close_one(&failure[1]);
		hspmd_rank_process_close(p);
		return -1;
	}
	if (!p->pid) {
		const char *what = become(p, output[1], parent, argv, environment, folder, input);
		f.number = errno;
		strncpy(f.what, what, sizeof f.what - 1);
		(void)!write(failure[1], &f, sizeof f);
		_exit(127);
	}
	hspmd_rank_process_started(p, p->pid, output);
	close_one(&failure[1]);
	ssize_t n;
	while ((n = read(failure[0], &f, sizeof f)) < 0 && errno == EINTR)
		;
	close_one(&failure[0]);
	if (n != (ssize_t)sizeof f)
		return 0;
	waitpid(p->pid, &status, 0);
	p->pid = 0;
	hspmd_rank_process_close(p);
	errno = f.number;
	return hspmd_fail_errno(err, "cannot start %s: %s", argv[0], f.what);
}

void hspmd_rank_process_close(struct hspmd_rank_process *p)
{
	close_one(&p->output);
	close_one(&p->steps);
	close_one(&p->steps_peer);
}
