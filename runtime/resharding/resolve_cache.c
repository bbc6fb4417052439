/* SPDX-License-Identifier: Apache-2.0 */
/* Answers by their arguments: an open hash table, at most half full. */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "common/alloc.h"
#include "runtime/resharding/transfer_internal.h"

struct entry {
	uint64_t hash;
	struct resolve_key key;
	struct hspmd_transfer *transfer; /* NULL: free */
};

struct hspmd_resolve_cache {
	size_t count, slots; /* slots: a power of two, or 0 */
	struct entry *entry;
};

/* ---- keys */

static int add(struct resolve_key *key, int64_t value)
{
	if (hspmd_array_grow(&key->value, &key->capacity, key->count, sizeof *key->value) != 0)
		return -1;
	key->value[key->count++] = value;
	return 0;
}

/* Parts, unit and weights of one cut; -1 if there are no weights, as no weight is negative. */
static int add_cut(struct resolve_key *key, int dim, int parts, int64_t unit, const int64_t *weights)
{
	int rc = add(key, dim) | add(key, parts) | add(key, unit) | (weights ? 0 : add(key, -1));
	for (int i = 0; weights && i < parts && rc == 0; i++)
		rc = add(key, weights[i]);
	return rc;
}

static int add_annotation(struct resolve_key *key, const struct hspmd_annotation *a)
{
	int rc = add_cut(key, a->hdim, a->hsize, a->hunit, a->hweights);
	for (int g = 0; g < a->hsize && rc == 0; g++) {
		const struct hspmd_subgroup *group = &a->groups[g];
		rc = add(key, group->device_count) | add(key, group->split_count);
		for (int i = 0; i < group->device_count && rc == 0; i++)
			rc = add(key, group->devices[i]);
		for (int s = 0; s < group->split_count && rc == 0; s++)
			rc = add_cut(key, group->splits[s].dim, group->splits[s].parts, group->splits[s].unit, group->splits[s].weights);
	}
	if (rc == 0)
		rc = add(key, a->rows ? a->rows->count : 0);
	if (rc == 0 && a->rows)
		rc = add(key, a->rows->per_token) | add_annotation(key, a->rows->experts);
	return rc;
}

int hspmd_resolve_key(struct resolve_key *key, const struct hspmd_shape *shape, size_t element_bytes, const struct hspmd_annotation *source,
                      const struct hspmd_annotation *destination)
{
	int rc = add(key, (int64_t)element_bytes) | add(key, shape->rank);
	for (int d = 0; d < shape->rank && rc == 0; d++)
		rc = add(key, shape->dim[d]);
	if (rc == 0 && add_annotation(key, source) == 0 && add_annotation(key, destination) == 0)
		return 0;
	free(key->value);
	*key = (struct resolve_key){ 0 };
	return -1;
}

static uint64_t hash(const struct resolve_key *key)
{
	return XXH3_64bits(key->value, key->count * sizeof *key->value);
}

/* ---- the table */

struct hspmd_resolve_cache *hspmd_resolve_cache_create(void)
{
	return hspmd_calloc(1, sizeof(struct hspmd_resolve_cache));
}

void hspmd_resolve_cache_clear(struct hspmd_resolve_cache *c)
{
	for (size_t i = 0; i < c->slots; i++) {
		hspmd_transfer_destroy(c->entry[i].transfer);
		free(c->entry[i].key.value);
	}
	free(c->entry);
	*c = (struct hspmd_resolve_cache){ 0 };
}

void hspmd_resolve_cache_destroy(struct hspmd_resolve_cache *c)
{
	if (!c)
		return;
	hspmd_resolve_cache_clear(c);
	free(c);
}

static struct entry *find(struct entry *entries, size_t slots, const struct resolve_key *key, uint64_t h)
{
	size_t at = h & (slots - 1);
	for (; entries[at].transfer; at = (at + 1) & (slots - 1)) {
		const struct entry *e = &entries[at];
		if (e->hash == h && e->key.count == key->count && memcmp(e->key.value, key->value, key->count * sizeof *key->value) == 0)
			break;
	}
	return &entries[at];
}

static int make_room(struct hspmd_resolve_cache *c)
{
	size_t slots = c->slots ? c->slots * 2 : 64;
	if (c->count * 2 < c->slots)
		return 0;
	struct entry *entries = hspmd_calloc(slots, sizeof *entries);
	if (!entries)
		return -1;
	for (size_t i = 0; i < c->slots; i++)
		if (c->entry[i].transfer)
			*find(entries, slots, &c->entry[i].key, c->entry[i].hash) = c->entry[i];
	free(c->entry);
	c->entry = entries;
	c->slots = slots;
	return 0;
}

struct hspmd_transfer *hspmd_resolve_cache_find(const struct hspmd_resolve_cache *c, const struct resolve_key *key)
{
	struct hspmd_transfer *t = c->slots ? find(c->entry, c->slots, key, hash(key))->transfer : NULL;
	if (t)
		t->refs++;
	return t;
}

void hspmd_resolve_cache_keep(struct hspmd_resolve_cache *c, struct resolve_key *key, struct hspmd_transfer *t)
{
	if (make_room(c) != 0)
		return;
	uint64_t h = hash(key);
	*find(c->entry, c->slots, key, h) = (struct entry){ .hash = h, .key = *key, .transfer = t };
	*key = (struct resolve_key){ 0 };
	t->refs++;
	c->count++;
}
