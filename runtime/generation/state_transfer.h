/* SPDX-License-Identifier: Apache-2.0 */
/* Moving training state to where a new plan wants it: one function of (who holds what, who needs what) for live switches, recovery and
 * loading. Each slice is moved once, from the nearest copy (DESIGN law 5), in buckets of bounded size, all pairs at the same time. */
#ifndef HSPMD_GENERATION_STATE_TRANSFER_H
#define HSPMD_GENERATION_STATE_TRANSFER_H

#include "runtime/comm/transport.h"
#include "runtime/resharding/resolve.h"
#include "runtime/state/manifest.h"

/* State tensors are numbered HSPMD_STATE_KIND_COUNT * parameter + kind (runtime/state/manifest.h). */
struct hspmd_state_endpoint {
	void *context;
	/* Write the box of a state tensor that this place holds into a packed host buffer. `own`: it is for this member itself. */
	int (*get)(void *context, int tensor, const struct hspmd_box *box, bool own, void *host, struct hspmd_error *err);
	/* Take the box from a packed host buffer. */
	int (*put)(void *context, int tensor, const struct hspmd_box *box, const void *host, struct hspmd_error *err);
	/* Both may be NULL, and spare what they answer for its way through a buffer. */
	/* From where this member holds it to where it is to be. 1; 0: it must be got and put; -1. */
	int (*copy)(void *context, int tensor, const struct hspmd_box *box, struct hspmd_error *err);
	/* Host memory in which the box lies packed, to be sent from or received into; NULL: there is none. It stays until the transport is
	 * closed. */
	void *(*place)(void *context, int tensor, const struct hspmd_box *box, bool sending);
};

struct hspmd_state_transfer_report {
	int64_t bytes_local, bytes_received, bytes_sent;
};

/* Carry out this member's part of a plan that all members made alike (hspmd_plan_moves with transport ranks as devices). transport NULL:
 * one member. element_bytes per tensor. Collective in the sense that every member must call it. */
int hspmd_state_transfer_run(struct hspmd_transport *transport, int self, const struct hspmd_planned_move *moves, size_t count,
                             const size_t *element_bytes, const struct hspmd_state_endpoint *end,
                             struct hspmd_state_transfer_report *report, struct hspmd_error *err);

#endif
