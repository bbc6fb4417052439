/* SPDX-License-Identifier: Apache-2.0 */
/* Refuses a model that no plan can fit into the memory of the nodes that the job may have: better told now than after days in the queue.
 * The bound is a low one: parameters, their gradients and the optimizer's moments, each once. Jobs that ask for GPUs are not judged:
 * Slurm does not know how much memory a GPU has. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/optimizer/optimizer.h"
#include "runtime/model/build.h"
#include "runtime/model/own.h"
#include "spank/plugin.h"

#define MIB 1048576.0
#define NODES_ASKED_FROM (1024 * MIB) /* any node has this much: Slurm is not asked about a smaller model */
#define KINDS_MAX 1024                /* of nodes, by memory */

double hspmd_spank_bytes_needed(const struct hspmd_model *m, const struct hspmd_job *j)
{
	const struct hspmd_model_build_options how = {
		.batch = 1, .seq_len = j->seq_len, .vocab_parts = 1, .loss_scale = 1, .forward_only = true
	};
	struct hspmd_error ignored;
	double elements = 0, each = hspmd_optimizer_state_bytes(hspmd_optimizer_types[j->optimizer.type]->moments);
	struct hspmd_graph *g = m && !hspmd_model_is_own(m) ? hspmd_model_graph(m, &how, &ignored) : NULL;
	for (size_t i = 0; g && i < g->tensor_count; i++)
		if (g->tensors[i].role == HSPMD_TENSOR_PARAMETER)
			elements += (double)hspmd_shape_elements(&g->tensors[i].shape);
	hspmd_graph_destroy(g);
	return elements * each;
}

double hspmd_spank_memory(const char *text)
{
	static const char units[] = "KMGT";
	char *end;
	double v = text ? strtod(text, &end) : 0;
	if (!text || end == text || !(v > 0))
		return 0;
	const char *unit = *end ? strchr(units, *end & ~0x20) : units + 1;
	for (long i = unit ? unit - units : 1; i >= 0; i--)
		v *= 1024;
	return v;
}

struct kind_of_node {
	double bytes;
	int count;
};

static int larger_first(const void *a, const void *b)
{
	double x = ((const struct kind_of_node *)a)->bytes, y = ((const struct kind_of_node *)b)->bytes;
	return (x < y) - (x > y);
}

double hspmd_spank_bytes_had(const char *sinfo, int most, double limit, int *nodes)
{
	struct kind_of_node *kinds = calloc(KINDS_MAX, sizeof *kinds), k;
	int n = 0;
	double had = 0;
	*nodes = 0;
	for (const char *line = sinfo; kinds && line && n < KINDS_MAX && sscanf(line, "%d %lf", &k.count, &k.bytes) == 2; n++) {
		k.bytes = limit > 0 && limit < k.bytes * MIB ? limit : k.bytes * MIB;
		kinds[n] = k;
		line = strchr(line, '\n');
		line += line != NULL;
	}
	if (kinds)
		qsort(kinds, (size_t)n, sizeof *kinds, larger_first);
	for (int i = 0; i < n && *nodes < most; i++) {
		int take = kinds[i].count < most - *nodes ? kinds[i].count : most - *nodes;
		had += take * kinds[i].bytes;
		*nodes += take;
	}
	free(kinds);
	return had;
}

/* The nodes of the job's partitions, or of all, as lines "COUNT MIB". */
static bool ask_for_nodes(const char *partition, char *text, size_t size)
{
	const char *argv[8] = { "sinfo", "--noheader", "--exact", "--format=%D %m" };
	char named[512];
	if (partition && (size_t)snprintf(named, sizeof named, "--partition=%s", partition) < sizeof named)
		argv[4] = named;
	return hspmd_spank_output_of("sinfo", argv, text, size) > 0;
}

int hspmd_spank_check_fit(const struct hspmd_job *j, const struct hspmd_model *m, int most, const char *partition, struct hspmd_error *err)
{
	double need = hspmd_spank_bytes_needed(m, j), had = 0;
	char *mem = hspmd_spank_slurm_option("mem"), sinfo[8192];
	double limit = hspmd_spank_memory(mem);
	bool by_policy = most < j->elastic.max_nodes;
	int nodes = by_policy ? most : j->elastic.max_nodes;
	free(mem);
	if (need <= 0)
		return 0;
	if (limit > 0 && nodes < INT_MAX)
		had = limit * nodes;
	else if (need > NODES_ASKED_FROM && ask_for_nodes(partition, sinfo, sizeof sinfo))
		had = hspmd_spank_bytes_had(sinfo, nodes, limit, &nodes);
	if (had <= 0 || need <= had)
		return 0;
	char where[600] = "";
	if (partition && limit <= 0)
		snprintf(where, sizeof where, " of partition %s", partition);
	return hspmd_fail(
	        err,
	        "%s: model: its parameters, their gradients and the optimizer's moments need %.4g GB, and %d node%s%s %s %.4g GB%s%s: "
	        "it cannot be trained there",
	        j->file, need / 1e9, nodes, nodes == 1 ? "" : "s", where, nodes == 1 ? "has" : "have", had / 1e9,
	        limit > 0 ? " by --mem" : "", by_policy ? ", and the site's policy allows no more" : "");
}
