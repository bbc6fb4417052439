/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/fake_slurm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/slurm_errno.h>

struct fake_slurm fake_slurm;

void fake_slurm_reset(void)
{
	memset(&fake_slurm, 0, sizeof fake_slurm);
}

/* As libslurm: -1 and errno. */
static int fails(int error)
{
	if (!error)
		return SLURM_SUCCESS;
	errno = error;
	return SLURM_ERROR;
}

/* As libslurm: a failure ends the process, with what exit() does. */
void slurm_init(const char *conf)
{
	(void)conf;
	fake_slurm.initialised++;
	if (fake_slurm.init_error)
		fprintf(stderr, "test: error: no such file\ntest: fatal: %s\n", fake_slurm.init_error);
	if (fake_slurm.init_error)
		exit(1);
}

char *slurm_strerror(int number)
{
	static char text[64];
	snprintf(text, sizeof text, "error %d of slurmctld", number);
	return text;
}

int slurm_load_ctl_conf(time_t since, slurm_conf_t **to)
{
	(void)since;
	*to = &fake_slurm.conf;
	return fails(fake_slurm.conf_error);
}

void slurm_free_ctl_conf(slurm_conf_t *conf)
{
	(void)conf;
}

int slurm_load_jobs(time_t since, job_info_msg_t **to, uint16_t flags)
{
	(void)flags;
	fake_slurm.asked++;
	*to = &fake_slurm.jobs;
	return fails(fake_slurm.jobs_error                           ? fake_slurm.jobs_error
	             : since && since >= fake_slurm.jobs.last_update ? SLURM_NO_CHANGE_IN_DATA
	                                                             : 0);
}

int slurm_load_job(job_info_msg_t **to, uint32_t id, uint16_t flags)
{
	static job_info_msg_t one;
	(void)flags;
	one = (job_info_msg_t){ .job_array = fake_slurm.jobs.job_array };
	for (uint32_t i = 0; i < fake_slurm.jobs.record_count && !one.record_count; i++)
		if (fake_slurm.jobs.job_array[i].job_id == id)
			one = (job_info_msg_t){ .job_array = &fake_slurm.jobs.job_array[i], .record_count = 1 };
	*to = &one;
	return fails(fake_slurm.jobs_error);
}

int slurm_load_job_user(job_info_msg_t **to, uint32_t uid, uint16_t flags)
{
	(void)uid, (void)flags;
	*to = &fake_slurm.jobs;
	return fails(fake_slurm.jobs_error);
}

void slurm_free_job_info_msg(job_info_msg_t *message)
{
	(void)message;
}

int slurm_load_node(time_t since, node_info_msg_t **to, uint16_t flags)
{
	(void)flags;
	fake_slurm.asked++;
	*to = &fake_slurm.nodes;
	return fails(fake_slurm.nodes_error                           ? fake_slurm.nodes_error
	             : since && since >= fake_slurm.nodes.last_update ? SLURM_NO_CHANGE_IN_DATA
	                                                              : 0);
}

void slurm_free_node_info_msg(node_info_msg_t *message)
{
	(void)message;
}

int slurm_load_partitions(time_t since, partition_info_msg_t **to, uint16_t flags)
{
	(void)since, (void)flags;
	fake_slurm.asked++;
	*to = &fake_slurm.partitions;
	return fails(fake_slurm.partitions_error);
}

void slurm_free_partition_info_msg(partition_info_msg_t *message)
{
	(void)message;
}

void slurm_init_job_desc_msg(job_desc_msg_t *m)
{
	memset(m, 0, sizeof *m);
	m->min_nodes = NO_VAL;
}

int slurm_update_job(job_desc_msg_t *m)
{
	int n = fake_slurm.update_count++;
	if (n >= (int)(sizeof fake_slurm.updates / sizeof *fake_slurm.updates))
		return fails(ESLURM_DISABLED);
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
	fake_slurm.updates[n].job = m->step_id.job_id;
#else
	fake_slurm.updates[n].job = m->job_id;
#endif
	fake_slurm.updates[n].min_nodes = m->min_nodes;
	fake_slurm.updates[n].user = m->user_id;
	snprintf(fake_slurm.updates[n].nodes, sizeof fake_slurm.updates[n].nodes, "%s", m->req_nodes ? m->req_nodes : "");
	return fails(n < 2 ? fake_slurm.update_error[n] : 0);
}

int slurm_kill_job(uint32_t id, uint16_t number, uint16_t flags)
{
	(void)number, (void)flags;
	if (fake_slurm.killed_count < (int)(sizeof fake_slurm.killed / sizeof *fake_slurm.killed))
		fake_slurm.killed[fake_slurm.killed_count++] = id;
	return fails(fake_slurm.kill_error);
}

int slurm_kill_job2(const char *id, uint16_t number, uint16_t flags, const char *sibling)
{
	(void)number, (void)flags, (void)sibling;
	snprintf(fake_slurm.killed_tasks, sizeof fake_slurm.killed_tasks, "%s", id);
	return fails(fake_slurm.kill_error);
}

int slurm_requeue(uint32_t id, uint32_t flags)
{
	(void)id, (void)flags;
	return fails(fake_slurm.kill_error);
}
