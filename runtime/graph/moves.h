/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of planning moves. Internal to runtime/graph. Senders are dense numbers. */
#ifndef HSPMD_GRAPH_MOVES_H
#define HSPMD_GRAPH_MOVES_H

#include "common/arena.h"
#include "runtime/graph/resolve.h"

/* A slice that a device lacks, and who could send it at the least cost. Fetches with the same senders may share the array. */
struct fetch {
	int to;
	struct hspmd_box box;
	size_t element_bytes;
	int sender_count;
	const int *senders; /* ascending */
};

/* Those of senders[0..count) whose messages take the least time, or up to a tenth longer (measured links are never quite equal), into out; their number. */
int hspmd_fastest(const int *senders, const double *seconds, int count, int *out);

/* Part of a fetch (all of it, or a box cut off it), sent by `from`. */
struct errand {
	size_t fetch;
	int from;
	struct hspmd_box box;
};

struct errands {
	size_t count, capacity;
	struct errand *errand;
};

/* Deal fetches to senders so that the largest sender has as little to send as it can have (to 2 %), cutting as few fetches as that takes.
 * 0 or -1 (memory). */
int hspmd_errands_deal(struct hspmd_arena *arena, const struct fetch *fetches, size_t count, int senders, struct errands *errands);

/* Bytes that any of some senders can send. */
struct balance_class {
	int64_t bytes;
	int sender_count;
	const int *senders; /* ascending */
	int64_t *quota;     /* out, per sender: its part of the bytes */
};
/* Quotas whose largest sum over a sender is the least possible (to the byte, rounded up), which is *most. 0 or -1 (memory). */
int hspmd_balance(struct hspmd_arena *arena, struct balance_class *classes, size_t count, int senders, int64_t *most);

#endif
