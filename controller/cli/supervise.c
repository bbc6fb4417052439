/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/supervise.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"

#define MOST_ENDS 20   /* more ends than this ... */
#define WITHIN_S 600.0 /* ... within this time mean that another restart would not help */

static volatile sig_atomic_t child;

static void no_operation(int number)
{
	(void)number;
}

/* Signals of a terminal reach the child anyway. */
static void pass_on(int number, siginfo_t *info, void *unused)
{
	(void)unused;
	int saved = errno;
	if (child > 0 && info->si_code != SI_KERNEL)
		kill(child, number);
	errno = saved;
}

/* SIGUSR1 asks for a checkpoint. Where nobody can make one (yet), it must not end the process. */
void hspmd_survive_usr1(void)
{
	struct sigaction a = { .sa_handler = no_operation, .sa_flags = SA_RESTART };
	sigaction(SIGUSR1, &a, NULL);
}

static void watch_signals(bool on)
{
	static const int numbers[] = { SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2 };
	struct sigaction a = { .sa_sigaction = pass_on, .sa_flags = SA_SIGINFO };
	if (!on)
		a = (struct sigaction){ .sa_handler = SIG_DFL };
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		sigaction(numbers[i], &a, NULL);
	if (!on)
		hspmd_survive_usr1();
}

/* Returns the child's status. Agents that it leaves behind become this process's children; their ends are collected, too. */
static int wait_for(pid_t pid)
{
	int status;
	for (;;) {
		pid_t ended = waitpid(-1, &status, 0);
		if (ended == pid)
			return status;
		if (ended < 0 && errno != EINTR)
			return 1 << 8;
		if (ended > 0 && WIFSIGNALED(status))
			hspmd_info("process %d, which a controller had started, was ended by signal %d", (int)ended, WTERMSIG(status));
	}
}

int hspmd_supervise(int (*life)(void *context, bool again), void *context)
{
	double first = hspmd_now();
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	for (int ends = 0;;) {
		sigset_t all, before;
		sigfillset(&all);
		sigprocmask(SIG_BLOCK, &all, &before); /* a signal that comes now must find the child */
		pid_t parent = getpid(), pid = fork();
		if (!pid) {
			watch_signals(false);
			prctl(PR_SET_PDEATHSIG, SIGTERM);
			if (getppid() != parent)
				raise(SIGTERM);
			sigprocmask(SIG_SETMASK, &before, NULL);
			exit(life(context, ends > 0));
		}
		child = pid;
		watch_signals(true);
		sigprocmask(SIG_SETMASK, &before, NULL);
		if (pid < 0) {
			hspmd_error_log("cannot start the job controller: %s", strerror(errno));
			return 1;
		}
		int status = wait_for(pid);
		child = 0;
		if (WIFEXITED(status))
			return WEXITSTATUS(status);
		int number = WTERMSIG(status);
		if (number == SIGTERM || number == SIGINT ||
		    number == SIGHUP) { /* its loop takes these: it was not there yet, or no longer */
			hspmd_error_log("ended by signal %d (%s)", number, strsignal(number));
			return 128 + number;
		}
		if (hspmd_now() - first > WITHIN_S) {
			first = hspmd_now();
			ends = 0;
		}
		hspmd_warn("the job controller was ended by signal %d (%s); the workers train on, and it is started anew", number,
		           strsignal(number));
		if (++ends > MOST_ENDS) {
			hspmd_error_log("the job controller was ended %d times within %.0f s: given up", ends, hspmd_now() - first);
			return 1;
		}
	}
}
