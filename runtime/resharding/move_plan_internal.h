/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of move planning. Internal to runtime/resharding. Senders are dense numbers. */
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
/* cost NULL: as in resolve.h. name[dense]: the sender's number in the cost. All memory is the arena's. NULL: memory, as for the next two
 * functions. */
struct sender_sets *hspmd_sender_sets_create(struct hspmd_arena *arena, const struct hspmd_link_cost *cost, const int *name);
/* The unique set of these senders (ascending). */
const struct sender_set *hspmd_sender_set(struct sender_sets *s, const int *senders, int count);
/* The senders of `all` that are within 10 % of the fastest for a message of about `bytes` bytes to `to`. */
const struct sender_set *hspmd_sender_set_fastest(struct sender_sets *s, const struct sender_set *all, int to, double bytes);

/* ---- send_assignment.c */
/* A slice that a device lacks, and the senders that can send it at the least cost. */
struct fetch {
	int to;
	struct hspmd_box box;
	size_t element_bytes;
	const struct sender_set *senders;
};

/* A part of a fetch (all of it, or a box cut from it), sent by `from`. */
struct send {
	size_t fetch;
	int from;
	struct hspmd_box box;
};

struct sends {
	size_t count, capacity;
	struct send *send;
};

/* Assigns fetches to senders so that the load of the busiest sender is within 2 % of the least possible, cutting as few fetches as that
 * needs; whole: cutting none, so that the load may be more. 0 or -1 (memory). */
int hspmd_assign_senders(struct hspmd_arena *arena, const struct fetch *fetches, size_t count, int senders, bool whole,
                         struct sends *sends);

/* ---- balance.c */
/* Bytes that any sender of a set can send. */
struct balance_class {
	int64_t bytes;
	const struct sender_set *senders;
	int64_t *quota; /* out, per sender: its part of the bytes */
};
/* Computes quotas whose largest sum per sender is the least possible (to the byte, rounded up); *most is that sum. 0 or -1 (memory). */
int hspmd_balance(struct hspmd_arena *arena, struct balance_class *classes, size_t count, int senders, int64_t *most);

#endif
