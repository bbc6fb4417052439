/* SPDX-License-Identifier: Apache-2.0 */
/* What of a job needs no libslurm. */
#include <stdlib.h>

#include "common/hostlist.h"
#include "controller/slurm/job.h"

void hspmd_slurm_job_destroy(struct hspmd_slurm_job *j)
{
	if (!j)
		return;
	char *const texts[] = { j->user,    j->partition, j->account,     j->qos,         j->batch_host, j->comment,
		                j->cluster, j->name,      j->constraints, j->reservation, j->gres,       j->array_tasks };
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		free(texts[i]);
	for (int i = 0; i < j->node_count; i++) {
		free(j->node_gpus ? j->node_gpus[i] : NULL);
		free(j->node_gres ? j->node_gres[i] : NULL);
	}
	free(j->node_gpus);
	free(j->node_gres);
	hspmd_hostlist_free(j->nodes, j->node_count);
	free(j);
}

void hspmd_slurm_jobs_free(struct hspmd_slurm_job **jobs, int count)
{
	for (int i = 0; i < count; i++)
		hspmd_slurm_job_destroy(jobs[i]);
	free(jobs);
}
