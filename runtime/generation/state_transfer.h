/* SPDX-License-Identifier: Apache-2.0 */
/* Moves training state to the devices of a new plan: one function of (which member holds what, which needs what) for live switches,
 * recovery and loading. Each slice is moved once, from the nearest copy (doc/design.md, law 5), in buckets of bounded size, between all
 * pairs concurrently. */
#ifndef HSPMD_GENERATION_STATE_TRANSFER_H
#define HSPMD_GENERATION_STATE_TRANSFER_H

#include "runtime/comm/transport.h"
#include "runtime/resharding/resolve.h"
#include "runtime/state/manifest.h"

/* State tensors are numbered HSPMD_STATE_KIND_COUNT * parameter + kind (runtime/state/manifest.h). */
struct hspmd_state_endpoint {
	void *context;
	/* Read a box of a state tensor from this member into a packed host buffer. `own`: this member itself needs the box. */
	int (*get)(void *context, int tensor, const struct hspmd_box *box, bool own, void *host, struct hspmd_error *err);
	/* Write a box from a packed host buffer into this member's state. */
	int (*put)(void *context, int tensor, const struct hspmd_box *box, const void *host, struct hspmd_error *err);
	/* The two functions below may be NULL. They avoid a copy through a buffer. */
	/* Copy a box from where this member holds it to where it needs it. 1; 0: use get and put; -1 and err. */
	int (*copy)(void *context, int tensor, const struct hspmd_box *box, struct hspmd_error *err);
	/* Host memory in which the box is packed, to be sent from or received into; NULL: none. It must stay allocated until the
	 * transport is closed. */
	void *(*place)(void *context, int tensor, const struct hspmd_box *box, bool sending);
};

struct hspmd_state_transfer_report {
	int64_t bytes_local, bytes_received, bytes_sent;
};

/* Execute this member's part of a plan that all members computed identically (hspmd_plan_moves with transport ranks as devices).
 * transport NULL: there is one member. element_bytes: per tensor. Collective: every member must call it. */
int hspmd_state_transfer_run(struct hspmd_transport *transport, int self, const struct hspmd_planned_move *moves, size_t count,
                             const size_t *element_bytes, const struct hspmd_state_endpoint *end,
                             struct hspmd_state_transfer_report *report, struct hspmd_error *err);

#endif
