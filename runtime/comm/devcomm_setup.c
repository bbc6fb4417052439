/* SPDX-License-Identifier: Apache-2.0 */
/* Members find out which groups they have in common, and create their communicators. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "runtime/comm/devcomm_internal.h"

/* The announcement to the other members, in the byte order of the machine; a peer with another byte order has a wrong `magic`. */
#define MAGIC UINT64_C(0x6873706d64646972)

struct head {
	uint64_t magic, device_id, count;
	char kind[HSPMD_COMMUNICATOR_KIND_BYTES];
};

struct entry {
	uint64_t key, order, held;
	unsigned char id[HSPMD_COMMUNICATOR_ID_BYTES];
};

int hspmd_devcomm_address(const struct hspmd_devcomm *d, struct hspmd_address *own, struct hspmd_error *err)
{
	size_t count = d ? d->group_count : 0;
	struct head *head = hspmd_calloc(1, sizeof *head + count * sizeof(struct entry));
	if (!head)
		return hspmd_fail_memory(err, "making an address");
	head->magic = MAGIC;
	head->count = count;
	if (d) {
		head->device_id = d->device_id;
		memcpy(head->kind, d->kind, sizeof head->kind);
	}
	struct entry *e = (struct entry *)(head + 1);
	for (size_t i = 0; i < count; i++) {
		const struct devcomm_group *g = &d->groups[i];
		e[i] = (struct entry){ .key = g->key, .order = g->order, .held = hspmd_communicator_cached_origin(d->o.cache, g->key) };
		memcpy(e[i].id, g->id, sizeof e[i].id);
	}
	*own = (struct hspmd_address){ head, sizeof *head + count * sizeof *e };
	return 0;
}

/* ---- agreement */

/* Addresses may be unaligned, so they are copied. False: not an announcement. */
static bool read_head(const struct hspmd_address *a, struct head *head)
{
	if (a->size < sizeof *head)
		return false;
	memcpy(head, a->data, sizeof *head);
	return head->magic == MAGIC && head->count <= (a->size - sizeof *head) / sizeof(struct entry);
}

static bool find_entry(const struct hspmd_address *a, const struct head *head, uint64_t key, struct entry *e)
{
	for (uint64_t i = 0; i < head->count; i++) {
		memcpy(e, (const char *)a->data + sizeof *head + i * sizeof *e, sizeof *e);
		if (e->key == key)
			return true;
	}
	return false;
}

/* Returns true if all members of a group can use it. Sets where its communicator comes from: *held if it exists already, otherwise id. */
static bool agree(const struct hspmd_devcomm *d, const struct devcomm_group *g, const struct hspmd_address *addresses, uint64_t *held,
                  unsigned char id[HSPMD_COMMUNICATOR_ID_BYTES])
{
	static const unsigned char none[HSPMD_COMMUNICATOR_ID_BYTES];
	bool named = false;
	for (int i = 0; i < g->count; i++) {
		const struct hspmd_address *a = &addresses[g->ranks[i]];
		struct head head, other;
		struct entry e;
		if (!read_head(a, &head) || memcmp(head.kind, d->kind, sizeof d->kind) || !find_entry(a, &head, g->key, &e) ||
		    e.order != g->order)
			return false;
		*held = !i || *held == e.held ? e.held : 0;
		if (memcmp(e.id, none, sizeof none)) {
			memcpy(id, e.id, sizeof none);
			named = true;
		}
		for (int k = 0; k < i; k++)
			if (!read_head(&addresses[g->ranks[k]], &other) || other.device_id == head.device_id)
				return false;
	}
	return *held || named;
}

int hspmd_devcomm_preconnect(struct hspmd_devcomm *d, const struct hspmd_address *addresses, struct hspmd_error *err)
{
	if (d->met)
		return 0;
	for (size_t i = 0; i < d->group_count; i++) {
		struct devcomm_group *g = &d->groups[i];
		uint64_t held = 0;
		unsigned char id[HSPMD_COMMUNICATOR_ID_BYTES];
		if (!agree(d, g, addresses, &held, id))
			continue;
		/* Members abort groups together: if it no longer exists here, it exists for no member. */
		if (held && !(g->made = hspmd_communicator_acquire(d->o.cache, g->key, held)))
			return hspmd_fail(err, "the communicator of %d devices was aborted after this generation was prepared", g->count);
		if (!held && !(g->made = hspmd_communicator_create(d->o.cache, d->o.device, g->key, id, g->self, g->count, err)))
			return -1;
	}
	d->met = true;
	return 0;
}

int hspmd_devcomm_preconnected(struct hspmd_devcomm *d, struct hspmd_error *err)
{
	for (size_t i = 0; i < d->group_count; i++) {
		struct cached_communicator *made = d->groups[i].made;
		if (made && !made->group)
			return hspmd_fail(err, "a communicator was aborted");
		int rv = made ? made->ops->init_poll(made->group, err) : 1;
		if (rv != 1)
			return rv;
	}
	return 1;
}

static int connect_pair(const struct devcomm_group *g, char *memory, struct hspmd_error *err)
{
	const struct hspmd_communicator_ops *ops = g->made->ops;
	struct hspmd_communicator *group = g->made->group;
	uint64_t ticket;
	if (ops->begin(group, err) ||
	    (g->self == 0 ? ops->send(group, 1, memory, 1, HSPMD_F32, err) : ops->receive(group, 0, memory + 32, 1, HSPMD_F32, err)) ||
	    ops->end(group, &ticket, err))
		return -1;
	return ops->stream_wait(group, ticket, err);
}

/* A connection is built when both ends first use it. So all pairs connect now, in an order that is the same for all members, so that
 * there is no circular wait. */
static int connect_pairs(struct hspmd_devcomm *d, struct hspmd_error *err)
{
	struct devcomm_buffer *b = hspmd_devcomm_buffer(d, 64, NULL, err);
	int rv = b ? d->o.device->ops->zero(d->o.device, b->data, 64, err) : -1;
	struct devcomm_group *last = NULL;
	for (size_t turn = 0; !rv && turn < d->group_count; turn++) {
		struct devcomm_group *next = NULL;
		for (size_t i = 0; i < d->group_count; i++) {
			struct devcomm_group *g = &d->groups[i];
			if ((!last || g->key > last->key) && (!next || g->key < next->key))
				next = g;
		}
		last = next;
		if (next && next->pair && next->made)
			rv = connect_pair(next, b->data, err);
	}
	hspmd_devcomm_buffer_release(b, NULL, 0);
	return rv ? -1 : d->o.device->ops->synchronise(d->o.device, err);
}

int hspmd_devcomm_wait_ready(struct hspmd_devcomm *d, struct hspmd_error *err)
{
	struct hspmd_communicator_watch watch = { d->o.abort, d->o.timeout_s };
	double until = hspmd_now() + d->o.timeout_s;
	d->o.device->ops->communicators->watch(d->o.device, &watch);
	d->watched = true;
	for (;;) {
		int made = hspmd_devcomm_preconnected(d, err);
		if (made < 0)
			return -1;
		if (made)
			break;
		if (d->o.abort && atomic_load(d->o.abort))
			return hspmd_fail(err, "aborted while communicators were created");
		if (hspmd_now() > until)
			return hspmd_fail(err, "waited %.3g s for communicators to be created", d->o.timeout_s);
		nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
	}
	return connect_pairs(d, err);
}
