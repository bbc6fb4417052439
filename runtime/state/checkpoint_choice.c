/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/checkpoint_choice.h"

#include <inttypes.h>
#include <stdio.h>
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

/* One checkpoint that somebody has named, and who can read which of its shards. Agents may name several of one step: after a controller had
 * died while it committed one, its successor may have written another one of the same shards. */
struct named {
	const char *sum; /* of its manifest; borrowed */
	int64_t step, generation;
	int nodes; /* that have the manifest */
	struct hspmd_manifest *manifest;
	json_t *files; /* { shard: [addresses], or true } as in `start` */
	json_t *own;   /* those of these shards that are in a node's own folder */
	json_t *all;   /* the readers of all shards in the shared folder, which are not in `files` */
	bool durable;  /* on disk, not in memory only */
};

struct choice {
	struct named *list;
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

static int64_t integer_of(const json_t *entry, const char *key)
{
	return json_integer_value(json_object_get(entry, key));
}

static int add_name(struct choice *c, const json_t *entry)
{
	const char *sum = json_string_value(json_object_get(entry, "sum"));
	size_t i = 0;
	if (!sum || strlen(sum) != HSPMD_MANIFEST_SUM - 1)
		return 0;
	while (i < c->count && strcmp(c->list[i].sum, sum) != 0)
		i++;
	if (i == c->count) {
		if (hspmd_array_grow(&c->list, &c->capacity, c->count, sizeof *c->list))
			return -1;
		c->list[c->count++] =
		        (struct named){ .sum = sum, .step = integer_of(entry, "step"), .generation = integer_of(entry, "generation") };
	}
	c->list[i].nodes++;
	return 0;
}

/* The newest first; of one step and generation, that which most nodes have. */
static int by_age(const void *a, const void *b)
{
	const struct named *x = a, *y = b;
	if (x->step != y->step)
		return x->step > y->step ? -1 : 1;
	if (x->generation != y->generation)
		return x->generation > y->generation ? -1 : 1;
	return x->nodes != y->nodes ? y->nodes - x->nodes : strcmp(x->sum, y->sum);
}

static int list_names(struct choice *c, json_t *found, struct hspmd_error *err)
{
	const char *node;
	json_t *checkpoints, *one;
	size_t i;
	json_object_foreach(found, node, checkpoints)
		json_array_foreach(checkpoints, i, one)
			if (add_name(c, one))
				return hspmd_fail_memory(err, "choosing a checkpoint");
	if (c->count)
		qsort(c->list, c->count, sizeof *c->list, by_age);
	return 0;
}

/* ---- who reads what */

/* The node of an entry could not read this file when it was of that manifest. */
static bool is_unreadable(const json_t *entry, const char *file, const char *sum)
{
	const json_t *list = json_object_get(entry, "unreadable");
	for (size_t i = 0; i < json_array_size(list); i++) {
		const char *bad = json_string_value(json_array_get(json_array_get(list, i), 0)),
		           *of = json_string_value(json_array_get(json_array_get(list, i), 1));
		if (bad && of && !strcmp(bad, file) && !strcmp(of, sum))
			return true;
	}
	return false;
}

/* The node of an entry has this file. */
static int add_reader(const struct named *s, const json_t *entry, bool shared, const char *file, json_t *reader)
{
	json_t *list = json_object_get(s->files, file);
	if (!file || (shared && json_object_get(s->own, file)) || is_unreadable(entry, file, s->sum))
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

static int add_entry(const struct named *s, const json_t *entry, bool shared, json_t *reader)
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
static int add_readers(struct named *s, json_t *found, json_t *readers, bool shared)
{
	const char *node;
	json_t *checkpoints, *one;
	size_t i;
	json_object_foreach(found, node, checkpoints)
		json_array_foreach(checkpoints, i, one) {
			const char *location = json_string_value(json_object_get(one, "place"));
			bool from_shared = location && !strcmp(location, "shared");
			json_t *reader = json_object_get(readers, node);
			if (integer_of(one, "step") != s->step || integer_of(one, "generation") != s->generation ||
			    !json_is_string(reader) || from_shared != shared)
				continue;
			s->durable |= !location || strcmp(location, "memory");
			if (add_entry(s, one, shared, reader))
				return -1;
		}
	return 0;
}

/* What every node sees in the shared folder is not told of each: members read there what they need. Only who reads a root can plan so. */
static int join_readers(struct named *s, json_t *readers)
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

static int find_readers(struct named *s, json_t *found, json_t *readers)
{
	if (!(s->files = json_object()) || !(s->all = json_array()) || add_readers(s, found, readers, false) ||
	    !(s->own = json_copy(s->files)) || add_readers(s, found, readers, true))
		return -1;
	return join_readers(s, readers);
}

/* ---- the choice */

static bool reachable(void *context, const struct hspmd_shard *shard)
{
	const struct named *s = context;
	return json_object_get(s->files, shard->file) != NULL;
}

/* 0: all of it can be read; -1 and err: not so. */
static int try_one(struct named *s, json_t *text, json_t *found, json_t *readers, const struct hspmd_root_check *check,
                   struct hspmd_error *err)
{
	if (json_is_null(text))
		return hspmd_fail(err, "no node that has its manifest could send it");
	s->manifest = hspmd_manifest_from_json(text, "manifest", err);
	if (!s->manifest)
		return -1;
	if (s->manifest->step != s->step || s->manifest->generation != s->generation)
		return hspmd_fail(err, "its manifest is of step %" PRId64 ", generation %" PRId64, s->manifest->step,
		                  s->manifest->generation);
	if (find_readers(s, found, readers))
		return hspmd_fail_memory(err, "choosing a checkpoint");
	return hspmd_manifest_covered(s->manifest, reachable, s, check, err);
}

int hspmd_checkpoint_choose(json_t *found, json_t *manifests, json_t *readers, const struct hspmd_root_check *check,
                            struct hspmd_checkpoint_choice *choice, struct hspmd_error *err)
{
	struct choice c = { 0 };
	int rc = list_names(&c, found, err);
	if (!rc && !c.count)
		hspmd_fail(err, "no checkpoint was found");
	*choice = (struct hspmd_checkpoint_choice){ 0 };
	for (size_t i = 0; !rc && i < c.count; i++) {
		struct named *s = &c.list[i];
		struct hspmd_error why;
		json_t *text = json_object_get(manifests, s->sum);
		snprintf(choice->sum, sizeof choice->sum, "%s", s->sum);
		choice->step = s->step;
		if (text && try_one(s, text, found, readers, check, &why)) {
			if (!i) { /* users need to know what the newest checkpoint lacks */
				*err = why;
				hspmd_error_prefix(err, "step %" PRId64, s->step);
			}
			continue;
		}
		choice->manifest = json_incref(text);
		choice->files = json_incref(s->files);
		choice->durable = s->durable;
		forget(&c);
		return text ? 0 : 1;
	}
	forget(&c);
	return -1;
}

int hspmd_manifest_is(const json_t *manifest, const char *sum, struct hspmd_error *err)
{
	char its[HSPMD_MANIFEST_SUM];
	struct hspmd_manifest *m = hspmd_manifest_from_json(manifest, "manifest", err);
	if (!m)
		return -1;
	hspmd_manifest_destroy(m);
	if (hspmd_manifest_sum(manifest, its, err))
		return -1;
	return strcmp(its, sum) ? hspmd_fail(err, "it is another manifest (%s) than the one that was named (%s)", its, sum) : 0;
}
