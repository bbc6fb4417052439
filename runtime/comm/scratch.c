/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/comm/devcomm_internal.h"

#define ALIGN 64
#define SMALLEST 4096

size_t hspmd_comm_scratch_size(size_t bytes)
{
	size_t size = SMALLEST;
	while (size < bytes)
		size *= 2;
	/* Above the size of a message, doubling wastes too much. */
	return size > HSPMD_COMM_MESSAGE ? (bytes + HSPMD_COMM_MESSAGE - 1) / HSPMD_COMM_MESSAGE * HSPMD_COMM_MESSAGE : size;
}

struct hspmd_scratch *hspmd_comm_scratch_acquire(struct hspmd_comm *c, size_t bytes, struct hspmd_error *err)
{
	struct hspmd_scratch *best = NULL;
	for (struct hspmd_scratch *s = c->pool; s; s = s->next)
		if (!s->users && s->size >= bytes && (!best || s->size < best->size))
			best = s;
	/* A buffer many times too large is kept for the message that it was made for. */
	if (!best || best->size / 4 > bytes + SMALLEST) {
		size_t size = hspmd_comm_scratch_size(bytes);
		struct hspmd_scratch *s = size < bytes ? NULL : aligned_alloc(ALIGN, 2 * ALIGN + size);
		if (!s) {
			hspmd_fail_memory(err, "making room for a message");
			return NULL;
		}
		_Static_assert(sizeof *s <= 2 * ALIGN, "the head fits before the data");
		*s = (struct hspmd_scratch){ .next = c->pool, .size = size, .data = (char *)s + 2 * ALIGN };
		c->pool = best = s;
	}
	best->users = 1;
	return best;
}

void hspmd_comm_scratch_release(struct hspmd_scratch *s)
{
	if (s)
		s->users--;
}

/* Release sends that are done. */
static int collect(struct hspmd_comm *c, struct hspmd_error *err)
{
	size_t left = 0;
	int rv = 0;
	for (size_t i = 0; i < c->pending_count; i++) {
		struct pending_send *p = &c->pending[i];
		struct hspmd_request was = *p->request;
		int done = rv ? 0 : c->transport->ops->test(c->transport, p->request, err);
		if (!done) {
			c->pending[left++] = *p;
			continue;
		}
		if (done < 0) {
			char peer[80];
			rv = hspmd_error_prefix(err, "to %s", hspmd_transport_peer(c->transport, was.peer, peer, sizeof peer));
			continue; /* its buffer keeps its user: the transport may still read it */
		}
		hspmd_comm_scratch_release(p->scratch);
	}
	c->pending_count = left;
	return rv;
}

int hspmd_comm_send(struct hspmd_comm *c, int device, uint64_t tag, const void *data, size_t bytes, struct hspmd_scratch *scratch,
                    struct hspmd_error *err)
{
	/* Testing all sends at every new one would be quadratic; a few dozen may accumulate. */
	if (c->pending_count >= 64 && !(c->pending_count & 31) && collect(c, err))
		return -1;
	if (hspmd_array_grow(&c->pending, &c->pending_capacity, c->pending_count, sizeof *c->pending))
		return hspmd_fail_memory(err, "starting a message");
	struct pending_send *p = &c->pending[c->pending_count];
	*p = (struct pending_send){ .scratch = scratch, .data = scratch ? NULL : data, .bytes = bytes };
	if (c->transport->ops->send(c->transport, c->rank_of[device], tag, data, bytes, &p->request, err))
		return -1;
	atomic_fetch_add_explicit(&c->sent_bytes, bytes, memory_order_relaxed);
	if (scratch)
		scratch->users++;
	c->pending_count++;
	return 0;
}

int hspmd_comm_send_tracked(struct hspmd_comm *c, int device, uint64_t tag, const void *data, size_t bytes, struct hspmd_request **r,
                            struct hspmd_error *err)
{
	if (c->transport->ops->send(c->transport, c->rank_of[device], tag, data, bytes, r, err))
		return -1;
	atomic_fetch_add_explicit(&c->sent_bytes, bytes, memory_order_relaxed);
	return 0;
}

int hspmd_comm_receive(struct hspmd_comm *c, int device, uint64_t tag, void *data, size_t bytes, struct hspmd_request **r,
                       struct hspmd_error *err)
{
	return c->transport->ops->receive(c->transport, c->rank_of[device], tag, data, bytes, r, err);
}

int hspmd_comm_poll(struct hspmd_comm *c, bool *sending, struct hspmd_error *err)
{
	if (c->pending_count || c->early) {
		c->transport->ops->progress(c->transport);
		if (collect(c, err))
			return -1;
	}
	*sending = c->pending_count > 0;
	return *sending || c->early;
}

int hspmd_comm_stream_wait(struct hspmd_comm *c, const void *data, size_t bytes, struct hspmd_error *err)
{
	return c->devcomm ? hspmd_devcomm_stream_wait(c->devcomm, data, bytes, err) : 0;
}

int hspmd_comm_flush(struct hspmd_comm *c, const void *data, size_t bytes, struct hspmd_error *err)
{
	const char *from = data;
	if (hspmd_comm_stream_wait(c, data, bytes, err))
		return -1;
	if (!c->pending_count)
		return 0;
	c->transport->ops->progress(c->transport);
	if (collect(c, err))
		return -1;
	size_t left = 0;
	int rv = 0;
	for (size_t i = 0; i < c->pending_count; i++) {
		struct pending_send *p = &c->pending[i];
		bool wanted = !data || (p->data && p->data < from + bytes && from < p->data + p->bytes);
		if (rv || !wanted) {
			c->pending[left++] = *p;
			continue;
		}
		rv = hspmd_transport_wait(c->transport, &p->request, 1, err);
		if (rv && p->request)
			c->pending[left++] = *p;
		else if (!rv)
			hspmd_comm_scratch_release(p->scratch);
	}
	c->pending_count = left;
	return rv;
}
