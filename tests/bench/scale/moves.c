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

#include "tests/bench/scale/change.h"

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
	struct scale_change change;
	struct rusage start, end;
	struct hspmd_planned_move *moves = NULL;
	size_t count = 0;
	int status = scale_change_create(devices, c->leaves, c->after, &change, &err);
	getrusage(RUSAGE_SELF, &start);
	if (!status)
		status = scale_change_lay_out(&change, &err);
	if (!status)
		status = scale_change_moves(&change, c->last ? devices - 1 : 0, &moves, &count, &err);
	getrusage(RUSAGE_SELF, &end);
	if (status)
		printf("%d devices, %s: %s\n", devices, c->name, err.text);
	else
		printf("%7d %-22s %8.2f s %6ld MB %8zu moves of its own\n", devices, c->name, seconds_of(&end) - seconds_of(&start),
		       (end.ru_maxrss - start.ru_maxrss) / 1024, count);
	fflush(stdout);
	free(moves);
	scale_change_clear(&change);
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
