/* SPDX-License-Identifier: Apache-2.0 */
/* CPU seconds and memory that one worker takes to plan its state moves (runtime/generation/state_moves.h) when a large job's plan changes,
 * in a process per problem.
 *
 *     moves [DEVICES...] */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/alloc.h"
#include "runtime/generation/state_moves.h"
#include "runtime/program/program.h"
#include "runtime/state/manifest.h"
#include "tests/bench/scale/problem.h"

#define STAGE_DEVICES 64 /* of one pipeline of SCALE_ALIKE */

struct change {
	const char *name;
	bool leaves;             /* the last pipeline leaves */
	bool last;               /* plan for the last device, else for the first */
	enum scale_shapes after; /* of the plan */
};

static const struct change changes[] = {
	{ "one pipeline leaves", true, false, SCALE_ALIKE },
	{ "alike to four shapes", false, false, SCALE_FOUR },
	{ "the same, last device", false, true, SCALE_FOUR },
};

static double seconds_of(const struct rusage *u)
{
	return (double)(u->ru_utime.tv_sec + u->ru_stime.tv_sec) + 1e-6 * (double)(u->ru_utime.tv_usec + u->ru_stime.tv_usec);
}

static int plan_moves(int devices, const struct change *c)
{
	struct hspmd_error err = { "" };
	struct scale_problem before;
	struct rusage start, end;
	struct hspmd_planned_move *moves = NULL;
	size_t count = 0;
	if (scale_problem_create(devices, SCALE_ALIKE, &before, &err)) {
		printf("%d devices: %s\n", devices, err.text);
		return 1;
	}
	struct hspmd_plan *after = scale_plan(before.cluster, c->leaves ? devices - STAGE_DEVICES : devices, c->after, &err);
	struct hspmd_graph_source source = hspmd_graph_source_model(before.model);
	struct hspmd_model_build_options how = { .batch = 1, .seq_len = 4096, .vocab_parts = 8, .widest = 8, .loss_scale = 1 };
	struct hspmd_graph *graph = after ? source.build(source.context, &how, &err) : NULL;
	getrusage(RUSAGE_SELF, &start);
	struct hspmd_parameter_layouts *old = graph ? hspmd_parameter_layouts_build(graph, before.plan, &err) : NULL,
	                               *now = old ? hspmd_parameter_layouts_build(graph, after, &err) : NULL;
	int *rank_of = hspmd_calloc((size_t)devices, sizeof *rank_of);
	size_t *element_bytes = hspmd_calloc(now ? (size_t)now->parameter_count * HSPMD_STATE_KIND_COUNT : 1, sizeof *element_bytes);
	int status = now && rank_of && element_bytes ? 0 : -1;
	for (int d = 0; !status && d < devices; d++)
		rank_of[d] = d;
	for (int i = 0; !status && i < now->parameter_count * HSPMD_STATE_KIND_COUNT; i++)
		element_bytes[i] = 4;
	if (!status) {
		struct hspmd_link_cost cost = hspmd_link_cost_of_cluster(before.cluster);
		struct hspmd_state_side held = { old, rank_of, devices }, needed = { now, rank_of, devices };
		struct hspmd_state_moves m = {
			.self = c->last ? devices - 1 : 0,
			.kinds = 3,
			.element_bytes = element_bytes,
			.now = &needed,
			.live = &held,
			.live_count = 1,
			.cost = &cost,
		};
		status = hspmd_state_moves_plan(&m, &moves, &count, &err);
	}
	getrusage(RUSAGE_SELF, &end);
	if (status)
		printf("%d devices, %s: %s\n", devices, c->name, err.text);
	else
		printf("%7d %-22s %8.2f s %6ld MB %8zu moves of its own\n", devices, c->name, seconds_of(&end) - seconds_of(&start),
		       (end.ru_maxrss - start.ru_maxrss) / 1024, count);
	fflush(stdout);
	free(moves);
	free(rank_of);
	free(element_bytes);
	hspmd_parameter_layouts_destroy(now);
	hspmd_parameter_layouts_destroy(old);
	hspmd_graph_destroy(graph);
	hspmd_plan_destroy(after);
	scale_problem_clear(&before);
	return status ? 1 : 0;
}

int main(int argc, char **argv)
{
	static char *sizes[] = { "1024", "4096", "10240" };
	int failed = 0, count = argc > 1 ? argc - 1 : 3;
	char **size = argc > 1 ? argv + 1 : sizes;
	printf("devices change                      CPU    memory\n");
	fflush(stdout);
	for (int i = 0; i < count; i++)
		for (size_t c = 0; c < sizeof changes / sizeof *changes; c++) {
			pid_t child = fork();
			int status = 1;
			if (child == 0)
				_exit(plan_moves(atoi(size[i]), &changes[c]));
			if (child < 0 || waitpid(child, &status, 0) < 0)
				perror("moves");
			failed |= status != 0;
		}
	return failed;
}
