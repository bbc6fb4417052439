/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "runtime/topology/topology_internal.h"

/* The share of a link's rate that copies reach in common benchmarks. */
#define EFFICIENCY 0.8
#define NVLINK_ALPHA_S 5e-6
#define PCIE_ALPHA_S 1e-5
/* If the driver does not report the slot: PCI express 4 with 16 lanes. */
#define PCIE_GBYTES_PER_S 31.5
/* The share of the rate that remains for writes between devices through a host bridge, and between processors. */
#define HOST_SHARE 0.8
#define PROCESSOR_SHARE 0.5

static int links_to(const struct hspmd_gpu *g, const char *pci)
{
	int links = 0;
	for (int l = 0; l < g->nvlinks; l++)
		links += !strcmp(g->nvlink_to[l], pci);
	return links;
}

/* The number of links to switches: a link that does not end at a GPU ends at a switch, which connects all GPUs with such links. */
static int links_to_switches(const struct hspmd_gpu *gpus, int count, int a)
{
	int links = gpus[a].nvlinks;
	for (int i = 0; i < count; i++)
		links -= i == a ? 0 : links_to(&gpus[a], gpus[i].pci);
	return links;
}

static double nvlink_rate(const struct hspmd_gpu *gpus, int count, int a, int b)
{
	int direct = links_to(&gpus[a], gpus[b].pci), x = links_to_switches(gpus, count, a), y = links_to_switches(gpus, count, b);
	double least =
	        gpus[a].nvlink_gbytes_per_s < gpus[b].nvlink_gbytes_per_s ? gpus[a].nvlink_gbytes_per_s : gpus[b].nvlink_gbytes_per_s;
	return least * (direct + (x < y ? x : y));
}

/* The share of the rate that remains, by the path between the slots. */
static double between(hwloc_topology_t hwloc, const struct hspmd_gpu *a, const struct hspmd_gpu *b)
{
	hwloc_obj_t x = hwloc_get_pcidev_by_busidstring(hwloc, a->pci), y = hwloc_get_pcidev_by_busidstring(hwloc, b->pci);
	hwloc_obj_t both = x && y ? hwloc_get_common_ancestor_obj(hwloc, x, y) : NULL;
	if (!both)
		return PROCESSOR_SHARE;
	if (both->type == HWLOC_OBJ_BRIDGE && both->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI)
		return 1;
	hwloc_obj_t package = x;
	while (package && package->type != HWLOC_OBJ_PACKAGE)
		package = package->parent;
	while (both && both->type != HWLOC_OBJ_PACKAGE)
		both = both->parent;
	return package && both == package ? HOST_SHARE : PROCESSOR_SHARE;
}

double hspmd_gpu_host_rate(const struct hspmd_gpu *g)
{
	return EFFICIENCY * g->share * (g->pcie_gbytes_per_s > 0 ? g->pcie_gbytes_per_s : PCIE_GBYTES_PER_S);
}

int hspmd_gpu_distance(hwloc_topology_t hwloc, const struct hspmd_gpu *gpus, int count, int a, int b, double *alpha_s, double *gbytes_per_s)
{
	double nvlink = nvlink_rate(gpus, count, a, b);
	if (a == b)
		return -1;
	if (nvlink > 0) {
		*alpha_s = NVLINK_ALPHA_S;
		*gbytes_per_s = EFFICIENCY * nvlink;
		return 0;
	}
	double x = gpus[a].pcie_gbytes_per_s, y = gpus[b].pcie_gbytes_per_s, slot = x > 0 && (y <= 0 || x < y) ? x : y;
	*alpha_s = PCIE_ALPHA_S;
	*gbytes_per_s = EFFICIENCY * (slot > 0 ? slot : PCIE_GBYTES_PER_S) * between(hwloc, &gpus[a], &gpus[b]);
	return 0;
}
