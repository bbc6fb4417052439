/* SPDX-License-Identifier: Apache-2.0 */
/* Which checkpoints this node can read, and which of their shards. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/log.h"
#include "runtime/agent/parts.h"
#include "runtime/state/checkpoint.h"

/* { "manifest": {...}, "shards": [files that are here] } */
static json_t *describe(const struct hspmd_found *found, const char *folder)
{
	struct hspmd_error err;
	struct hspmd_reader *reader = hspmd_reader_create(found->manifest, &folder, 1, &err);
	json_t *shards = json_array(), *manifest = hspmd_manifest_to_json(found->manifest);
	for (int s = 0; reader && shards && s < found->manifest->shard_count; s++)
		if (hspmd_reader_has(reader, s))
			json_array_append_new(shards, json_string(found->manifest->shards[s].file));
	hspmd_reader_destroy(reader);
	return json_pack("{so,so}", "manifest", manifest, "shards", shards);
}

static void add_folder(const char *folder, json_t *list)
{
	struct hspmd_error err;
	struct hspmd_found *found = NULL;
	int n = hspmd_checkpoint_list(folder, &found, &err);
	if (n < 0) {
		hspmd_warn("%s", err.text);
		return;
	}
	for (int i = 0; i < n; i++) {
		if (!found[i].manifest)
			hspmd_warn("%s: %s", found[i].folder, found[i].error ? found[i].error : "no manifest");
		else
			json_array_append_new(list, describe(&found[i], found[i].folder));
	}
	hspmd_found_free(found, n);
}

void agent_find(struct agent *a, json_t *message)
{
	json_t *list = json_array();
	const char *local = json_string_value(json_object_get(message, "local")), *shared = json_string_value(json_object_get(message, "shared"));
	char *own = local ? hspmd_asprintf("%s/%s", local, a->node) : NULL;
	if (own && list)
		add_folder(own, list);
	if (shared && list)
		add_folder(shared, list);
	free(own);
	agent_send(a, json_pack("{ss,sO*,so}", "type", "found", "id", json_object_get(message, "id"), "checkpoints", list));
}
