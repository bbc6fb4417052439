/* SPDX-License-Identifier: Apache-2.0 */
/* Where a rank is among the others, by the plan. */
#ifndef HSPMD_COMMAND_PLACEMENT_H
#define HSPMD_COMMAND_PLACEMENT_H

#include <jansson.h>
#include <stdbool.h>

#include "common/error.h"

struct hspmd_placement {
	int world, rank;             /* rank -1: this device has none */
	int local_world, local_rank; /* on its node */
	int nodes, node_rank;        /* nodes in the order of their first ranks */
	int *local_devices;          /* numbers of the node's devices, by local rank */
};

/* Reads the plan (hspmd-plan-1, made by controller/run/command_plan.c) for the device "node:index". 0; -1 and err. */
int hspmd_placement_read(const json_t *plan, const char *device, struct hspmd_placement *p, struct hspmd_error *err);
void hspmd_placement_clear(struct hspmd_placement *p);

#endif
