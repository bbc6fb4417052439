/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/stored.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/state/manifest.h"

json_t *hspmd_stored_manifest(json_t *written, json_t *job, struct hspmd_error *err)
{
	size_t n = json_array_size(written);
	json_t **shards = hspmd_calloc(n, sizeof *shards), *result = NULL;
	json_t *first = json_array_get(written, 0);
	if (!shards) {
		hspmd_fail_memory(err, "assembling a manifest");
		return NULL;
	}
	for (size_t i = 0; i < n; i++)
		shards[i] = json_object_get(json_array_get(written, i), "shard");
	struct hspmd_manifest *m = hspmd_manifest_assemble(json_integer_value(json_object_get(first, "step")),
							   json_integer_value(json_object_get(first, "generation")), job, shards, n, err);
	if (m && !(result = hspmd_manifest_to_json(m)))
		hspmd_fail_memory(err, "assembling a manifest");
	hspmd_manifest_destroy(m);
	free(shards);
	return result;
}

/* One checkpoint and who can read which of its shards. */
struct seen {
	struct hspmd_manifest *manifest;
	json_t *text;  /* borrowed */
	json_t *files; /* { shard: [addresses] } */
};

struct choice {
	struct seen *list;
	size_t count, capacity;
};

static void forget(struct choice *c)
{
	for (size_t i = 0; i < c->count; i++) {
		hspmd_manifest_destroy(c->list[i].manifest);
		json_decref(c->list[i].files);
	}
	free(c->list);
}

static struct seen *checkpoint(struct choice *c, json_t *text, struct hspmd_error *err)
{
	struct hspmd_manifest *m = hspmd_manifest_from_json(text, "manifest", err);
	if (!m)
		return NULL;
	for (size_t i = 0; i < c->count; i++)
		if (c->list[i].manifest->step == m->step && c->list[i].manifest->generation == m->generation) {
			hspmd_manifest_destroy(m);
			return &c->list[i];
		}
	json_t *files = json_object();
	if (!files || hspmd_grow(&c->list, &c->capacity, c->count, sizeof *c->list)) {
		json_decref(files);
		hspmd_manifest_destroy(m);
		hspmd_fail_memory(err, "choosing a checkpoint");
		return NULL;
	}
	c->list[c->count] = (struct seen){ m, text, files };
	return &c->list[c->count++];
}

static int add_reader(struct seen *s, const char *file, json_t *reader)
{
	json_t *list = json_object_get(s->files, file);
	if (!list) {
		list = json_array();
		if (json_object_set_new(s->files, file, list))
			return -1;
	}
	for (size_t i = 0; i < json_array_size(list); i++)
		if (json_equal(json_array_get(list, i), reader))
			return 0;
	return json_array_append(list, reader);
}

static int collect(struct choice *c, json_t *found, json_t *readers, struct hspmd_error *err)
{
	const char *node;
	json_t *checkpoints, *one, *shard;
	size_t i, k;
	json_object_foreach(found, node, checkpoints)
		json_array_foreach(checkpoints, i, one) {
			struct seen *s = checkpoint(c, json_object_get(one, "manifest"), err);
			json_t *reader = json_object_get(readers, node);
			if (!s)
				return -1;
			json_array_foreach(json_object_get(one, "shards"), k, shard)
				if (json_is_string(shard) && json_is_string(reader) && add_reader(s, json_string_value(shard), reader))
					return hspmd_fail_memory(err, "choosing a checkpoint");
		}
	return 0;
}

static bool reachable(void *context, int manifest, const struct hspmd_shard *shard)
{
	const struct choice *c = context;
	return json_object_get(c->list[manifest].files, shard->file) != NULL;
}

int hspmd_stored_choose(json_t *found, json_t *readers, int64_t *step, json_t **manifest, json_t **files, struct hspmd_error *err)
{
	struct choice c = { 0 };
	int best = collect(&c, found, readers, err);
	const struct hspmd_manifest **manifests = best ? NULL : hspmd_calloc(c.count, sizeof *manifests);
	if (!best && !manifests)
		best = hspmd_fail_memory(err, "choosing a checkpoint");
	else if (!best && !c.count)
		best = hspmd_fail(err, "no checkpoint was found");
	for (size_t i = 0; !best && i < c.count; i++)
		manifests[i] = c.list[i].manifest;
	if (!best)
		best = hspmd_manifest_choose(manifests, (int)c.count, reachable, &c, err);
	if (best >= 0) {
		*step = c.list[best].manifest->step;
		*manifest = json_incref(c.list[best].text);
		*files = json_incref(c.list[best].files);
	}
	free(manifests);
	forget(&c);
	return best < 0 ? -1 : 0;
}
