/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the checkpoints, and the shards, that this node can read. Manifests may be long, and many nodes see the same ones: the list only
 * names them, and the controller asks one node for the one that it needs. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/log.h"
#include "common/wire.h"
#include "runtime/agent/agent_internal.h"
#include "runtime/state/checkpoint.h"

#define REST_BYTES (1u << 20) /* of a message, besides its manifest */

struct names {
	char **name;
	size_t count, capacity;
};

static const char *const places[] = { "memory", "local", "shared" };

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names of a checkpoint's files, sorted, but for the manifest's. 0; -1: there is no such folder, or memory is short. */
static int list_names(const char *folder, struct names *out)
{
	DIR *d = opendir(folder);
	int rc = d ? 0 : -1;
	*out = (struct names){ 0 };
	for (struct dirent *e; !rc && (e = readdir(d));) {
		if (e->d_name[0] == '.' || !strcmp(e->d_name, HSPMD_MANIFEST_FILE))
			continue;
		rc = hspmd_array_grow(&out->name, &out->capacity, out->count, sizeof *out->name);
		if (!rc && (out->name[out->count] = strdup(e->d_name)))
			out->count++;
		else
			rc = -1;
	}
	if (d)
		closedir(d);
	if (out->count)
		qsort(out->name, out->count, sizeof *out->name, by_name);
	return rc;
}

static void names_free(struct names *n)
{
	for (size_t i = 0; i < n->count; i++)
		free(n->name[i]);
	free(n->name);
}

/* Of a manifest's shards, those that are here: [files], or true: all. NULL: memory. One look at the folder tells which to look for: a
 * manifest names thousands of shards, of which a node's own folder has few. What the shared folder has counts by its name, as otherwise all
 * agents of a large job would look up all files there at once. */
static json_t *shards_here(const struct hspmd_listed_checkpoint *found, bool shared)
{
	struct hspmd_error err;
	struct names names;
	const char *folder = found->folder;
	const struct hspmd_manifest *m = found->manifest;
	bool *there = hspmd_calloc((size_t)m->shard_count, sizeof *there);
	int rc = list_names(folder, &names);
	for (int s = 0; there && s < m->shard_count; s++)
		there[s] = names.count && bsearch(&m->shards[s].file, names.name, names.count, sizeof *names.name, by_name);
	names_free(&names);
	struct hspmd_reader *reader = there && !shared ? hspmd_reader_create(m, there, &folder, 1, &err) : NULL;
	json_t *shards = rc || !there ? NULL : json_array();
	for (int s = 0; shards && s < m->shard_count; s++)
		if (there[s] && (shared || (reader && hspmd_reader_has(reader, s))))
			json_array_append_new(shards, json_string(m->shards[s].file));
	hspmd_reader_destroy(reader);
	free(there);
	if (!shards || json_array_size(shards) < (size_t)m->shard_count)
		return shards;
	json_decref(shards);
	return json_true();
}

/* { place, step, generation, sum, run, shards } */
static json_t *describe(const struct hspmd_listed_checkpoint *found, const char *place)
{
	char sum[HSPMD_MANIFEST_SUM];
	struct hspmd_error err;
	const struct hspmd_manifest *m = found->manifest;
	json_t *text = hspmd_manifest_to_json(m);
	int bad = !text || hspmd_manifest_sum(text, sum, &err);
	json_decref(text);
	return bad ? NULL
	           : json_pack("{ss,sI,sI,ss,sO*,so}", "place", place, "step", (json_int_t)m->step, "generation", (json_int_t)m->generation,
	                       "sum", sum, "run", json_object_get(m->job, "run"), "shards", shards_here(found, !strcmp(place, "shared")));
}

/* Shards without a manifest in this folder: the manifest may be in another location. { place, step, generation, shards } */
static json_t *describe_shards(const char *folder, const char *place)
{
	const char *name = strrchr(folder, '/');
	int64_t step, generation;
	struct names names;
	if (!name || !hspmd_checkpoint_parse(name + 1, &step, &generation))
		return NULL;
	json_t *shards = list_names(folder, &names) ? NULL : json_array();
	for (size_t i = 0; shards && i < names.count; i++)
		json_array_append_new(shards, json_string(names.name[i]));
	names_free(&names);
	return shards ? json_pack("{ss,sI,sI,so}", "place", place, "step", (json_int_t)step, "generation", (json_int_t)generation, "shards",
	                          shards)
	              : NULL;
}

/* The checkpoints that this node sees in a place, by the folder that the message has for it. Free with hspmd_checkpoint_list_free.
 * Returns the count; 0 with a warning if the folder cannot be read. */
static int find_in(const struct agent *a, const json_t *message, const char *place, struct hspmd_listed_checkpoint **found)
{
	struct hspmd_error err = { "" };
	const char *folder = json_string_value(json_object_get(message, place));
	char *path = !folder ? NULL : !strcmp(place, "shared") ? strdup(folder) : hspmd_asprintf("%s/%s", folder, a->node);
	*found = NULL;
	int n = path ? hspmd_checkpoint_list(path, HSPMD_LOCATION_DEPTH, found, &err) : 0;
	if (n < 0)
		hspmd_warn("%s", err.text);
	free(path);
	return n < 0 ? 0 : n;
}

static void add_place(const struct agent *a, const json_t *message, const char *place, json_t *list)
{
	struct hspmd_listed_checkpoint *found;
	int n = find_in(a, message, place, &found);
	for (int i = 0; i < n; i++) {
		if (!found[i].manifest && found[i].error && !found[i].no_file)
			hspmd_warn("%s: %s", found[i].folder, found[i].error);
		json_t *one = found[i].manifest ? describe(&found[i], place) : describe_shards(found[i].folder, place);
		if (one)
			json_array_append_new(list, one);
	}
	hspmd_checkpoint_list_free(found, n);
}

void agent_list_checkpoints(struct agent *a, json_t *message)
{
	json_t *list = json_array();
	for (size_t p = 0; list && p < sizeof places / sizeof *places; p++)
		add_place(a, message, places[p], list);
	agent_send(a, json_pack("{ss,sO*,so}", "type", "checkpoint_list", "id", json_object_get(message, "id"), "checkpoints", list));
}

/* The manifest of this name in a place; NULL: it is not there. New reference. */
static json_t *manifest_in(const struct agent *a, const json_t *message, const char *place, const char *sum)
{
	char its[HSPMD_MANIFEST_SUM];
	struct hspmd_error err;
	struct hspmd_listed_checkpoint *found;
	int n = find_in(a, message, place, &found);
	json_t *text = NULL;
	for (int i = n - 1; i >= 0 && !text; i--) {
		text = found[i].manifest ? hspmd_manifest_to_json(found[i].manifest) : NULL;
		if (text && (hspmd_manifest_sum(text, its, &err) || strcmp(its, sum) != 0)) {
			json_decref(text);
			text = NULL;
		}
	}
	hspmd_checkpoint_list_free(found, n);
	return text;
}

void agent_read_manifest(struct agent *a, json_t *message)
{
	json_t *sum = json_object_get(message, "sum"), *text = NULL;
	const char *why = "the manifest is not there any more, or cannot be read";
	for (size_t p = 0; json_is_string(sum) && !text && p < sizeof places / sizeof *places; p++)
		text = manifest_in(a, message, places[p], json_string_value(sum));
	if (text && json_dumpb(text, NULL, 0, JSON_COMPACT) > HSPMD_WIRE_MAX - REST_BYTES) {
		json_decref(text);
		text = NULL;
		why = "the manifest is too long for a message (64 MB): it lists extents of too many shards";
	}
	agent_send(a, json_pack("{ss,sO*,sO*,so*,ss*}", "type", "manifest", "id", json_object_get(message, "id"), "sum", sum, "manifest",
	                        text, "error", text ? NULL : why));
}
