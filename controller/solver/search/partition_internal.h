/* SPDX-License-Identifier: Apache-2.0 */
/* The state in which a partition is searched (partition.c). Private to the search. */
#ifndef HSPMD_SEARCH_PARTITION_INTERNAL_H
#define HSPMD_SEARCH_PARTITION_INTERNAL_H

#include <stdint.h>

#include "controller/solver/search/partition.h"

/* One search of a partition. */
struct hspmd_partition_problem {
	struct hspmd_submesh_tables *t;
	const struct hspmd_stage_sequence *sequence;
	int in_flight[HSPMD_STAGES_MAX];
	int deferred[HSPMD_STAGES_MAX];                       /* per stage: micro-batches with deferred weight gradients */
	bool same_node[HSPMD_STAGES_MAX];                     /* per stage: it is in the same node as the stage before */
	int queue[HSPMD_STAGES_MAX];                          /* per stage: pipelines that send from its node at the same time */
	double state_bytes[HSPMD_SUBMESHES_MAX];              /* bytes of state per weight, by submesh */
	double vector_bytes[HSPMD_SUBMESHES_MAX];             /* and how many more those have that ZeRO does not divide */
	double host_bytes[HSPMD_SUBMESHES_MAX];               /* bytes of the host's memory that must be free per weight */
	double end_bytes;                                     /* additional bytes per weight at the step's end */
	double boundary_s[HSPMD_STAGES_MAX][HSPMD_SIZES_MAX]; /* seconds of transfers into the stage, by activation size */
	double rates_after[HSPMD_STAGES_MAX];                 /* per stage: sum of the rates (submesh.c) of those after it, ... */
	double parts_after[HSPMD_STAGES_MAX]; /* ... and of these times the least that a micro-batch's transfers take them */
	bool hides;                           /* transfers hide behind gradients of weights */
	uint64_t keys[HSPMD_STAGES_MAX];      /* per stage: all but layers that memory depends on, ... */
	unsigned rooms[HSPMD_STAGES_MAX];     /* ... and where in the table it is */
	struct hspmd_partition_slack *slack;
};

static inline double larger(double a, double b)
{
	return a > b ? a : b;
}

static inline double smaller(double a, double b)
{
	return a < b ? a : b;
}

/* partition_memory.c: the way of the least work in which layers [a, b) fit on stage s; -1: none. */
int hspmd_partition_fitting(const struct hspmd_partition_problem *p, int s, int a, int b);
/* Prepare for that, once the problem's sequence, in_flight and deferred are there. */
void hspmd_partition_find_rooms(struct hspmd_partition_problem *p, const struct hspmd_layer_copies *copies);

#endif
