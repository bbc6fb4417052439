/* SPDX-License-Identifier: Apache-2.0 */
/* CPU seconds and memory of specialising one worker's program (runtime/program) as jobs grow. Every program is made in a process of its
 * own, so that its memory is measured alone: the process without it is subtracted.
 *
 *     specialise [DEVICES [alike | four [DEVICE]]] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/program/program.h"
#include "tests/bench/scale/problem.h"

static double seconds_of(const struct rusage *u)
{
	return (double)(u->ru_utime.tv_sec + u->ru_stime.tv_sec) + 1e-6 * (double)(u->ru_utime.tv_usec + u->ru_stime.tv_usec);
}

static int specialise(int devices, enum scale_shapes shapes, int device)
{
	struct hspmd_error err = { "" };
	struct scale_problem problem;
	struct rusage before, after;
	if (scale_problem_create(devices, shapes, &problem, &err)) {
		printf("%d devices: %s\n", devices, err.text);
		return 1;
	}
	struct hspmd_graph_source source = hspmd_graph_source_model(problem.model);
	source.precision = HSPMD_PRECISION_BF16;
	getrusage(RUSAGE_SELF, &before);
	struct hspmd_program *program = hspmd_program_build(&source, problem.plan, problem.cluster, device, NULL, &err);
	getrusage(RUSAGE_SELF, &after);
	if (program)
		printf("%7d %-6s %9d %6d %8.2f s %6ld MB %7zu instructions\n", devices, shapes == SCALE_ALIKE ? "alike" : "four",
		       problem.plan->pipeline_count, device, seconds_of(&after) - seconds_of(&before),
		       (after.ru_maxrss - before.ru_maxrss) / 1024, program->instruction_count);
	else
		printf("%d devices: %s\n", devices, err.text);
	fflush(stdout);
	hspmd_program_destroy(program);
	scale_problem_clear(&problem);
	return program ? 0 : 1;
}

static int in_child(int devices, enum scale_shapes shapes, int device)
{
	pid_t child = fork();
	int status = 1;
	if (child == 0)
		_exit(specialise(devices, shapes, device));
	if (child < 0 || waitpid(child, &status, 0) < 0)
		perror("specialise");
	return status != 0;
}

int main(int argc, char **argv)
{
	static const int sizes[] = { 1024, 4096, 10240 };
	int failed = 0;
	printf("devices shapes pipelines device      CPU    memory\n");
	fflush(stdout);
	if (argc > 1) {
		int devices = atoi(argv[1]);
		enum scale_shapes shapes = argc > 2 && !strcmp(argv[2], "alike") ? SCALE_ALIKE : SCALE_FOUR;
		return in_child(devices, shapes, argc > 3 ? atoi(argv[3]) : 0);
	}
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		failed |= in_child(sizes[i], SCALE_ALIKE, 0);
		failed |= in_child(sizes[i], SCALE_FOUR, 0);
		failed |= in_child(sizes[i], SCALE_FOUR, sizes[i] - 1); /* the narrowest stage of the longest pipeline */
	}
	return failed;
}
