/* SPDX-License-Identifier: Apache-2.0 */
/* Split layers over given stages: least cost of the slowest stage, by dynamic programming (Alpa, OSDI'22, section 5; PipeDream, SOSP'19, section 3.1). */
#include "controller/solver/partition.h"

#include <math.h>
#include <stdlib.h>

#include "common/alloc.h"

int hspmd_partition(int stages, int layers, hspmd_partition_cost cost, void *data, int *ends)
{
	if (stages > layers)
		return 1;
	size_t width = (size_t)layers + 1;
	double *best = hspmd_calloc((size_t)(stages + 1) * width, sizeof *best);
	int *from = hspmd_calloc((size_t)(stages + 1) * width, sizeof *from);
	if (!best || !from) {
		free(best);
		free(from);
		return -1;
	}
	for (size_t i = 0; i < (size_t)(stages + 1) * width; i++)
		best[i] = INFINITY;
	best[0] = 0;
	for (int s = 0; s < stages; s++)
		for (int a = s; a <= layers - (stages - s); a++) {
			double before = best[(size_t)s * width + (size_t)a];
			if (isinf(before))
				continue;
			for (int b = a + 1; b <= layers - (stages - s - 1); b++) {
				double here = fmax(before, cost(data, s, a, b));
				size_t to = (size_t)(s + 1) * width + (size_t)b;
				if (here < best[to]) {
					best[to] = here;
					from[to] = a;
				}
			}
		}
	int rc = isinf(best[(size_t)stages * width + (size_t)layers]) ? 1 : 0;
	if (!rc)
		for (int s = stages, at = layers; s > 0; s--) {
			ends[s - 1] = at;
			at = from[(size_t)s * width + (size_t)at];
		}
	free(best);
	free(from);
	return rc;
}
