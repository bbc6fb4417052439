/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/slurm/libslurm_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/slurm_errno.h>

#include "controller/slurm/command.h"
#include "controller/slurm/job.h"

#define TRY_S 90.0 /* in a configless cluster libslurm asks slurmctld, several times */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool initialised;

static void end_at_once(void)
{
	_exit(EXIT_FAILURE);
}

/* In a child, whose standard error is `to`. */
static void try(int to)
{
	/* The last handler that is registered is called first: neither those of the parent are called, nor are its buffers written. */
	if (atexit(end_at_once) || dup2(to, STDERR_FILENO) < 0)
		_exit(EXIT_FAILURE);
	slurm_init(NULL);
	_exit(EXIT_SUCCESS);
}

/* What follows `kind` in the first line that has it; NULL: none. Cuts text. */
static const char *said(char *text, const char *kind)
{
	char *words = strstr(text, kind);
	if (!words)
		return NULL;
	words += strlen(kind);
	char *rest = words + strcspn(words, "\n");
	*rest = '\0';
	return words;
}

/* slurm_init() ends the process if it finds no configuration, one with a mistake, or one that names a plugin that cannot be loaded, and the
 * places where it looks differ from one release and site to the next. So a child calls it first. */
static int try_in_child(struct hspmd_error *err)
{
	const char *file = getenv("SLURM_CONF");
	char text[4096];
	int ends[2];
	if (file && access(file, R_OK)) /* for which libslurm would wait a minute */
		return hspmd_fail_errno(err, "Slurm's configuration, which SLURM_CONF names: %s", file);
	if (pipe2(ends, O_CLOEXEC))
		return hspmd_fail_errno(err, "initialising libslurm: pipe");
	pid_t child = fork();
	if (!child)
		try(ends[1]);
	close(ends[1]);
	if (child < 0) {
		close(ends[0]);
		return hspmd_fail_errno(err, "initialising libslurm: fork");
	}
	if (!hspmd_slurm_await_output(child, ends[0], SIGKILL, TRY_S, text, sizeof text))
		return 0;
	/* It ends with the consequence, and begins with the cause. */
	const char *end = said(text, "fatal: "), *first = said(text, "error: ");
	return hspmd_fail(
	        err,
	        "libslurm cannot use Slurm's configuration%s%s: %s%s%s%s; hspmd needs a machine where scontrol works, and SLURM_CONF "
	        "if slurm.conf is not in its usual place",
	        file ? " in " : "", file ? file : "", end ? end : "it does not say why", first ? " (" : "", first ? first : "",
	        first ? ")" : "");
}

int hspmd_slurm_init(struct hspmd_error *err)
{
	pthread_mutex_lock(&lock);
	int rc = initialised ? 0 : try_in_child(err);
	if (!rc && !initialised)
		slurm_init(NULL);
	initialised = !rc;
	pthread_mutex_unlock(&lock);
	return rc;
}

slurm_conf_t *hspmd_slurm_load_conf(struct hspmd_error *err)
{
	slurm_conf_t *conf = NULL;
	if (hspmd_slurm_init(err))
		return NULL;
	if (slurm_load_ctl_conf(0, &conf)) {
		hspmd_fail(err, "slurmctld's configuration: %s", slurm_strerror(errno));
		return NULL;
	}
	return conf;
}

/* Returns 1 if `word` is in a comma-separated list; a value after '=' is ignored. */
static int listed(const char *list, const char *word)
{
	size_t length = strlen(word);
	while (list && *list) {
		size_t n = strcspn(list, ",");
		if (n >= length && !strncmp(list, word, length) && (n == length || list[length] == '='))
			return 1;
		list += n + (list[n] == ',');
	}
	return 0;
}

int hspmd_slurm_scheduler_has(const char *word, struct hspmd_error *err)
{
	slurm_conf_t *conf = hspmd_slurm_load_conf(err);
	if (!conf)
		return -1;
	int has = listed(conf->sched_params, word);
	slurm_free_ctl_conf(conf);
	return has;
}

double hspmd_slurm_poll_interval(void)
{
	struct hspmd_error ignored;
	slurm_conf_t *conf = hspmd_slurm_load_conf(&ignored);
	/* A limited user has a budget of about 30 calls, refilled at 2 per second. */
	double seconds = conf && listed(conf->slurmctld_params, "rl_enable") ? 3 * HSPMD_SLURM_POLL_S : HSPMD_SLURM_POLL_S;
	if (conf)
		slurm_free_ctl_conf(conf);
	return seconds;
}

char *hspmd_slurm_socket_of(const char *info)
{
	const char *at = info ? strstr(info, "socket=") : NULL;
	return at ? strndup(at + 7, strcspn(at + 7, ",")) : NULL;
}

int hspmd_slurm_munge_socket(char **socket, bool *munge, struct hspmd_error *err)
{
	slurm_conf_t *conf = hspmd_slurm_load_conf(err);
	if (!conf)
		return -1;
	*munge = conf->authtype && !strcmp(conf->authtype, "auth/munge");
	*socket = *munge ? hspmd_slurm_socket_of(conf->authinfo) : NULL;
	bool lost = *munge && conf->authinfo && strstr(conf->authinfo, "socket=") && !*socket;
	slurm_free_ctl_conf(conf);
	return lost ? hspmd_fail_memory(err, "reading slurmctld's configuration") : 0;
}
