/* SPDX-License-Identifier: Apache-2.0 */
/* The least period of any partition of a sequence: by bisection, with as many layers in each stage as the period allows. */
#include <math.h>

#include "controller/solver/search/partition.h"

#define BOUND_PRECISION 5e-3
#define COMPARED 1e-9 /* relative precision of comparisons with a period */

/* Returns true if stages that need at most so many seconds each, without transfers, reach the last layer. */
static bool reaches_end(const struct hspmd_submesh_tables *t, const struct hspmd_stage_sequence *sequence, double seconds)
{
	int at = 0;
	for (int s = 0; s < sequence->stages && at < t->layers; s++) {
		const double *sums = t->submeshes[sequence->submesh[s]].work[HSPMD_RECOMPUTE_NONE];
		int reached = at, beyond = t->layers + 1;
		while (beyond - reached > 1) {
			int end = (reached + beyond) / 2;
			if (sums[end] - sums[at] <= seconds)
				reached = end;
			else
				beyond = end;
		}
		at = reached;
	}
	return at == t->layers;
}

double hspmd_partition_least_period(const struct hspmd_submesh_tables *t, const struct hspmd_stage_sequence *sequence, double compared)
{
	double low = 0, high = 0, less = compared * (1 - COMPARED), more = compared * (1 + COMPARED);
	for (int s = 0; s < sequence->stages; s++) {
		low += t->submeshes[sequence->submesh[s]].rate;
		high = fmax(high, t->submeshes[sequence->submesh[s]].work[HSPMD_RECOMPUTE_NONE][t->layers]);
	}
	low = 1 / low;
	if (low <= less && reaches_end(t, sequence, less))
		return low;
	while (high - low > BOUND_PRECISION * high && !(low > more)) {
		double middle = (low + high) / 2;
		if (reaches_end(t, sequence, middle))
			high = middle;
		else
			low = middle;
	}
	return low;
}

double hspmd_partition_count(int layers, int stages)
{
	double n = 1;
	for (int i = 1; i < stages; i++)
		n = n * (layers - i) / i;
	return n;
}
