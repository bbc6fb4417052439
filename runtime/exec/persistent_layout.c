/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a program's memory in the memory that outlives its process (runtime/state/persistent.h). */
#include <xxhash.h>

#include "runtime/exec/execute.h"

size_t hspmd_executor_persistent_arena(const struct hspmd_program *p)
{
	return p->sums_in_arena || p->shared_bytes ? hspmd_program_arena_offset(p) : 0;
}

size_t hspmd_executor_persistent_bytes(const struct hspmd_program *p)
{
	if (p->shared_bytes)
		return p->shared_bytes;
	return hspmd_program_arena_offset(p) + (p->sums_in_arena ? p->arena_bytes + HSPMD_PROGRAM_ALIGN : 0);
}

uint64_t hspmd_executor_persistent_layout(const struct hspmd_program *p)
{
	uint64_t hash = hspmd_executor_persistent_bytes(p) * 31 + hspmd_executor_persistent_arena(p);
	for (int i = 0; i < p->state_count; i++) {
		const struct hspmd_program_state *s = &p->states[i];
		const int slot[] = { s->param, s->moments[0], s->moments[1], s->grad };
		for (size_t k = 0; s->param >= 0 && k < sizeof slot / sizeof *slot; k++) {
			const struct hspmd_slot *at = slot[k] < 0 ? NULL : &p->slots[slot[k]];
			const uint64_t words[] = { hash,
				                   (uint64_t)i,
				                   at ? at->memory : 0,
				                   at ? at->offset : 0,
				                   at ? p->slot_types[at->slot_type].bytes : 0,
				                   at ? (uint64_t)p->slot_types[at->slot_type].dtype : 0 };
			hash = XXH3_64bits(words, sizeof words);
		}
	}
	return hash;
}
