/* SPDX-License-Identifier: Apache-2.0 */
/* A change of a large job's plan (problem.h), and one worker's moves of state in it. */
#ifndef HSPMD_TESTS_BENCH_SCALE_CHANGE_H
#define HSPMD_TESTS_BENCH_SCALE_CHANGE_H

#include "runtime/generation/state_moves.h"
#include "runtime/program/program.h"
#include "tests/bench/scale/problem.h"

#define SCALE_STAGE_DEVICES 64 /* of one pipeline of SCALE_ALIKE */

struct scale_change {
	struct scale_problem before; /* pipelines alike */
	struct hspmd_plan *after;
	struct hspmd_graph *graph;
	/* By scale_change_lay_out. */
	struct hspmd_parameter_layouts *old, *now;
	int *rank_of;
	size_t *element_bytes;
	/* The caller's: the state comes from these files (state_moves.h); neither: from the memory of all. */
	const struct hspmd_holding *stored;
	size_t stored_count;
	const struct hspmd_file_side *files;
};

/* leaves: the last pipeline does, else all stay; shapes: of the plan after it. 0, or -1 and err; clear it anyway. */
int scale_change_create(int devices, bool leaves, enum scale_shapes shapes, struct scale_change *c, struct hspmd_error *err);
/* The layouts of both plans, which a worker makes before it plans its moves. */
int scale_change_lay_out(struct scale_change *c, struct hspmd_error *err);
int scale_change_moves(const struct scale_change *c, int self, struct hspmd_planned_move **moves, size_t *count, struct hspmd_error *err);
void scale_change_clear(struct scale_change *c);

#endif
