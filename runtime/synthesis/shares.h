/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files that find the segments' shares. */
#ifndef HSPMD_SYNTHESIS_SHARES_H
#define HSPMD_SYNTHESIS_SHARES_H

#include "runtime/synthesis/synthesis_internal.h"

/* What the program takes beside its operators (communication, and sums of gradients), as a plane through one point. */
struct cut {
	double rest;           /* seconds */
	double *at, *gradient; /* [used][class]: steps of all devices of the class; seconds per step, against class 0 */
};

/* Devices of one type and slowdown form a class and get equal shares, but for rounding. Arrays live in the arena unless said otherwise. */
struct balance {
	struct hspmd_synthesis *s;
	struct program *p;
	struct hspmd_arena *arena;
	int n, class_count, used_count;
	long valued; /* groups of operators, by all evaluations */
	int *class_of, *class_size;
	int *used;               /* the segments that the program divides */
	int64_t *at, *tried;     /* [used][device]: steps */
	int64_t *trial;          /* [device] */
	double *want;            /* [device] */
	double *bytes;           /* [device]: of the last evaluation, if memory is limited */
	struct op_record record; /* of the last evaluation; freed by itself */
	/* measured around `at` */
	struct op_record base; /* freed by itself */
	double *base_bytes;
	double rest;
	double *slope;      /* [operator][class][used]: seconds per step; freed by itself */
	double *byte_slope; /* [device][used]: bytes per step */
	bool *fixed;        /* [used][class]: could not be measured and keeps its share */
	int cut_count;
	struct cut *cuts;
	double *best; /* [used][class]: steps per device, of the linear program */
};

static inline double *slope_of(const struct balance *b, size_t op, int class, int u)
{
	return &b->slope[(op * (size_t)b->class_count + (size_t) class) * (size_t)b->used_count + (size_t)u];
}

static inline double *gradient_of(const struct balance *b, int cut, int u, int class)
{
	return &b->cuts[cut].gradient[(size_t)u * (size_t)b->class_count + (size_t) class];
}

/* The steps of all devices of a class. */
static inline double of_class(const struct balance *b, const int64_t *steps, int class)
{
	double sum = 0;
	for (int d = 0; d < b->n; d++)
		sum += b->class_of[d] == class ? (double)steps[d] : 0;
	return sum;
}

/* The linear program (HAP, arXiv 2401.05965, section 5, with rows for memory, which it leaves out):
 *
 *     least  sum of t_o + r   with   f_oc + sum over u of slope_ocu (x_uc - at_uc) <= t_o     for every operator o and class c
 *                                    every cut <= r,   0 <= r
 *                                    bytes_d + sum over u of slope_du (x_uc - at_uc) <= memory_d
 *                                    sum over classes of size_c x_uc = steps_u,   1 <= x_uc
 *
 * Operators whose rows are multiples of each other are one. Fills b->best; *bound: the optimum. 0; 1: it has none; -1: memory. */
int hspmd_synthesis_shares_lp(struct balance *b, double *bound);

#endif
