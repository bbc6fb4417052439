/* SPDX-License-Identifier: Apache-2.0 */
/* One member's moves of state into a generation (state_moves.h), from what the controller's messages say. They are planned when the
 * generation is prepared, for the holders that are expected, so that the pause between two generations holds no planning; and anew when it
 * starts if the state then comes from elsewhere. */
#ifndef HSPMD_GENERATION_MEMBER_MOVES_H
#define HSPMD_GENERATION_MEMBER_MOVES_H

#include "runtime/generation/stored_state.h"

/* live: the array of that name in `prepare` and `start` (common/wire.h); NULL: none. stored: what members can read from files; NULL:
 * nothing. The caller frees moves->list. -1 and err: memory, a wrong message, or a slice that nobody holds. */
int hspmd_member_moves_plan(const struct hspmd_generation *g, json_t *live, const struct hspmd_stored_state *stored,
                            struct hspmd_member_moves *moves, struct hspmd_error *err);
/* Plan the moves now that `start` will ask for if it has the same `live`. NULL is fine. A failure is logged: they are planned later. */
void hspmd_member_moves_expect(struct hspmd_generation *g, json_t *live);
/* Returns true if the moves were planned for this `live` and nothing stored; *moves is then the caller's. */
bool hspmd_member_moves_take(struct hspmd_generation *g, json_t *live, struct hspmd_member_moves *moves);

/* Bytes per element of a parameter's state; and of all state tensors (state_transfer.h): malloc'd, NULL: out of memory. */
size_t hspmd_generation_parameter_bytes(const struct hspmd_generation *g, int parameter);
size_t *hspmd_generation_element_bytes(const struct hspmd_generation *g);

#endif
