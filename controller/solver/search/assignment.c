/* SPDX-License-Identifier: Apache-2.0 */
/* The assignment problem. Exact by the Hungarian method with potentials and shortest augmenting paths (Kuhn 1955; Jonker and Volgenant,
 * Computing 38, 1987), O(n^3). If n is too large, greedy, the most valuable pair first, which gives at least half of the optimum. */
#include "controller/solver/search/assignment.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/alloc.h"

/* The state of the exact method. Indexes start from 1: index 0 stands for "none yet". */
struct exact {
	int n;
	const double *value;
	double *row, *column;  /* potentials */
	double *slack;         /* per column: least reduced cost of reaching it */
	int *owner, *previous; /* per column: its row; the column before it on the shortest path */
	bool *done;
};

/* Find a partner for `row` along the shortest path, and change the pairs along it. */
static void add_row(struct exact *x, int row)
{
	int at = 0;
	x->owner[0] = row;
	for (int j = 0; j <= x->n; j++) {
		x->slack[j] = INFINITY;
		x->done[j] = false;
	}
	do {
		int i = x->owner[at], next = 0;
		double least = INFINITY;
		x->done[at] = true;
		for (int j = 1; j <= x->n; j++) {
			if (x->done[j])
				continue;
			double cost = -x->value[(size_t)(i - 1) * (size_t)x->n + (size_t)(j - 1)] - x->row[i] - x->column[j];
			if (cost < x->slack[j]) {
				x->slack[j] = cost;
				x->previous[j] = at;
			}
			if (x->slack[j] < least) {
				least = x->slack[j];
				next = j;
			}
		}
		for (int j = 0; j <= x->n; j++) {
			if (x->done[j]) {
				x->row[x->owner[j]] += least;
				x->column[j] -= least;
			} else {
				x->slack[j] -= least;
			}
		}
		at = next;
	} while (x->owner[at]);
	for (; at; at = x->previous[at])
		x->owner[at] = x->owner[x->previous[at]];
}

static int pair_exactly(int n, const double *value, int *to)
{
	size_t m = (size_t)n + 1;
	struct exact x = { .n = n, .value = value };
	double *numbers = hspmd_calloc(3 * m, sizeof *numbers);
	int *links = hspmd_calloc(2 * m, sizeof *links);
	x.done = hspmd_calloc(m, sizeof *x.done);
	bool fine = numbers && links && x.done;
	if (fine) {
		x.row = numbers;
		x.column = numbers + m;
		x.slack = numbers + 2 * m;
		x.owner = links;
		x.previous = links + m;
		for (int i = 1; i <= n; i++)
			add_row(&x, i);
		for (int j = 1; j <= n; j++)
			to[x.owner[j] - 1] = j - 1;
	}
	free(numbers);
	free(links);
	free(x.done);
	return fine ? 0 : -1;
}

struct pair {
	double value;
	int i, j;
};

static int by_value(const void *a, const void *b)
{
	const struct pair *x = a, *y = b;
	if (x->value != y->value)
		return x->value > y->value ? -1 : 1;
	return x->i != y->i ? x->i - y->i : x->j - y->j;
}

/* Pairs without value are not sorted: an element without a partner in the end is paired with its own index if that is free, otherwise
 * with the next free one. */
static int pair_greedily(int n, const double *value, int *to)
{
	size_t count = 0, all = (size_t)n * (size_t)n;
	for (size_t k = 0; k < all; k++)
		count += value[k] > 0;
	struct pair *pairs = hspmd_calloc(count, sizeof *pairs);
	bool *taken = hspmd_calloc((size_t)n, sizeof *taken);
	int next = 0;
	if (!pairs || !taken) {
		free(pairs);
		free(taken);
		return -1;
	}
	count = 0;
	for (size_t k = 0; k < all; k++)
		if (value[k] > 0)
			pairs[count++] = (struct pair){ value[k], (int)(k / (size_t)n), (int)(k % (size_t)n) };
	qsort(pairs, count, sizeof *pairs, by_value);
	for (int i = 0; i < n; i++)
		to[i] = -1;
	for (size_t k = 0; k < count; k++)
		if (to[pairs[k].i] < 0 && !taken[pairs[k].j]) {
			to[pairs[k].i] = pairs[k].j;
			taken[pairs[k].j] = true;
		}
	for (int i = 0; i < n; i++)
		if (to[i] < 0 && !taken[i]) {
			to[i] = i;
			taken[i] = true;
		}
	for (int i = 0; i < n; i++) {
		while (to[i] < 0 && taken[next])
			next++;
		if (to[i] < 0) {
			to[i] = next;
			taken[next] = true;
		}
	}
	free(pairs);
	free(taken);
	return 0;
}

int hspmd_assign_best(int n, const double *value, int *to)
{
	return n <= HSPMD_ASSIGN_EXACT_MAX ? pair_exactly(n, value, to) : pair_greedily(n, value, to);
}
