/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>
#include <xxhash.h>

#include "common/alloc.h"
#include "runtime/comm/devcomm_internal.h"

struct hspmd_communicator_cache {
	pthread_mutex_t lock;
	struct cached_communicator *list;
};

struct hspmd_communicator_cache *hspmd_communicator_cache_create(void)
{
	struct hspmd_communicator_cache *c = hspmd_calloc(1, sizeof *c);
	if (c)
		pthread_mutex_init(&c->lock, NULL);
	return c;
}

void hspmd_communicator_cache_destroy(struct hspmd_communicator_cache *c)
{
	if (!c)
		return;
	while (c->list) {
		struct cached_communicator *next = c->list->next;
		c->list->ops->close(c->list->group, true);
		free(c->list);
		c->list = next;
	}
	pthread_mutex_destroy(&c->lock);
	free(c);
}

uint64_t hspmd_communicator_id_hash(const unsigned char *id)
{
	uint64_t h = XXH3_64bits(id, HSPMD_COMMUNICATOR_ID_BYTES);
	return h ? h : 1;
}

uint64_t hspmd_communicator_cached_origin(struct hspmd_communicator_cache *c, uint64_t key)
{
	uint64_t origin = 0;
	pthread_mutex_lock(&c->lock);
	for (struct cached_communicator *k = c->list; k && !origin; k = k->next)
		if (k->key == key && k->group)
			origin = k->origin;
	pthread_mutex_unlock(&c->lock);
	return origin;
}

struct cached_communicator *hspmd_communicator_acquire(struct hspmd_communicator_cache *c, uint64_t key, uint64_t origin)
{
	pthread_mutex_lock(&c->lock);
	struct cached_communicator *k = c->list;
	while (k && (k->key != key || k->origin != origin || !k->group))
		k = k->next;
	if (k)
		k->users++;
	pthread_mutex_unlock(&c->lock);
	return k;
}

struct cached_communicator *hspmd_communicator_create(struct hspmd_communicator_cache *c, struct hspmd_device *dev, uint64_t key,
                                                      const unsigned char *id, int rank, int size, struct hspmd_error *err)
{
	struct cached_communicator *k = hspmd_calloc(1, sizeof *k);
	if (!k) {
		hspmd_fail_memory(err, "making a group");
		return NULL;
	}
	*k = (struct cached_communicator){
		.key = key, .origin = hspmd_communicator_id_hash(id), .ops = dev->ops->communicators, .users = 1
	};
	if (k->ops->init(dev, id, rank, size, &k->group, err)) {
		free(k);
		return NULL;
	}
	pthread_mutex_lock(&c->lock);
	k->next = c->list;
	c->list = k;
	pthread_mutex_unlock(&c->lock);
	return k;
}

void hspmd_communicator_release(struct hspmd_communicator_cache *c, struct cached_communicator *k, bool used, bool broken)
{
	struct hspmd_communicator *group = NULL;
	pthread_mutex_lock(&c->lock);
	bool last = --k->users == 0;
	if ((broken && used) || last) {
		group = k->group;
		k->group = NULL; /* tells the other users that it is aborted */
	}
	if (last)
		for (struct cached_communicator **at = &c->list; *at; at = &(*at)->next)
			if (*at == k) {
				*at = k->next;
				break;
			}
	pthread_mutex_unlock(&c->lock);
	k->ops->close(group, broken || !used);
	if (last)
		free(k);
}
