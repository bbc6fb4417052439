/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the checkpoints, and the shards, that this node can read. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/log.h"
#include "runtime/agent/agent_internal.h"
#include "runtime/state/checkpoint.h"

/* { "place": kind, "manifest": {...}, "shards": [files that are here], or true: all } */
static json_t *describe(const struct hspmd_listed_checkpoint *found, const char *location)
{
	struct hspmd_error err;
	const char *folder = found->folder;
	struct hspmd_reader *reader = hspmd_reader_create(found->manifest, NULL, &folder, 1, &err);
	json_t *shards = json_array(), *manifest = hspmd_manifest_to_json(found->manifest);
	for (int s = 0; reader && shards && s < found->manifest->shard_count; s++)
		if (hspmd_reader_has(reader, s))
			json_array_append_new(shards, json_string(found->manifest->shards[s].file));
	if (shards && json_array_size(shards) == (size_t)found->manifest->shard_count) {
		json_decref(shards);
		shards = json_true();
	}
	hspmd_reader_destroy(reader);
	return json_pack("{ss,so,so}", "place", location, "manifest", manifest, "shards", shards);
}

/* Shards without a manifest in this folder: the manifest may be in another location. { "place", "step", "generation", "shards" } */
static json_t *describe_shards(const char *folder, const char *location)
{
	const char *name = strrchr(folder, '/');
	int64_t step, generation;
	DIR *d = name && hspmd_checkpoint_parse(name + 1, &step, &generation) ? opendir(folder) : NULL;
	json_t *shards = d ? json_array() : NULL;
	for (struct dirent *e; shards && (e = readdir(d));)
		if (e->d_name[0] != '.' && strcmp(e->d_name, HSPMD_MANIFEST_FILE))
			json_array_append_new(shards, json_string(e->d_name));
	if (d)
		closedir(d);
	return shards ? json_pack("{ss,sI,sI,so}", "place", location, "step", (json_int_t)step, "generation", (json_int_t)generation,
	                          "shards", shards)
	              : NULL;
}

static void add_folder(const char *folder, const char *location, json_t *list)
{
	struct hspmd_error err;
	struct hspmd_listed_checkpoint *found = NULL;
	int n = hspmd_checkpoint_list(folder, HSPMD_LOCATION_DEPTH, &found, &err);
	if (n < 0) {
		hspmd_warn("%s", err.text);
		return;
	}
	for (int i = 0; i < n; i++) {
		if (!found[i].manifest && found[i].error && !found[i].no_file)
			hspmd_warn("%s: %s", found[i].folder, found[i].error);
		json_t *one = found[i].manifest ? describe(&found[i], location) : describe_shards(found[i].folder, location);
		if (one)
			json_array_append_new(list, one);
	}
	hspmd_checkpoint_list_free(found, n);
}

static void add_own(const struct agent *a, json_t *message, const char *key, json_t *list)
{
	const char *folder = json_string_value(json_object_get(message, key));
	char *own = folder ? hspmd_asprintf("%s/%s", folder, a->node) : NULL;
	if (own)
		add_folder(own, key, list);
	free(own);
}

void agent_list_checkpoints(struct agent *a, json_t *message)
{
	json_t *list = json_array();
	const char *shared = json_string_value(json_object_get(message, "shared"));
	if (list) {
		add_own(a, message, "memory", list);
		add_own(a, message, "local", list);
		if (shared)
			add_folder(shared, "shared", list);
	}
	agent_send(a, json_pack("{ss,sO*,so}", "type", "checkpoint_list", "id", json_object_get(message, "id"), "checkpoints", list));
}
