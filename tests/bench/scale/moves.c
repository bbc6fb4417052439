/* SPDX-License-Identifier: Apache-2.0 */
/* CPU seconds and memory that one worker takes to plan its state moves (runtime/generation/state_moves.h) when a large job's plan changes,
 * in a process per problem. From memory; or from a checkpoint, of which one member per node can read the node's files.
 *
 *     moves [DEVICES...] */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/alloc.h"
#include "runtime/state/manifest.h"
#include "tests/bench/scale/change.h"

#define NODE_DEVICES 8

/* A manifest lists all extents, or is a root. */
enum source { MEMORY, LISTED, ROOT };

struct change {
	const char *name;
	enum source from;
	bool leaves;             /* the last pipeline leaves */
	bool last;               /* plan for the last device, else for the first */
	enum scale_shapes after; /* of the plan */
};

static const struct change changes[] = {
	{ "one pipeline leaves", MEMORY, true, false, SCALE_ALIKE },
	{ "alike to four shapes", MEMORY, false, false, SCALE_FOUR },
	{ "the same, last device", MEMORY, false, true, SCALE_FOUR },
	{ "from listed extents", LISTED, false, false, SCALE_FOUR },
	{ "from a root", ROOT, false, false, SCALE_FOUR },
};

/* Every device has written what it holds. */
static bool has_all(const void *context, int device, int parameter)
{
	(void)context, (void)device, (void)parameter;
	return true;
}

/* What members can read: of the devices' files, as one list. NULL: memory. */
static struct hspmd_holding *list_extents(const struct hspmd_parameter_layouts *old, int devices, size_t *count)
{
	int *device = hspmd_calloc((size_t)devices, sizeof *device);
	struct hspmd_local_shard *shards = hspmd_calloc((size_t)devices, sizeof *shards);
	struct hspmd_holding *list = NULL;
	size_t capacity = 0;
	int failed = !device || !shards;
	*count = 0;
	for (int p = 0; !failed && p < old->parameter_count; p++) {
		int n = hspmd_annotation_local_shards(old->parameters[p].state, &old->parameters[p].shape, device, shards);
		for (int i = 0; !failed && i < n * HSPMD_STATE_KIND_COUNT; i++) {
			failed = hspmd_array_grow(&list, &capacity, *count, sizeof *list);
			if (!failed)
				list[(*count)++] = (struct hspmd_holding){ p * HSPMD_STATE_KIND_COUNT + i % HSPMD_STATE_KIND_COUNT,
					                                   device[i / HSPMD_STATE_KIND_COUNT] / NODE_DEVICES * NODE_DEVICES,
					                                   shards[i / HSPMD_STATE_KIND_COUNT].box };
		}
	}
	free(device);
	free(shards);
	if (failed)
		free(list);
	return failed ? NULL : list;
}

/* The same of a root. */
struct root {
	int *first_reader, *readers;
	bool *everybody;
	struct hspmd_file_side side;
};

static int make_root(const struct hspmd_parameter_layouts *old, int devices, struct root *r)
{
	r->first_reader = hspmd_calloc((size_t)devices + 1, sizeof *r->first_reader);
	r->readers = hspmd_calloc((size_t)devices, sizeof *r->readers);
	r->everybody = hspmd_calloc((size_t)devices, sizeof *r->everybody);
	if (!r->first_reader || !r->readers || !r->everybody)
		return -1;
	for (int d = 0; d < devices; d++) {
		r->readers[d] = d / NODE_DEVICES * NODE_DEVICES;
		r->first_reader[d + 1] = d + 1;
	}
	r->side = (struct hspmd_file_side){ .layouts = old,
		                            .device_count = devices,
		                            .first_reader = r->first_reader,
		                            .readers = r->readers,
		                            .everybody = r->everybody,
		                            .has = has_all };
	return 0;
}

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
	struct hspmd_holding *listed = NULL;
	struct root root = { 0 };
	if (!status && c->from == LISTED)
		change.stored = listed = list_extents(change.old, devices, &change.stored_count);
	if (!status && c->from == LISTED && !listed)
		status = hspmd_fail_memory(&err, "listing extents");
	if (!status && c->from == ROOT)
		status = make_root(change.old, devices, &root) ? hspmd_fail_memory(&err, "making a root") : 0;
	change.files = c->from == ROOT ? &root.side : NULL;
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
	free(listed);
	free(root.first_reader);
	free(root.readers);
	free(root.everybody);
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
