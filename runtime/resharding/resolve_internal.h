/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of resolution. Internal to runtime/resharding.
 *
 * Devices are renumbered densely while resolving, so that they can index tables. A placement says what devices hold of a value. A hop is
 * the steps that lead from one placement to another; a route is a sequence of hops through intermediate placements. All memory is the
 * arena's.
 */
#ifndef HSPMD_RESHARDING_RESOLVE_INTERNAL_H
#define HSPMD_RESHARDING_RESOLVE_INTERNAL_H

#include "common/arena.h"
#include "runtime/resharding/regions.h"
#include "runtime/resharding/resolve.h"

/* What dies before the answer: one node's placements; the regions of one hop; a hop's best variant so far, and the next one. */
enum { SCRATCH_NODE, SCRATCH_REGIONS, SCRATCH_VARIANTS, SCRATCH_ARENAS = SCRATCH_VARIANTS + 2 };

struct resolver {
	struct hspmd_arena *arena;
	struct hspmd_arena *scratch[SCRATCH_ARENAS];
	const struct hspmd_shape *shape;
	size_t element_bytes;
	const struct hspmd_link_cost *cost;
	int device_count;
	const int *real; /* the caller's device numbers, ascending */
	int node_count;
	int *node;       /* per device, dense */
	double *network; /* per node: bytes per second, 0: that of a link */
	double *busy;    /* scratch of cost.c: two per device */
	struct hspmd_error *err;
};

struct piece {
	int device; /* dense */
	struct hspmd_box box;
	int addend, addends; /* as in struct hspmd_local_shard */
	int copy, copies;    /* number among the pieces that hold this box of this addend, and how many those are */
};

/* Pieces ordered by (addend, copy, box), at most one per device. The value of an element is the sum over the distinct addends among the
 * pieces that contain it. */
struct placement {
	int count;
	struct piece *piece;
	int *piece_of;                      /* per device, -1: none */
	struct hspmd_expert_range *experts; /* per device, if only the rows of its experts count; NULL: all rows do */
	int64_t expert_count;
	int per_token;
};

struct hop {
	size_t count, capacity;
	struct hspmd_comm_step *step; /* members and moves in dense numbers; input and output are set when hops are joined */
	double *network_busy;         /* seconds for which each node's network is busy: all outgoing, node by node, then all incoming */
	double seconds;               /* until the last device is done */
};

struct move_list {
	size_t count, capacity;
	struct hspmd_move *move;
};

/* ---- placement.c */
struct placement *hspmd_placement_create(struct resolver *r, int capacity); /* without pieces; NULL: memory, as for all of these */
void hspmd_placement_add(struct placement *p, const struct piece *piece);
void hspmd_placement_finish(const struct resolver *r, struct placement *p); /* after the last piece: sort and index */
bool hspmd_placement_equal(const struct placement *a, const struct placement *b);
bool hspmd_placement_is_partial(const struct placement *p);
/* The sums, instead of their addends (of the first copies, as many as every addend has), and all pieces that are full values already. */
struct placement *hspmd_placement_reduced(struct resolver *r, const struct placement *p);
/* Devices (of a node, if by_node) that hold the same box divide it among themselves, so that each has its part of the value. Returns p
 * itself if no two hold the same or if the addends have different boxes. `near`: parts are cut and ordered so that they match what devices
 * hold there. */
const struct placement *hspmd_placement_scattered(struct resolver *r, const struct placement *p, const struct placement *near,
                                                  bool by_node);
/* The sums within each node of a partial placement, each node's scattered over its devices, so that there is one addend per node. Returns p
 * itself if that changes nothing: sums do not cross nodes, or nodes have one device of each sum, or addends have different boxes or
 * copies. */
const struct placement *hspmd_placement_reduced_per_node(struct resolver *r, const struct placement *p, const struct placement *near);
/* The pieces of one node as a placement of its own, whose sums are complete there; addends become numbers within the node. */
struct placement *hspmd_placement_of_node(struct resolver *r, const struct placement *p, int node);

/* Order by the first corner, then by the other one: below 0, 0 or above 0. Of boxes of the same rank. */
int hspmd_box_order(const struct hspmd_box *a, const struct hspmd_box *b);

/* ---- hop.c */
/* The cheapest steps from x to y. y is not partial, and x covers its boxes. bounded: return 1 if the search would be laborious (very many
 * regions, or moves that add), as there are alternatives. 0 done, -1 failed. */
int hspmd_hop_find(struct resolver *r, const struct placement *x, const struct placement *y, bool bounded, struct hop *hop);
/* A new step with space for its members and their boxes (empty). */
struct hspmd_comm_step *hspmd_hop_step(struct resolver *r, struct hop *hop, enum hspmd_comm_kind kind, int members);
int hspmd_hop_move(struct resolver *r, struct move_list *l, int from, int to, const struct hspmd_box *box, int add);

/* The regions of a hop, and the placements that they come from. */
struct hop_view {
	const struct placement *x, *y;
	const struct hspmd_region *region;
	size_t region_count;
};
/* hop_reduce.c: the regions whose value is a sum. collectives: use them if they fit; otherwise the devices that need a region add up
 * themselves, unless that takes more than add_limit moves (then returns 1). */
int hspmd_hop_reduce(struct resolver *r, const struct hop_view *v, bool collectives, size_t add_limit, struct hop *hop,
                     struct move_list *moves);
/* hop_gather.c: the regions that all-gathers can serve; sets their done[]. */
int hspmd_hop_gather(struct resolver *r, const struct hop_view *v, bool *done, struct hop *hop);
/* hop_exchange.c: the regions that are no sums and not done: copies, send-receive, all-to-all; the rest goes to `moves`. */
int hspmd_hop_exchange(struct resolver *r, const struct hop_view *v, const bool *done, bool balanced, struct hop *hop,
                       struct move_list *moves);

/* hop_rows.c: all regions by one step that sends only rows of experts. 0, 1 if there are no such rows or it cannot be, -1: memory. */
int hspmd_hop_rows(struct resolver *r, const struct hop_view *v, struct hop *hop);
/* One step with all moves, if there are any. Sorts them. 0 or -1 (memory). */
int hspmd_hop_batch(struct resolver *r, struct hop *hop, enum hspmd_comm_kind kind, struct move_list *moves);
/* hop_reduce.c: moves by which every device that needs a region whose value is a sum fetches its addends. 0 or -1 (memory). */
int hspmd_hop_fetch_addends(struct resolver *r, const struct hop_view *v, const struct hspmd_region *region, struct move_list *moves);

/* Hull of boxes: grows *hull (of boxes of total volume *volume so far, 0: none) by a disjoint box. The union is a box if the hull's volume
 * is *volume. */
void hspmd_hull_add(struct hspmd_box *hull, int64_t *volume, const struct hspmd_box *box);
bool hspmd_hull_is_box(const struct hspmd_box *hull, int64_t volume);

/* ---- cost.c */
int hspmd_cost_prepare(struct resolver *r); /* call once devices are numbered; -1: memory */
/* Fills step->seconds, adds to network_busy. -1: memory. */
int hspmd_step_cost(struct resolver *r, struct hspmd_comm_step *step, double *network_busy);
/* Time until the last device is done if every device runs its steps in order; at least the time of the busiest network. */
double hspmd_steps_seconds(struct resolver *r, const struct hspmd_comm_step *steps, size_t count, const double *network_busy);
/* Returns true if a is less than b by more than rounding. */
bool hspmd_cheaper(double a, double b);
/* Reorders independent steps so that disjoint ones run at the same time. -1: memory. */
int hspmd_steps_reorder(struct resolver *r, struct hspmd_comm_step *steps, size_t count);

/* ---- message_cost.c */
double hspmd_message_seconds(const struct hspmd_link_cost *cost, int from, int to, double bytes); /* the caller's device numbers */
/* Seconds of a message between two dense device numbers. */
double hspmd_cost_message(const struct resolver *r, int from, int to, int64_t elements);
/* Books the messages of a collective in which every member sends `messages` messages to every other: of elements[] of the sender, or
 * (by_sender false) of the receiver. Fills r->busy, adds to network_busy. 0; 1: too small, or too various, book the pairs; -1: memory. */
int hspmd_book_classes(struct resolver *r, const struct hspmd_comm_step *step, const int64_t *elements, bool by_sender, int messages,
                       double *network_busy);

/* ---- route.c */
#define ROUTE_HOPS 4
struct route {
	int hop_count;
	struct hop hop[ROUTE_HOPS];
	const struct placement *between[ROUTE_HOPS - 1];
	double seconds;
	const char *why;
};
/* The cheapest route from `from` to `to`, which is not partial. 0 or -1. */
int hspmd_route_find(struct resolver *r, const struct placement *from, const struct placement *to, struct route *route);

#endif
