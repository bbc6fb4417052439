/* SPDX-License-Identifier: Apache-2.0 */
/* The walk over the schedule's entries that makes the micro-batches' part of a program, shared by specialise.c (what runs), walk.c (slots)
 * and layer_parts.c (parameters of which only parts are kept). Private to runtime/program. */
#ifndef HSPMD_PROGRAM_WALK_H
#define HSPMD_PROGRAM_WALK_H

#include "common/schedule.h"
#include "runtime/program/joined.h"
#include "runtime/program/parameter_state.h"

/* A layer uses a parameter of which only parts are kept, of itself or of its gradient. */
struct hspmd_sharded {
	int layer, number; /* of its state */
};

/* A pass of this device comes to a layer. */
struct hspmd_visit {
	int layer, micro_batch;
	bool backward;
};

struct hspmd_walk {
	struct hspmd_program *p;
	const struct hspmd_plan *plan;
	struct hspmd_error *err;
	int *slot_of;      /* [micro-batch][value]: slot that holds the value now; -1: none */
	int *slot_type_of; /* per value; -1: not added yet */
	bool *written;     /* per fixed slot's tensor: it holds a value of this step */
	bool *wanted;      /* per node: run again before its block's backward pass */
	bool *weights;     /* per node: only computes weight gradients, so it runs in a separate entry if the schedule has such entries */
	int *index_of;     /* [rank][backward][chunk][micro-batch]: the index of the schedule entry that runs it */
	unsigned char *in_sets; /* per operator: bit s: the plan's list s of operators to recompute has it; NULL: there are none */
	unsigned char *offloaded; /* the same of its lists of operators to offload */
	bool recomputed;
	bool *in_parts;                /* per tensor: a parameter, or a gradient, of which only parts are kept */
	struct hspmd_sharded *sharded; /* by layer, then by parameter */
	int sharded_count;
	struct hspmd_visit *visits;          /* all of the program, in order, if `sharded` parameters are gathered a layer ahead */
	size_t visit_count, next_visit;      /* next_visit: the first that the walk has not come to */
	int layer;                           /* of which `sharded` parameters are there; -1: none */
	struct hspmd_bound_transfer *joined; /* what a layer begins or ends with, not added yet: room for one of each of `sharded` */
	int joined_count;
};

/* ---- walk.c */
/* Parameters, their gradients and losses outlive the micro-batch; the result of resharding one does not. */
bool hspmd_walk_is_first(const struct hspmd_program *p, int value);
/* Returns true if the value has one slot in all passes. */
bool hspmd_walk_is_fixed(const struct hspmd_walk *w, int value);
/* The value whose memory this one is. */
int hspmd_walk_root(const struct hspmd_spmd *s, int value);
/* A new slot for a value that this device computes or receives next. -1: the device holds no part of it; -2: failed. */
int hspmd_walk_new_slot(struct hspmd_walk *w, int value, int micro_batch);
/* The slot that an input value is read from. -1: nothing on this device; -2: failed. */
int hspmd_walk_old_slot(struct hspmd_walk *w, int value, int micro_batch);
/* Where the slot is noted that holds the value now; there -1: none. */
int *hspmd_walk_slot(const struct hspmd_walk *w, int value, int micro_batch);
/* Returns true if a schedule entry has this node, of whichever stage. */
bool hspmd_walk_has_node(const struct hspmd_walk *w, const struct hspmd_schedule_entry *entry, size_t node);

/* ---- layer_parts.c */
/* Lists the parameters of which only parts are kept, with the layers of this device that use them. 0, or -1 and err. */
int hspmd_walk_find_sharded(struct hspmd_walk *w);
/* Lists the layers that the device's schedule entries come to, unless the plan gathers nothing ahead. 0, or -1 and err. */
int hspmd_walk_find_visits(struct hspmd_walk *w, const struct hspmd_schedule_entry *entries, int count);
/* The pass comes to another layer (-1: to its end). 0, or -1 and err. */
int hspmd_walk_enter_layer(struct hspmd_walk *w, int layer, int micro_batch, bool backward);

#endif
