/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/command/placement.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

/* The device of a rank; NULL: the plan is none of a command. */
static const char *device_of(const json_t *plan, size_t rank)
{
	const json_t *stage = json_array_get(json_object_get(json_array_get(json_object_get(plan, "pipelines"), rank), "stages"), 0);
	const char *device = json_string_value(json_array_get(json_object_get(stage, "devices"), 0));
	return device && strrchr(device, ':') ? device : NULL;
}

static bool same_node(const char *a, const char *b)
{
	size_t n = (size_t)(strrchr(a, ':') - a);
	return n == (size_t)(strrchr(b, ':') - b) && !memcmp(a, b, n);
}

int hspmd_placement_read(const json_t *plan, const char *device, struct hspmd_placement *p, struct hspmd_error *err)
{
	size_t world = json_array_size(json_object_get(plan, "pipelines"));
	*p = (struct hspmd_placement){ .world = (int)world, .rank = -1, .local_rank = -1, .node_rank = -1 };
	if (!world || !strrchr(device, ':'))
		return hspmd_fail(err, "a plan without ranks");
	if (!(p->local_devices = hspmd_calloc(world, sizeof *p->local_devices)))
		return hspmd_fail_memory(err, "reading the plan");
	for (size_t i = 0; i < world; i++) {
		const char *at = device_of(plan, i);
		if (!at) {
			hspmd_placement_clear(p);
			return hspmd_fail(err, "pipelines[%zu]: no device", i);
		}
		if (!i || !same_node(at, device_of(plan, i - 1))) /* the ranks of a node follow one another */
			p->nodes++;
		if (!strcmp(at, device)) {
			p->rank = (int)i;
			p->local_rank = p->local_world;
		}
		if (same_node(at, device)) {
			p->node_rank = p->nodes - 1;
			p->local_devices[p->local_world++] = atoi(strrchr(at, ':') + 1);
		}
	}
	return 0;
}

void hspmd_placement_clear(struct hspmd_placement *p)
{
	free(p->local_devices);
	p->local_devices = NULL;
}
