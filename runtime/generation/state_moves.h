/* SPDX-License-Identifier: Apache-2.0 */
/* Which slices of the state one member sends and receives when a plan changes: a pure function of both layouts and of who is there.
 *
 * Every member plans for itself, and only for parameters that it holds or needs. Members agree nevertheless, because the senders of a
 * parameter depend on nothing but the parameters that have the same holders and the same receivers: all of these know all of them. */
#ifndef HSPMD_GENERATION_STATE_MOVES_H
#define HSPMD_GENERATION_STATE_MOVES_H

#include "runtime/program/parameter_layout.h"
#include "runtime/resharding/resolve.h"

/* The state under one plan. */
struct hspmd_state_side {
	const struct hspmd_parameter_layouts *layouts; /* the same parameters on all sides */
	const int *rank_of;                            /* per device of the plan's cluster; -1: not a member */
	int device_count;
};

/* The files of a checkpoint whose manifest is a root: one per device of the plan under which they were written, of all kinds of state. */
struct hspmd_file_side {
	const struct hspmd_parameter_layouts *layouts; /* of that plan; the same parameters on all sides */
	int device_count;                              /* of its cluster */
	const int *first_reader, *readers;             /* readers[first_reader[d] ... first_reader[d + 1]) can read device d's file */
	const bool *everybody;                         /* by device: every member can read the file, and does so for itself alone */
	/* Whether a device's file has the device's part of a parameter. */
	bool (*has)(const void *context, int device, int parameter);
	const void *context;
};

struct hspmd_state_moves {
	int self;                            /* own rank */
	int kinds;                           /* the first ones of enum hspmd_state_kind: what the optimizer has */
	const size_t *element_bytes;         /* per state tensor (state_transfer.h) */
	const struct hspmd_state_side *now;  /* what every member needs */
	const struct hspmd_state_side *live; /* what members hold in memory, perhaps under several plans */
	int live_count;
	const struct hspmd_holding *stored; /* what members can read from files, of state tensors */
	size_t stored_count;
	const struct hspmd_file_side *files; /* what else they can read; NULL: nothing */
	const bool *absent;                  /* by parameter: no state of it is needed; NULL: of none */
	const struct hspmd_link_cost *cost; /* between ranks */
};

/* *moves: those that self sends or receives, of state tensors, ordered by (from, to, tensor); malloc'd. Each slice that a member lacks
 * moves once, from a holder with one of the fastest links to it; among parameters with the same holders and receivers the busiest sender
 * is within 2 % of the least possible. -1 and err: memory, or a slice that nobody holds (names it). */
int hspmd_state_moves_plan(const struct hspmd_state_moves *m, struct hspmd_planned_move **moves, size_t *count, struct hspmd_error *err);

#endif
