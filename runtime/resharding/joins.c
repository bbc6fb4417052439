/* SPDX-License-Identifier: Apache-2.0 */
/* Which transfers can travel together. */
#include <string.h>

#include "runtime/resharding/resolve.h"

static bool same_devices(const struct hspmd_layout *a, const struct hspmd_layout *b)
{
	return a->device_count == b->device_count && !memcmp(a->devices, b->devices, (size_t)a->device_count * sizeof *a->devices);
}

static bool same_pairs(const struct hspmd_comm_step *a, const struct hspmd_comm_step *b)
{
	if (a->move_count != b->move_count)
		return false;
	for (int i = 0; i < a->move_count; i++)
		if (a->moves[i].from != b->moves[i].from || a->moves[i].to != b->moves[i].to || !a->moves[i].add != !b->moves[i].add)
			return false;
	return true;
}

static bool same_step(const struct hspmd_comm_step *a, const struct hspmd_comm_step *b)
{
	return a->kind == b->kind && a->input == b->input && a->output == b->output && a->member_count == b->member_count &&
	       !memcmp(a->members, b->members, (size_t)a->member_count * sizeof *a->members) && same_pairs(a, b);
}

bool hspmd_transfers_join(const struct hspmd_transfer *a, const struct hspmd_transfer *b)
{
	if (a->step_count != b->step_count || a->value_count != b->value_count || a->element_bytes != b->element_bytes)
		return false;
	for (int k = 0; k < a->step_count; k++)
		if (!same_step(&a->steps[k], &b->steps[k]) || a->steps[k].kind == HSPMD_COMM_DISPATCH ||
		    a->steps[k].kind == HSPMD_COMM_COMBINE)
			return false;
	return same_devices(&a->layout[0], &b->layout[0]) && same_devices(&a->layout[a->value_count - 1], &b->layout[b->value_count - 1]);
}
