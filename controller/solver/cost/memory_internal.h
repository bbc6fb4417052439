/* SPDX-License-Identifier: Apache-2.0 */
/* What memory.c and stage_memory.c share. */
#ifndef HSPMD_COST_MEMORY_INTERNAL_H
#define HSPMD_COST_MEMORY_INTERNAL_H

#include "controller/solver/cost/costs.h"

static inline enum hspmd_facts_division hspmd_division_of(const struct hspmd_device_share *device)
{
	return device->share >= 1 ? HSPMD_FACTS_ALONE : device->sequence_parallel ? HSPMD_FACTS_SEQUENCE : HSPMD_FACTS_DIVIDED;
}

static inline const struct hspmd_layer_memory *hspmd_memory_of(const struct hspmd_costs *c, const struct hspmd_layer_info *f,
                                                               enum hspmd_recompute recompute, const struct hspmd_device_share *device)
{
	return &f->memory[device->in_parts][device->context_share < 1][hspmd_division_of(device)][c->kind_of[recompute]];
}

static inline double hspmd_bytes_at(const struct hspmd_facts_amount *amount, double scale, const struct hspmd_device_share *device)
{
	return scale * hspmd_facts_amount_at(amount, device->share, device->context_share);
}

/* Returns true if the layer before this block is not a block of the stage. */
static inline bool hspmd_is_first_block(const struct hspmd_stage *s, int layer)
{
	return layer == s->layers[0] || layer == 1;
}

/* The part of what ZeRO divides that a copy keeps. */
static inline double hspmd_part_of(const struct hspmd_layer_copies *copies)
{
	return copies->part > 0 ? copies->part : 1.0 / copies->pipelines;
}

#endif
