/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/solver/limits.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

struct candidate {
	int node;
	double worth;
};

static double node_speed(const struct hspmd_cluster *c, const struct hspmd_node *n)
{
	double sum = 0;
	for (int d = n->first_device; d < n->first_device + n->device_count; d++) {
		const struct hspmd_device_type *t = &c->types[c->devices[d].type];
		double best = 0;
		for (int p = 0; p < HSPMD_PRECISION_COUNT; p++) {
			double rate = t->tflops[p] > 0 ? t->tflops[p] : t->peak_tflops[p];
			best = rate > best ? rate : best;
		}
		sum += best;
	}
	return sum / (n->slowdown > 0 ? n->slowdown : 1);
}

/* Best first; equal ones in the cluster's order. */
static int by_worth(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;
	if (x->worth != y->worth)
		return x->worth > y->worth ? -1 : 1;
	return x->node - y->node;
}

/* Mark the nodes to keep; how many. */
static int choose(const struct hspmd_cluster *c, const struct hspmd_solve_limits *l, struct candidate *order, bool *keep)
{
	int nodes = 0, devices = 0;
	double price = 0;
	for (int n = 0; n < c->node_count; n++) {
		const struct hspmd_node *node = &c->nodes[n];
		order[n] = (struct candidate){ n, node_speed(c, node) };
		if (l->max_price_per_hour > 0 && node->price_per_hour > 0)
			order[n].worth /= node->price_per_hour;
	}
	qsort(order, (size_t)c->node_count, sizeof *order, by_worth);
	for (int i = 0; i < c->node_count; i++) {
		const struct hspmd_node *node = &c->nodes[order[i].node];
		if ((l->max_nodes > 0 && nodes + 1 > l->max_nodes) || (l->max_devices > 0 && devices + node->device_count > l->max_devices) ||
		    (l->max_price_per_hour > 0 && price + node->price_per_hour > l->max_price_per_hour))
			continue;
		keep[order[i].node] = true;
		nodes++;
		devices += node->device_count;
		price += node->price_per_hour;
	}
	return nodes;
}

/* The parts of the nodes kept, put together again. */
static struct hspmd_cluster *cut(const struct hspmd_cluster *c, const bool *keep, int count, struct hspmd_error *err)
{
	struct hspmd_cluster **parts = hspmd_calloc((size_t)count, sizeof *parts), *whole = NULL;
	int made = 0;
	bool bad = !parts;
	if (bad)
		hspmd_fail_memory(err, "keeping to the limits");
	for (int n = 0; !bad && n < c->node_count; n++)
		if (keep[n] && !(parts[made++] = hspmd_cluster_part(c, n, err)))
			bad = true;
	if (!bad)
		whole = hspmd_cluster_merge((const struct hspmd_cluster *const *)parts, count, 0, err);
	for (int i = 0; parts && i < made; i++)
		hspmd_cluster_destroy(parts[i]);
	free(parts);
	return whole;
}

int hspmd_limits_part(const struct hspmd_cluster *cluster, const struct hspmd_solve_limits *limits, struct hspmd_cluster **part, struct hspmd_error *err)
{
	struct candidate *order = hspmd_calloc((size_t)cluster->node_count, sizeof *order);
	bool *keep = hspmd_calloc((size_t)cluster->node_count, sizeof *keep);
	int status = order && keep ? 0 : hspmd_fail_memory(err, "keeping to the limits");
	int kept = status ? 0 : choose(cluster, limits, order, keep);
	*part = NULL;
	if (!status && !kept)
		status = hspmd_fail(err, "the limits (%d nodes, %d devices, %g an hour; 0: none) leave no node of the %d", limits->max_nodes, limits->max_devices,
				    limits->max_price_per_hour, cluster->node_count);
	if (!status && kept < cluster->node_count && !(*part = cut(cluster, keep, kept, err)))
		status = -1;
	free(order);
	free(keep);
	return status;
}

int hspmd_limits_rebind(struct hspmd_plan *plan, const struct hspmd_cluster *part, const struct hspmd_cluster *cluster, struct hspmd_error *err)
{
	char name[256];
	for (int p = 0; p < plan->pipeline_count; p++)
		for (int s = 0; s < plan->pipelines[p].stage_count; s++)
			for (int d = 0; d < plan->pipelines[p].stages[s].device_count; d++) {
				int *device = &plan->pipelines[p].stages[s].devices[d];
				*device = hspmd_cluster_device(cluster, hspmd_cluster_address(part, *device, name, sizeof name), err);
				if (*device < 0)
					return -1;
			}
	for (int i = 0; i < plan->predicted.device_count; i++) {
		int *device = &plan->predicted.devices[i];
		*device = hspmd_cluster_device(cluster, hspmd_cluster_address(part, *device, name, sizeof name), err);
		if (*device < 0)
			return -1;
	}
	return 0;
}
