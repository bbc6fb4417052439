/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what goes through the controller of a large job, and the CPU seconds that it takes (played_scenes.h).
 *
 *     played [--restart] [DEVICES...]
 *
 * --restart: only the start, a checkpoint, and the loss of all workers, after which the state comes from it. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/scale/played_scenes.h"

#define TRAIN_S 5.0

static int play(enum played_what what, int devices)
{
	struct hspmd_error err = { "" };
	struct played_phase phase[PLAYED_PHASES_MAX];
	int count = 0, status = played_scenes_run(what, devices, TRAIN_S, phase, &count, &err);
	printf("%d devices\n", devices);
	for (int i = 0; i < count; i++)
		printf("    %-16s %6.1f s, %7.2f CPU s; %7.2f MB down in %6lld, %7.2f MB up in %6lld; largest %.3f MB; %lld workers; "
		       "Slurm asked %lld times, srun %lld; agents connected %lld times; %lld were asked for a manifest, and what all said "
		       "of checkpoints had %.3f MB\n",
		       phase[i].name, phase[i].wall_s, phase[i].cpu_s, (double)phase[i].bytes_down / 1e6, (long long)phase[i].down,
		       (double)phase[i].bytes_up / 1e6, (long long)phase[i].up, (double)phase[i].largest / 1e6, (long long)phase[i].workers,
		       (long long)phase[i].asked, (long long)phase[i].srun, (long long)phase[i].connects,
		       (long long)phase[i].asked_for_manifest, (double)phase[i].found_bytes / 1e6);
	if (status)
		printf("    %s\n", err.text);
	fflush(stdout);
	return status != 0;
}

int main(int argc, char **argv)
{
	int failed = 0;
	signal(SIGPIPE, SIG_IGN);
	if (argc == 2 && !strcmp(argv[1], PLAYED_WAIT))
		return played_wait();
	enum played_what what = argc > 1 && !strcmp(argv[1], "--restart") ? PLAYED_RESTART : PLAYED_ALL;
	int first = what == PLAYED_RESTART ? 2 : 1;
	for (int i = first; i < argc; i++)
		failed |= play(what, atoi(argv[i]));
	return argc <= first ? play(what, 64) : failed;
}
