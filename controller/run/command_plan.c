/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/run/command_plan.h"

#include <stdlib.h>

#include "common/alloc.h"
#include "common/template.h"

/* `nodes` nodes that have at least `each` devices and use that many; each 0: all devices of the first nodes. */
struct world_choice {
	int nodes, each, world;
};

static int used_of(const struct hspmd_job *job, const struct hspmd_cluster *c, const struct world_choice *x, int node)
{
	int has = c->nodes[node].device_count;
	if (job->command.per_node)
		return has > 0;
	return !x->each ? has : has >= x->each ? x->each : 0;
}

/* Lists the devices in the order of ranks. Returns the number; 0: there are not enough nodes. */
static int list_devices(const struct hspmd_job *job, const struct hspmd_cluster *c, const struct world_choice *x, int *device,
                        int *local_rank)
{
	int count = 0, nodes = 0;
	for (int n = 0; n < c->node_count && nodes < x->nodes; n++) {
		int used = used_of(job, c, x, n);
		nodes += used > 0;
		for (int i = 0; i < used; i++, count++) {
			device[count] = c->nodes[n].first_device + i;
			local_rank[count] = i;
		}
	}
	return nodes == x->nodes ? count : 0;
}

/* Returns true if every argument of every rank can be worked out; else err says for which it cannot. */
static bool divides(const struct hspmd_job *job, const struct world_choice *x, const int *local_rank, struct hspmd_error *err)
{
	for (int rank = 0; rank < x->world; rank++) {
		const struct hspmd_template_values v = {
			.world = x->world, .nodes = x->nodes, .rank = rank, .local_rank = local_rank[rank]
		};
		for (int i = 0; i < job->command.argc; i++)
			if (hspmd_template_expand(job->command.argv[i], &v, NULL, err)) {
				hspmd_error_prefix(err, "a world size of %d", x->world);
				return false;
			}
	}
	return true;
}

/* A larger world, or the same on fewer nodes. */
static bool is_better(const struct world_choice *a, const struct world_choice *b)
{
	return a->world > b->world || (a->world == b->world && a->nodes < b->nodes);
}

static bool choose(const struct hspmd_job *job, const struct hspmd_cluster *c, struct world_choice *best, int *device, int *local_rank,
                   struct hspmd_error *err)
{
	int most = 0;
	for (int n = 0; n < c->node_count; n++)
		most = c->nodes[n].device_count > most ? c->nodes[n].device_count : most;
	*best = (struct world_choice){ 0 };
	for (int nodes = job->elastic.min_nodes; nodes <= c->node_count && nodes <= job->elastic.max_nodes; nodes++)
		for (int each = 0; each <= (job->command.per_node ? 0 : most); each++) {
			struct world_choice x = { .nodes = nodes, .each = each };
			x.world = list_devices(job, c, &x, device, local_rank);
			if (x.world > 0 && is_better(&x, best) && divides(job, &x, local_rank, err))
				*best = x;
		}
	return best->world > 0;
}

static json_t *plan_json(const struct hspmd_cluster *c, const int *device, int world)
{
	json_t *pipelines = json_array();
	char address[256];
	int bad = !pipelines;
	for (int i = 0; i < world; i++) {
		hspmd_cluster_device_address(c, device[i], address, sizeof address);
		bad |= json_array_append_new(pipelines, json_pack("{s:i, s:[{s:[i, i], s:[s]}]}", "micro_batches", 1, "stages", "layers", 0,
		                                                  RUN_COMMAND_LAYERS, "devices", address));
	}
	json_t *plan = json_pack("{s:s, s:i, s:i, s:i, s:s, s:i, s:o}", "format", HSPMD_PLAN_FORMAT, "global_batch", world, "micro_batch",
	                         1, "seq_len", 1, "schedule", "1f1b", "zero_stage", 0, "pipelines", pipelines);
	if (bad) {
		json_decref(plan);
		return NULL;
	}
	return plan;
}

json_t *run_command_plan(const struct hspmd_job *job, const struct hspmd_cluster *c, struct hspmd_error *err)
{
	int *device = hspmd_calloc((size_t)c->device_count, sizeof *device),
	    *local_rank = hspmd_calloc((size_t)c->device_count, sizeof *local_rank);
	struct hspmd_error why = { "" };
	struct world_choice best;
	json_t *plan = NULL;
	if (!device || !local_rank) {
		hspmd_fail_memory(err, "choosing a world size");
	} else if (!choose(job, c, &best, device, local_rank, &why)) {
		hspmd_fail(err, "%d to %d nodes are wanted, %d are there%s%s", job->elastic.min_nodes, job->elastic.max_nodes,
		           c->node_count, why.text[0] ? ", and no world size divides: " : "", why.text);
	} else {
		list_devices(job, c, &best, device, local_rank);
		if (!(plan = plan_json(c, device, best.world)))
			hspmd_fail_memory(err, "choosing a world size");
	}
	free(device);
	free(local_rank);
	return plan;
}

bool run_command_covered(const struct hspmd_plan *plan, const struct hspmd_cluster *cluster, const int *devices, int count)
{
	(void)plan, (void)cluster, (void)devices, (void)count;
	return true;
}
