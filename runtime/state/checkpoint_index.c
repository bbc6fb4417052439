/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/checkpoint_index.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

/* The job's path may be below the folders of the job and the user ($USER/$JOB); a user may give those. */
#define LOOKED_DEEP (HSPMD_LOCATION_DEPTH + 2)

static int open_group(struct hspmd_checkpoint_group *g, struct hspmd_error *err)
{
	if (!g->manifest)
		return 0;
	g->reader = hspmd_reader_create(g->manifest, NULL, g->folders, g->folder_count, err);
	if (!g->reader)
		return -1;
	if (hspmd_reader_covered(g->reader, &g->lacks) && !g->lacks.text[0])
		return hspmd_fail_memory(err, "reading a checkpoint");
	return 0;
}

/* The list is ordered by step, generation and path, so the folders of a group are contiguous. */
static int fill(struct hspmd_checkpoint_index *g, struct hspmd_error *err)
{
	g->groups = hspmd_calloc((size_t)g->found_count, sizeof *g->groups);
	if (!g->groups)
		return hspmd_fail_memory(err, "listing checkpoints");
	for (int i = 0; i < g->found_count; i++) {
		const struct hspmd_listed_checkpoint *f = &g->found[i];
		const char *name = strrchr(f->folder, '/');
		int64_t step = -1, generation = -1;
		hspmd_checkpoint_parse(name ? name + 1 : f->folder, &step, &generation);
		if (f->manifest) {
			step = f->manifest->step;
			generation = f->manifest->generation;
		}
		struct hspmd_checkpoint_group *at = g->count ? &g->groups[g->count - 1] : NULL;
		if (!at || at->step != step || at->generation != generation || !hspmd_checkpoint_same_run(at->folders[0], f->folder)) {
			at = &g->groups[g->count++];
			at->step = step;
			at->generation = generation;
			at->folders = hspmd_calloc((size_t)(g->found_count - i), sizeof *at->folders);
			if (!at->folders)
				return hspmd_fail_memory(err, "listing checkpoints");
		}
		at->folders[at->folder_count++] = f->folder;
		at->manifest = at->manifest ? at->manifest : f->manifest;
		at->error = at->error ? at->error : f->error;
	}
	for (int i = 0; i < g->count; i++)
		if (open_group(&g->groups[i], err))
			return -1;
	return 0;
}

int hspmd_checkpoint_index_open(struct hspmd_checkpoint_index *g, const char *path, struct hspmd_error *err)
{
	*g = (struct hspmd_checkpoint_index){ 0 };
	g->found_count = hspmd_checkpoint_list(path, LOOKED_DEEP, &g->found, err);
	if (g->found_count < 0) {
		g->found_count = 0;
		return -1;
	}
	if (fill(g, err)) {
		hspmd_checkpoint_index_close(g);
		return -1;
	}
	return 0;
}

void hspmd_checkpoint_index_close(struct hspmd_checkpoint_index *g)
{
	for (int i = 0; i < g->count; i++) {
		hspmd_reader_destroy(g->groups[i].reader);
		free(g->groups[i].folders);
	}
	free(g->groups);
	hspmd_checkpoint_list_free(g->found, g->found_count);
	*g = (struct hspmd_checkpoint_index){ 0 };
}

/* Where a job has its checkpoints whose output folder this is: "FOLDER and FOLDER". The caller frees it. NULL: it is none, or has none. */
static char *named_by_run(const char *output)
{
	char *path = hspmd_asprintf("%s/run.json", output), *all = NULL;
	json_t *run = path ? json_load_file(path, 0, NULL) : NULL, *folder;
	size_t i;
	json_array_foreach(json_object_get(run, "checkpoints"), i, folder) {
		const char *one = json_string_value(folder);
		char *more = one ? hspmd_asprintf("%s%s%s", all ? all : "", all ? " and " : "", one) : NULL;
		if (!more)
			continue;
		free(all);
		all = more;
	}
	json_decref(run);
	free(path);
	return all;
}

int hspmd_checkpoint_index_none(const char *path, int64_t step, struct hspmd_error *err)
{
	char *folders = named_by_run(path), number[40] = "";
	if (step >= 0)
		snprintf(number, sizeof number, " of step %" PRId64, step);
	hspmd_fail(err, "%s: there is no checkpoint%s%s%s", path, number,
	           folders ? ": it is a job's output folder; the job's checkpoints are below " : "", folders ? folders : "");
	free(folders);
	return -1;
}

struct hspmd_checkpoint_group *hspmd_checkpoint_index_choose(struct hspmd_checkpoint_index *g, int64_t step, const char *path,
                                                             struct hspmd_error *err)
{
	bool told = false;
	for (int i = g->count - 1; i >= 0; i--) {
		struct hspmd_checkpoint_group *c = &g->groups[i];
		if (step >= 0 && c->step != step)
			continue;
		if (c->manifest && !c->lacks.text[0])
			return c;
		if (!told)
			hspmd_fail(err, "%s: step %" PRId64 ": %s", path, c->step,
			           c->manifest ? c->lacks.text
			           : c->error  ? c->error
			                       : "no manifest");
		told = true;
	}
	if (!told)
		hspmd_checkpoint_index_none(path, step, err);
	return NULL;
}
