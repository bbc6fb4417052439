/* SPDX-License-Identifier: Apache-2.0 */
/* How near the solver's plans are to the fastest possible: solves random small problems and compares with exhaustive search.
 * Arguments: FIRST and LAST problem, most DEVICES, most LAYERS, most LOOKS of the exhaustive search. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/solver/instances.h"

int main(int argc, char **argv)
{
	int first = argc > 1 ? atoi(argv[1]) : 1, last = argc > 2 ? atoi(argv[2]) : 300, devices = argc > 3 ? atoi(argv[3]) : 8;
	int layers = argc > 4 ? atoi(argv[4]) : 10, solved = 0, equal = 0, near = 0, impossible = 0, missed = 0, undecided = 0;
	long looks = argc > 5 ? atol(argv[5]) : 20000000;
	double worst = 0;
	for (int seed = first; seed <= last; seed++) {
		struct hspmd_error err = { "" };
		struct instance in;
		if (instance_new((unsigned)seed, devices, layers, &in, &err)) {
			fprintf(stderr, "quality: %s\n", err.text);
			return 1;
		}
		struct hspmd_solve_request r = { .global_batch = in.global_batch };
		struct hspmd_plan *p = hspmd_solve(in.cluster, NULL, in.profile, &r, NULL, &err);
		double ours = p ? p->predicted.step_s : INFINITY;
		bool all;
		struct hspmd_plan *fastest = fastest_plan(&in, ours, looks, &all, &err);
		undecided += !all;
		double best = fastest ? fastest->predicted.step_s : ours;
		if (isinf(ours)) {
			impossible += isinf(best);
			missed += !isinf(best);
			if (!isinf(best))
				printf("problem %d: no plan found, the fastest takes %.6g s (%s)\n", seed, best, err.text);
		} else {
			double behind = ours / best - 1;
			solved++;
			equal += behind < 1e-6;
			near += behind <= 0.01;
			worst = fmax(worst, behind);
			if (behind >= 1e-6) {
				char *line = hspmd_plan_line(p, in.cluster), *other = hspmd_plan_line(fastest, in.cluster);
				printf("problem %d (%d devices, %d layers, batch %d%s): %.3f%% behind, %.6g for %.6g:\n   %d %s\n   %d %s\n", seed,
				       in.cluster->device_count, in.profile->layer_count, in.global_batch, in.tight ? ", tight" : "", 100 * behind, ours,
				       best, p->micro_batch, line ? line : "", fastest->micro_batch, other ? other : "");
				free(line);
				free(other);
			}
		}
		hspmd_plan_destroy(p);
		hspmd_plan_destroy(fastest);
		instance_free(&in);
	}
	printf("%d problems: %d solved, %d (%.1f%%) with the fastest plan, %d (%.1f%%) within 1%%, worst %.2f%% behind; %d impossible, %d missed, %d undecided\n",
	       last - first + 1, solved, equal, 100.0 * equal / (solved ? solved : 1), near, 100.0 * near / (solved ? solved : 1), 100 * worst,
	       impossible, missed, undecided);
	return 0;
}
