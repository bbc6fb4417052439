/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/slurm/libslurm_internal.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include <slurm/slurm_errno.h>

#include "controller/slurm/job.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void start(void)
{
	slurm_init(NULL);
}

int hspmd_slurm_init(struct hspmd_error *err)
{
	if (pthread_once(&once, start))
		return hspmd_fail(err, "libslurm cannot be initialised");
	return 0;
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
