/* SPDX-License-Identifier: Apache-2.0 */
/* How near the solver's plans are to the fastest possible: solves random small problems and compares with exhaustive search, which
 * decides those that it completes within a limit of partitions tried (looks). Arguments: FIRST and LAST problem, most DEVICES (2 to
 * FASTEST_PLAN_DEVICES), most LAYERS, most LOOKS. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/solver/instances.h"

struct figures {
	int problems, decided, equal, near, behind_undecided, impossible, missed;
	double worst;
};

/* Solve problem `seed` and search for a faster plan; the result goes into *f. Returns 0 or -1. */
static int compare(unsigned seed, int devices, int layers, long looks, struct figures f[2])
{
	struct hspmd_error err = { "" };
	struct instance in;
	if (instance_new(seed, devices, layers, &in, &err)) {
		fprintf(stderr, "quality: %s\n", err.text);
		return -1;
	}
	struct hspmd_solve_request r = { .global_batch = in.global_batch };
	struct hspmd_plan *p = hspmd_solve(in.cluster, NULL, in.profile, &r, NULL, &err);
	double ours = p ? p->predicted.step_s : INFINITY;
	bool all;
	struct hspmd_plan *fastest = fastest_plan(&in, ours, looks, &all, &err);
	double best = fastest ? fastest->predicted.step_s : ours, behind = isinf(ours) ? 0 : ours / best - 1;
	struct figures *own = &f[in.tight];
	own->problems++;
	own->decided += all;
	own->impossible += all && isinf(ours) && isinf(best);
	own->missed += isinf(ours) && !isinf(best);
	own->equal += all && behind < 1e-6;
	own->near += all && behind <= 0.01;
	own->behind_undecided += !all && behind >= 1e-6;
	own->worst = fmax(own->worst, behind);
	if (behind >= 1e-6 || (isinf(ours) && !isinf(best))) {
		char *line = p ? hspmd_plan_summary(p, in.cluster) : NULL, *other = hspmd_plan_summary(fastest, in.cluster);
		printf("problem %u (%d devices, %d layers, batch %d%s): %.3f%% behind, %.6g for %.6g:\n   %s\n   %s\n", seed,
		       in.cluster->device_count, in.profile->layer_count, in.global_batch, in.tight ? ", tight" : "", 100 * behind, ours,
		       best, line ? line : err.text, other ? other : "");
		free(line);
		free(other);
	}
	hspmd_plan_destroy(p);
	hspmd_plan_destroy(fastest);
	instance_free(&in);
	return 0;
}

static void print_row(const char *name, const struct figures *f)
{
	printf("| %s | %d | %d | %d | %d | %.2f %% | %d | %d | %d |\n", name, f->problems, f->decided, f->equal, f->near, 100 * f->worst,
	       f->behind_undecided, f->impossible, f->missed);
}

int main(int argc, char **argv)
{
	int first = argc > 1 ? atoi(argv[1]) : 1, last = argc > 2 ? atoi(argv[2]) : 450, devices = argc > 3 ? atoi(argv[3]) : 8;
	int layers = argc > 4 ? atoi(argv[4]) : 10;
	long looks = argc > 5 ? atol(argv[5]) : 400000;
	struct figures f[2] = { 0 }, all;
	if (devices < 2 || devices > FASTEST_PLAN_DEVICES) {
		fprintf(stderr, "quality: DEVICES: expected 2..%d, for which all plans can be tried, got %d\n", FASTEST_PLAN_DEVICES,
		        devices);
		return 2;
	}
	for (int seed = first; seed <= last; seed++)
		if (compare((unsigned)seed, devices, layers, looks, f))
			return 1;
	all = (struct figures){ f[0].problems + f[1].problems,
		                f[0].decided + f[1].decided,
		                f[0].equal + f[1].equal,
		                f[0].near + f[1].near,
		                f[0].behind_undecided + f[1].behind_undecided,
		                f[0].impossible + f[1].impossible,
		                f[0].missed + f[1].missed,
		                fmax(f[0].worst, f[1].worst) };
	printf("| memory | problems | decided | fastest plan | within 1 %% | worst behind | of the undecided behind | no plan there is | "
	       "no plan found |\n"
	       "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
	print_row("ample", &f[0]);
	print_row("tight", &f[1]);
	print_row("all", &all);
	return 0;
}
