/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of planning moves. Internal to runtime/graph. Senders are dense numbers. */
#ifndef HSPMD_RESHARDING_MOVE_PLAN_INTERNAL_H
#define HSPMD_RESHARDING_MOVE_PLAN_INTERNAL_H

#include "common/arena.h"
#include "runtime/resharding/resolve.h"

/* ---- sender_sets.c */
struct sender_set {
	int id, count;
	int senders[]; /* ascending */
};
struct sender_sets;
/* cost NULL: as in resolve.h. name[dense] is what the cost knows it by. All memory is the arena's; NULL: there is none, as for the next
 * two. */
struct sender_sets *hspmd_sender_sets_create(struct hspmd_arena *arena, const struct hspmd_link_cost *cost, const int *name);
/* The one set of these senders (ascending). */
const struct sender_set *hspmd_sender_set(struct sender_sets *s, const int *senders, int count);
/* Those of a set whose messages of about so many bytes to `to` take the least time, or up to a tenth longer. */
const struct sender_set *hspmd_sender_set_fastest(struct sender_sets *s, const struct sender_set *all, int to, double bytes);

/* ---- send_assignment.c */
/* A slice that a device lacks, and who could send it at the least cost. */
struct fetch {
	int to;
	struct hspmd_box box;
	size_t element_bytes;
	const struct sender_set *senders;
};

/* Part of a fetch (all of it, or a box cut off it), sent by `from`. */
struct send {
	size_t fetch;
	int from;
	struct hspmd_box box;
};

struct sends {
	size_t count, capacity;
	struct send *send;
};

/* Deal fetches to senders so that the largest sender has as little to send as it can have (to 2 %), cutting as few fetches as that takes.
 * 0 or -1 (memory). */
int hspmd_assign_senders(struct hspmd_arena *arena, const struct fetch *fetches, size_t count, int senders, struct sends *sends);

/* ---- balance.c */
/* Bytes that any of some senders can send. */
struct balance_class {
	int64_t bytes;
	const struct sender_set *senders;
	int64_t *quota; /* out, per sender: its part of the bytes */
};
/* Quotas whose largest sum over a sender is the least possible (to the byte, rounded up), which is *most. 0 or -1 (memory). */
int hspmd_balance(struct hspmd_arena *arena, struct balance_class *classes, size_t count, int senders, int64_t *most);

#endif
