/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>
#include <xxhash.h>

#include "common/alloc.h"
#include "runtime/comm/direct_parts.h"

struct hspmd_direct_cache {
	pthread_mutex_t lock;
	struct kept_group *list;
};

struct hspmd_direct_cache *hspmd_direct_cache_create(void)
{
	struct hspmd_direct_cache *c = hspmd_calloc(1, sizeof *c);
	if (c)
		pthread_mutex_init(&c->lock, NULL);
	return c;
}

void hspmd_direct_cache_destroy(struct hspmd_direct_cache *c)
{
	if (!c)
		return;
	while (c->list) {
		struct kept_group *next = c->list->next;
		c->list->ops->close(c->list->group, true);
		free(c->list);
		c->list = next;
	}
	pthread_mutex_destroy(&c->lock);
	free(c);
}

uint64_t hspmd_direct_id_hash(const unsigned char *id)
{
	uint64_t h = XXH3_64bits(id, HSPMD_GROUP_ID_BYTES);
	return h ? h : 1;
}

uint64_t hspmd_direct_held(struct hspmd_direct_cache *c, uint64_t key)
{
	uint64_t made_of = 0;
	pthread_mutex_lock(&c->lock);
	for (struct kept_group *k = c->list; k && !made_of; k = k->next)
		if (k->key == key && k->group)
			made_of = k->made_of;
	pthread_mutex_unlock(&c->lock);
	return made_of;
}

struct kept_group *hspmd_direct_take(struct hspmd_direct_cache *c, uint64_t key, uint64_t made_of)
{
	pthread_mutex_lock(&c->lock);
	struct kept_group *k = c->list;
	while (k && (k->key != key || k->made_of != made_of || !k->group))
		k = k->next;
	if (k)
		k->users++;
	pthread_mutex_unlock(&c->lock);
	return k;
}

struct kept_group *hspmd_direct_make(struct hspmd_direct_cache *c, struct hspmd_device *dev, uint64_t key, const unsigned char *id, int rank, int size,
				     struct hspmd_error *err)
{
	struct kept_group *k = hspmd_calloc(1, sizeof *k);
	if (!k) {
		hspmd_fail_memory(err, "making a group");
		return NULL;
	}
	*k = (struct kept_group){ .key = key, .made_of = hspmd_direct_id_hash(id), .ops = dev->ops->groups, .users = 1 };
	if (k->ops->make(dev, id, rank, size, &k->group, err)) {
		free(k);
		return NULL;
	}
	pthread_mutex_lock(&c->lock);
	k->next = c->list;
	c->list = k;
	pthread_mutex_unlock(&c->lock);
	return k;
}

void hspmd_direct_give(struct hspmd_direct_cache *c, struct kept_group *k, bool used, bool broken)
{
	struct hspmd_group *group = NULL;
	pthread_mutex_lock(&c->lock);
	bool last = --k->users == 0;
	if ((broken && used) || last) {
		group = k->group;
		k->group = NULL; /* whoever shares it hears that it is gone */
	}
	if (last)
		for (struct kept_group **at = &c->list; *at; at = &(*at)->next)
			if (*at == k) {
				*at = k->next;
				break;
			}
	pthread_mutex_unlock(&c->lock);
	k->ops->close(group, broken || !used);
	if (last)
		free(k);
}
