/* SPDX-License-Identifier: Apache-2.0 */
/* Functions on a view that need no libslurm. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/slurm/slurm_view.h"

void hspmd_slurm_view_settings_clear(struct hspmd_slurm_view_settings *s)
{
	free(s->state_folder);
	free(s->user);
	free(s->munge_socket);
	free(s->limited);
	*s = (struct hspmd_slurm_view_settings){ 0 };
}

static void free_jobs(struct hspmd_slurm_view *v)
{
	for (int i = 0; i < v->job_count; i++) {
		struct hspmd_slurm_view_job *j = &v->jobs[i];
		free(j->user);
		free(j->account);
		free(j->partition);
		free(j->qos);
		free(j->features);
		free(j->tres_per_node);
		free(j->tres);
		free(j->batch_host);
		free(j->held);
	}
	free(v->jobs);
}

void hspmd_slurm_view_destroy(struct hspmd_slurm_view *v)
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
	free(v->by_id);
	free(v->by_name);
	hspmd_slurm_qos_clear(&v->qos);
	free(v);
}

static bool same_node(const struct hspmd_slurm_view_node *a, const struct hspmd_slurm_view_node *b)
{
	return a->state == b->state && a->cpus == b->cpus && a->memory_mb == b->memory_mb && !strcmp(a->name, b->name) &&
	       !strcmp(a->features, b->features) && !strcmp(a->gres, b->gres);
}

static bool same_job(const struct hspmd_slurm_view_job *a, const struct hspmd_slurm_view_job *b)
{
	return a->id == b->id && a->state == b->state && a->ready == b->ready && a->nodes == b->nodes && a->held_count == b->held_count &&
	       !strcmp(a->partition, b->partition) &&
	       (!a->held_count || !memcmp(a->held, b->held, sizeof *a->held * (size_t)a->held_count));
}

static bool same_partition(const struct hspmd_slurm_view_partition *a, const struct hspmd_slurm_view_partition *b, int nodes)
{
	return a->tier == b->tier && a->up == b->up && a->preemptable == b->preemptable && !strcmp(a->name, b->name) &&
	       !memcmp(a->nodes, b->nodes, (size_t)nodes);
}

bool hspmd_slurm_view_equal(const struct hspmd_slurm_view *a, const struct hspmd_slurm_view *b)
{
	bool same = a->node_count == b->node_count && a->partition_count == b->partition_count && a->job_count == b->job_count;
	for (int i = 0; same && i < a->node_count; i++)
		same = same_node(&a->nodes[i], &b->nodes[i]);
	for (int i = 0; same && i < a->partition_count; i++)
		same = same_partition(&a->partitions[i], &b->partitions[i], a->node_count);
	for (int i = 0; same && i < a->job_count; i++)
		same = same_job(&a->jobs[i], &b->jobs[i]);
	return same;
}

/* ---- looking up */

static int compare_ids(const void *a, const void *b, void *view)
{
	const struct hspmd_slurm_view *v = view;
	int x = *(const int *)a, y = *(const int *)b;
	uint32_t m = v->jobs[x].id, n = v->jobs[y].id;
	return m != n ? (m < n ? -1 : 1) : x - y;
}

static int compare_names(const void *a, const void *b, void *view)
{
	const struct hspmd_slurm_view *v = view;
	return strcmp(v->nodes[*(const int *)a].name, v->nodes[*(const int *)b].name);
}

static int *in_order(int count, int (*compare)(const void *, const void *, void *), struct hspmd_slurm_view *v)
{
	int *order = hspmd_calloc((size_t)count, sizeof *order);
	for (int i = 0; order && i < count; i++)
		order[i] = i;
	if (order)
		qsort_r(order, (size_t)count, sizeof *order, compare, v);
	return order;
}

void hspmd_slurm_view_index(struct hspmd_slurm_view *v)
{
	free(v->by_id);
	free(v->by_name);
	v->by_id = in_order(v->job_count, compare_ids, v);
	v->by_name = in_order(v->node_count, compare_names, v);
}

const struct hspmd_slurm_view_job *hspmd_slurm_view_find_job(const struct hspmd_slurm_view *v, uint32_t id)
{
	if (!v)
		return NULL;
	int low = 0, high = v->by_id ? v->job_count : 0; /* the first job whose id is not less is in [low, high] */
	while (low < high) {
		int middle = low + (high - low) / 2;
		if (v->jobs[v->by_id[middle]].id < id)
			low = middle + 1;
		else
			high = middle;
	}
	if (v->by_id)
		return low < v->job_count && v->jobs[v->by_id[low]].id == id ? &v->jobs[v->by_id[low]] : NULL;
	for (int i = 0; i < v->job_count; i++)
		if (v->jobs[i].id == id)
			return &v->jobs[i];
	return NULL;
}

int hspmd_slurm_view_find_node(const struct hspmd_slurm_view *v, const char *name)
{
	int low = 0, high = v->by_name ? v->node_count : 0;
	while (low < high) {
		int middle = low + (high - low) / 2, order = strcmp(v->nodes[v->by_name[middle]].name, name);
		if (!order)
			return v->by_name[middle];
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	for (int i = 0; !v->by_name && i < v->node_count; i++)
		if (!strcmp(v->nodes[i].name, name))
			return i;
	return -1;
}
