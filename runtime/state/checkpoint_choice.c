/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/checkpoint_choice.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

struct shards {
	json_t **list; /* borrowed */
	size_t count, capacity;
};

static int add_shard(struct shards *s, json_t *shard)
{
	if (!json_is_object(shard))
		return 0; /* it could not be written there */
	if (hspmd_array_grow(&s->list, &s->capacity, s->count, sizeof *s->list))
		return -1;
	s->list[s->count++] = shard;
	return 0;
}

/* List the shards that all workers wrote, for themselves and for others. */
static int list_shards(struct shards *s, json_t *written, struct hspmd_error *err)
{
	json_t *one, *kept;
	size_t i, k;
	json_array_foreach(written, i, one) {
		int bad = add_shard(s, json_object_get(one, "shard"));
		json_array_foreach(json_object_get(json_object_get(one, "copies"), "shards"), k, kept)
			bad |= add_shard(s, kept);
		if (bad)
			return hspmd_fail_memory(err, "assembling a manifest");
	}
	return 0;
}

/* The first error that a worker reported; NULL: none. */
static const char *first_error(json_t *written)
{
	json_t *one, *location;
	size_t i, k;
	json_array_foreach(written, i, one) {
		const char *text = json_string_value(json_object_get(one, "error"));
		json_array_foreach(json_object_get(one, "places"), k, location)
			text = text ? text : json_string_value(json_object_get(location, "error"));
		if (text)
			return text;
	}
	return NULL;
}

static bool for_root(const struct shards *s)
{
	return s->count && json_object_get(s->list[0], "list");
}

json_t *hspmd_manifest_from_reports(json_t *written, json_t *job, const struct hspmd_root_check *check, struct hspmd_error *err)
{
	struct shards s = { 0 };
	json_t *result = NULL, *one, *whole = NULL;
	struct hspmd_manifest *m = NULL;
	size_t i;
	json_array_foreach(written, i, one)
		whole = !whole && !json_object_get(one, "error") ? one : whole;
	int64_t step = json_integer_value(json_object_get(whole, "step")),
	        generation = json_integer_value(json_object_get(whole, "generation"));
	if (!list_shards(&s, written, err))
		m = for_root(&s) ? hspmd_root_assemble(step, generation, job, s.list, s.count, check, err)
		                 : hspmd_manifest_assemble(step, generation, job, s.list, s.count, err);
	if (m && !(result = hspmd_manifest_to_json(m)))
		hspmd_fail_memory(err, "assembling a manifest");
	else if (!m && first_error(written))
		hspmd_fail(err, "%s", first_error(written));
	hspmd_manifest_destroy(m);
	free(s.list);
	return result;
}

/* One checkpoint, and who can read which of its shards. */
struct seen {
	struct hspmd_manifest *manifest;
	json_t *text;  /* borrowed */
	json_t *files; /* { shard: [addresses], or true } as in `start` */
	json_t *own;   /* those of these shards that are in a node's own folder */
	json_t *all;   /* the readers of all shards in the shared folder, which are not in `files` */
	bool durable;  /* on disk, not in memory only */
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
		json_decref(c->list[i].own);
		json_decref(c->list[i].all);
	}
	free(c->list);
}

static struct seen *seen_of(const struct choice *c, int64_t step, int64_t generation)
{
	for (size_t i = 0; i < c->count; i++)
		if (c->list[i].manifest->step == step && c->list[i].manifest->generation == generation)
			return &c->list[i];
	return NULL;
}

/* The checkpoint of an entry of `found`, or of a manifest; NULL: it has not been seen. */
static struct seen *entry_of(const struct choice *c, const json_t *one)
{
	const json_t *at = json_object_get(one, "manifest") ? json_object_get(one, "manifest") : one;
	return seen_of(c, json_integer_value(json_object_get(at, "step")), json_integer_value(json_object_get(at, "generation")));
}

/* Many nodes may have the same manifest, and it may be long: it is read once. */
static int see(struct choice *c, json_t *text, struct hspmd_error *err)
{
	struct hspmd_manifest *m = entry_of(c, text) ? NULL : hspmd_manifest_from_json(text, "manifest", err);
	if (!m)
		return entry_of(c, text) ? 0 : -1;
	json_t *files = json_object(), *all = json_array();
	if (!files || !all || hspmd_array_grow(&c->list, &c->capacity, c->count, sizeof *c->list)) {
		json_decref(files);
		json_decref(all);
		hspmd_manifest_destroy(m);
		return hspmd_fail_memory(err, "choosing a checkpoint");
	}
	c->list[c->count++] = (struct seen){ .manifest = m, .text = text, .files = files, .all = all };
	return 0;
}

static bool names(const json_t *list, const char *file)
{
	for (size_t i = 0; i < json_array_size(list); i++)
		if (!strcmp(json_string_value(json_array_get(list, i)), file))
			return true;
	return false;
}

/* The node of an entry has this file. */
static int add_reader(const struct seen *s, const json_t *entry, bool shared, const char *file, json_t *reader)
{
	json_t *list = json_object_get(s->files, file);
	if (!file || (shared && json_object_get(s->own, file)) || names(json_object_get(entry, "unreadable"), file))
		return 0;
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

static int add_entry(const struct seen *s, const json_t *entry, bool shared, json_t *reader)
{
	json_t *shards = json_object_get(entry, "shards"), *file;
	size_t i;
	int bad = 0;
	if (shared && json_is_true(shards) && !json_array_size(json_object_get(entry, "unreadable")))
		return json_array_append(s->all, reader);
	for (int k = 0; json_is_true(shards) && k < s->manifest->shard_count; k++)
		bad |= add_reader(s, entry, shared, s->manifest->shards[k].file, reader);
	json_array_foreach(shards, i, file)
		bad |= add_reader(s, entry, shared, json_string_value(file), reader);
	return bad;
}

/* All nodes see the shared folder. It is the last resort, for shards that are in no node's own folder. */
static int add_readers(struct choice *c, json_t *found, json_t *readers, bool shared, struct hspmd_error *err)
{
	const char *node;
	json_t *checkpoints, *one;
	size_t i;
	json_object_foreach(found, node, checkpoints)
		json_array_foreach(checkpoints, i, one) {
			const char *location = json_string_value(json_object_get(one, "place"));
			bool from_shared = location && !strcmp(location, "shared");
			struct seen *s = entry_of(c, one);
			json_t *reader = json_object_get(readers, node);
			if (!s || !json_is_string(reader) || from_shared != shared)
				continue;
			s->durable |= !location || strcmp(location, "memory");
			if (add_entry(s, one, shared, reader))
				return hspmd_fail_memory(err, "choosing a checkpoint");
		}
	return 0;
}

/* What every node sees in the shared folder is not told of each: members read there what they need. Only who reads a root can plan so. */
static int join_readers(struct seen *s, json_t *readers)
{
	const char *file;
	size_t all = json_array_size(s->all);
	bool each = s->manifest->root && all == json_object_size(readers);
	for (int k = 0; all && k < s->manifest->shard_count; k++) {
		file = s->manifest->shards[k].file;
		if (json_object_get(s->own, file))
			continue;
		if (each && json_object_set_new(s->files, file, json_true()))
			return -1;
		for (size_t i = 0; !each && i < all; i++)
			if (add_reader(s, NULL, true, file, json_array_get(s->all, i)))
				return -1;
	}
	json_t *list;
	void *next;
	json_object_foreach_safe(s->files, next, file, list) if (s->manifest->root && !json_object_get(s->own, file) &&
	                                                         json_array_size(list) == json_object_size(readers) &&
	                                                         json_object_set_new(s->files, file, json_true())) return -1;
	return 0;
}

static int collect(struct choice *c, json_t *found, json_t *readers, struct hspmd_error *err)
{
	const char *node;
	json_t *checkpoints, *one;
	size_t i;
	json_object_foreach(found, node, checkpoints)
		json_array_foreach(checkpoints, i, one)
			if (json_object_get(one, "manifest") && see(c, json_object_get(one, "manifest"), err))
				return -1;
	if (add_readers(c, found, readers, false, err))
		return -1;
	for (size_t k = 0; k < c->count; k++)
		if (!(c->list[k].own = json_copy(c->list[k].files)))
			return hspmd_fail_memory(err, "choosing a checkpoint");
	if (add_readers(c, found, readers, true, err))
		return -1;
	for (size_t k = 0; k < c->count; k++)
		if (join_readers(&c->list[k], readers))
			return hspmd_fail_memory(err, "choosing a checkpoint");
	return 0;
}

static bool reachable(void *context, int manifest, const struct hspmd_shard *shard)
{
	const struct choice *c = context;
	return json_object_get(c->list[manifest].files, shard->file) != NULL;
}

int hspmd_checkpoint_choose(json_t *found, json_t *readers, const struct hspmd_root_check *check, struct hspmd_checkpoint_choice *choice,
                            struct hspmd_error *err)
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
		best = hspmd_manifest_choose(manifests, (int)c.count, reachable, &c, check, err);
	if (best >= 0) {
		choice->step = c.list[best].manifest->step;
		choice->manifest = json_incref(c.list[best].text);
		choice->files = json_incref(c.list[best].files);
		choice->durable = c.list[best].durable;
	}
	free(manifests);
	forget(&c);
	return best < 0 ? -1 : 0;
}
