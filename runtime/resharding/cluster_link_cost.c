/* SPDX-License-Identifier: Apache-2.0 */
#include "common/format/cluster.h"
#include "common/format/device_traits.h"
#include "runtime/resharding/resolve.h"

static double seconds(const void *context, int from, int to, double bytes)
{
	const struct hspmd_link *link = hspmd_cluster_find_link(context, from, to, 1, 1);
	return link ? hspmd_link_seconds(link, bytes) : 1e-5 + bytes / 1e9; /* as without a cost: slow, but an answer */
}

static int node(const void *context, int device)
{
	const struct hspmd_cluster *c = context;
	return c->devices[device].node;
}

static double network(const void *context, int number)
{
	const struct hspmd_cluster *c = context;
	return c->nodes[number].network_gbytes_per_s * 1e9;
}

static int device_class(const void *context, int device)
{
	const struct hspmd_cluster *c = context;
	return hspmd_cluster_names_nodes(c) ? -1 : c->devices[device].type;
}

static bool dispatches(const void *context, int device)
{
	const struct hspmd_cluster *c = context;
	return hspmd_device_traits(c->types[c->devices[device].type].kind)->dispatches;
}

static bool rings(const void *context, int device)
{
	const struct hspmd_cluster *c = context;
	return hspmd_device_traits(c->types[c->devices[device].type].kind)->rings;
}

struct hspmd_link_cost hspmd_link_cost_of_cluster(const struct hspmd_cluster *c)
{
	return (struct hspmd_link_cost){ .seconds = seconds,
		                         .context = c,
		                         .node = node,
		                         .network = network,
		                         .device_class = device_class,
		                         .rings = rings,
		                         .dispatches = dispatches };
}
