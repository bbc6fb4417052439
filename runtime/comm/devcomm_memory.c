/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of device-to-device communication: buffers on the device, and the memory of callers that calls in progress read or write. */
#include <stdlib.h>

#include "common/alloc.h"
#include "runtime/comm/devcomm_internal.h"

#define ALIGN 64

/* ---- memory on the device */

struct devcomm_buffer *hspmd_devcomm_buffer(struct hspmd_devcomm *d, size_t bytes, const struct cached_communicator *writer,
                                            struct hspmd_error *err)
{
	struct devcomm_buffer *best = NULL;
	for (struct devcomm_buffer *b = d->buffers; b; b = b->next)
		if (!b->used && b->size >= bytes && (!best || b->size < best->size))
			best = b;
	/* A buffer many times too large is kept for the data that it was made for. */
	if (!best || best->size / 4 > bytes + 65536) {
		struct devcomm_buffer *b = hspmd_calloc(1, sizeof *b);
		if (!b) {
			hspmd_fail_memory(err, "communicating");
			return NULL;
		}
		b->size = bytes < ALIGN ? ALIGN : bytes;
		b->data = d->o.device->ops->allocate(d->o.device, b->size, err);
		if (!b->data) {
			free(b);
			return NULL;
		}
		b->next = d->buffers;
		d->buffers = best = b;
	}
	if (best->group && best->group != writer && best->group->group &&
	    best->group->ops->stream_wait(best->group->group, best->ticket, err))
		return NULL;
	best->group = NULL;
	best->used = true;
	return best;
}

void hspmd_devcomm_buffer_release(struct devcomm_buffer *b, struct cached_communicator *group, uint64_t ticket)
{
	if (!b)
		return;
	b->used = false;
	b->group = group;
	b->ticket = ticket;
}

/* ---- the callers' memory */

int hspmd_devcomm_note_use(struct hspmd_devcomm *d, struct cached_communicator *group, const void *data, size_t bytes, uint64_t ticket,
                           struct hspmd_error *err)
{
	if (hspmd_array_grow(&d->spans, &d->span_capacity, d->span_count, sizeof *d->spans))
		return hspmd_fail_memory(err, "communicating");
	d->spans[d->span_count++] = (struct devcomm_span){ data, bytes, group, ticket };
	return 0;
}

int hspmd_devcomm_stream_wait(struct hspmd_devcomm *d, const void *data, size_t bytes, struct hspmd_error *err)
{
	const char *from = data;
	size_t left = 0;
	int rv = 0;
	for (size_t i = 0; i < d->span_count; i++) {
		struct devcomm_span *s = &d->spans[i];
		bool wanted = !data || (s->data < from + bytes && from < s->data + s->bytes);
		if (rv || !wanted)
			d->spans[left++] = *s;
		else if (s->group->group)
			rv = s->group->ops->stream_wait(s->group->group, s->ticket, err);
	}
	d->span_count = left;
	return rv;
}
