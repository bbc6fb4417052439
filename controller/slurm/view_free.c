/* SPDX-License-Identifier: Apache-2.0 */
/* What needs no Slurm of a view. */
#include <stdlib.h>
#include <string.h>

#include "controller/slurm/view.h"

static void free_jobs(struct hspmd_view *v)
{
	for (int i = 0; i < v->job_count; i++) {
		struct hspmd_view_job *j = &v->jobs[i];
		free(j->user);
		free(j->account);
		free(j->partition);
		free(j->qos);
		free(j->features);
		free(j->tres_per_node);
		free(j->batch_host);
		free(j->comment);
		free(j->held);
	}
	free(v->jobs);
}

void hspmd_view_destroy(struct hspmd_view *v)
{
	if (!v)
		return;
	free_jobs(v);
	for (int i = 0; i < v->node_count; i++) {
		free(v->nodes[i].name);
		free(v->nodes[i].features);
		free(v->nodes[i].gres);
	}
	for (int i = 0; i < v->partition_count; i++) {
		free(v->partitions[i].name);
		free(v->partitions[i].nodes);
	}
	free(v->nodes);
	free(v->partitions);
	free(v);
}

int hspmd_view_find_node(const struct hspmd_view *v, const char *name)
{
	for (int i = 0; i < v->node_count; i++)
		if (!strcmp(v->nodes[i].name, name))
			return i;
	return -1;
}
