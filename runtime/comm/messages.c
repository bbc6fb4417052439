/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/comm/comm_internal.h"

static int append(struct hspmd_pieces *p, const struct hspmd_box *box, int part, struct hspmd_error *err)
{
	if (hspmd_array_grow(&p->piece, &p->capacity, p->count, sizeof *p->piece))
		return hspmd_fail_memory(err, "cutting a box into messages");
	p->piece[p->count++] = (struct hspmd_piece){ *box, part };
	return 0;
}

/* Cut along the outermost dimension first, so that pieces are as contiguous as the box allows. */
static int cut(struct hspmd_pieces *p, const struct hspmd_box *box, int part, int64_t most, struct hspmd_error *err)
{
	int64_t elements = hspmd_box_elements(box);
	if (elements <= most)
		return elements ? append(p, box, part, err) : 0;
	int d = 0;
	while (box->hi[d] - box->lo[d] == 1)
		d++;
	int64_t row = elements / (box->hi[d] - box->lo[d]);
	int64_t rows = row < most ? most / row : 1;
	struct hspmd_box slab = *box;
	for (int64_t lo = box->lo[d]; lo < box->hi[d]; lo += rows) {
		slab.lo[d] = lo;
		slab.hi[d] = lo + rows < box->hi[d] ? lo + rows : box->hi[d];
		if (cut(p, &slab, part, most, err))
			return -1;
	}
	return 0;
}

int hspmd_pieces_add(struct hspmd_pieces *p, const struct hspmd_box *box, int part, size_t element_bytes, struct hspmd_error *err)
{
	return cut(p, box, part, (int64_t)(HSPMD_COMM_MESSAGE / element_bytes), err);
}

int hspmd_pieces_close(struct hspmd_pieces *p, size_t element_bytes, struct hspmd_error *err)
{
	size_t filled = 0;
	p->message_count = 0;
	for (size_t i = 0; i < p->count; i++) {
		size_t bytes = (size_t)hspmd_box_elements(&p->piece[i].box) * element_bytes;
		if (!p->message_count || filled + bytes > HSPMD_COMM_MESSAGE) {
			/* One more entry than there are messages: the end of the last one. */
			if (hspmd_array_grow(&p->first, &p->first_capacity, p->message_count + 1, sizeof *p->first) ||
			    hspmd_array_grow(&p->bytes, &p->bytes_capacity, p->message_count, sizeof *p->bytes))
				return hspmd_fail_memory(err, "cutting a box into messages");
			p->first[p->message_count] = i;
			p->bytes[p->message_count++] = 0;
			filled = 0;
		}
		filled += bytes;
		p->bytes[p->message_count - 1] = filled;
		p->first[p->message_count] = i + 1;
	}
	return 0;
}

int hspmd_pieces_of(struct hspmd_pieces *p, const struct hspmd_box *box, size_t element_bytes, struct hspmd_error *err)
{
	return hspmd_pieces_add(p, box, 0, element_bytes, err) || hspmd_pieces_close(p, element_bytes, err) ? -1 : 0;
}

void hspmd_pieces_free(struct hspmd_pieces *p)
{
	free(p->piece);
	free(p->first);
	free(p->bytes);
	memset(p, 0, sizeof *p);
}

char *hspmd_local_buffer_contiguous(const struct hspmd_local_buffer *part, const struct hspmd_box *box)
{
	return hspmd_box_contiguous(part->data, &part->box, box, part->element_bytes);
}

char *hspmd_pieces_in_place(const struct hspmd_pieces *p, size_t m, const struct hspmd_local_buffer *part)
{
	const struct hspmd_piece *only = &p->piece[p->first[m]];
	if (!part->on_host || p->first[m + 1] - p->first[m] != 1)
		return NULL;
	return hspmd_local_buffer_contiguous(&part[only->part], &only->box);
}

int hspmd_comm_need_device_scratch(struct hspmd_comm *c, size_t bytes, struct hspmd_error *err)
{
	if (bytes <= c->device_scratch_bytes)
		return 0;
	void *grown = c->dev->ops->allocate(c->dev, bytes, err);
	if (!grown)
		return -1;
	if (c->device_scratch)
		c->dev->ops->release(c->dev, c->device_scratch);
	c->device_scratch = grown;
	c->device_scratch_bytes = bytes;
	return 0;
}

int hspmd_local_buffer_pack(struct hspmd_comm *c, const struct hspmd_local_buffer *part, const struct hspmd_box *box, void *host,
                            struct hspmd_error *err)
{
	const struct hspmd_device_ops *ops = c->dev->ops;
	size_t bytes = (size_t)hspmd_box_elements(box) * part->element_bytes;
	if (part->on_host)
		return ops->copy_box(c->dev, host, box, part->data, &part->box, box, part->dtype, false, err);
	const char *at = hspmd_local_buffer_contiguous(part, box);
	if (at)
		return ops->to_host(c->dev, host, at, bytes, err);
	if (hspmd_comm_need_device_scratch(c, bytes, err) ||
	    ops->copy_box(c->dev, c->device_scratch, box, part->data, &part->box, box, part->dtype, false, err))
		return -1;
	return ops->to_host(c->dev, host, c->device_scratch, bytes, err);
}

int hspmd_local_buffer_unpack(struct hspmd_comm *c, const struct hspmd_local_buffer *part, const struct hspmd_box *box, const void *host,
                              bool add, struct hspmd_error *err)
{
	const struct hspmd_device_ops *ops = c->dev->ops;
	size_t bytes = (size_t)hspmd_box_elements(box) * part->element_bytes;
	if (part->on_host)
		return ops->copy_box(c->dev, part->data, &part->box, host, box, box, part->dtype, add, err);
	char *at = add ? NULL : hspmd_local_buffer_contiguous(part, box);
	if (at)
		return ops->to_device(c->dev, at, host, bytes, err);
	if (hspmd_comm_need_device_scratch(c, bytes, err) || ops->to_device(c->dev, c->device_scratch, host, bytes, err))
		return -1;
	return ops->copy_box(c->dev, part->data, &part->box, c->device_scratch, box, box, part->dtype, add, err);
}

int hspmd_pieces_pack(struct hspmd_comm *c, const struct hspmd_pieces *p, size_t m, const struct hspmd_local_buffer *part, void *host,
                      struct hspmd_error *err)
{
	char *at = host;
	for (size_t i = p->first[m]; i < p->first[m + 1]; i++) {
		if (hspmd_local_buffer_pack(c, &part[p->piece[i].part], &p->piece[i].box, at, err))
			return -1;
		at += (size_t)hspmd_box_elements(&p->piece[i].box) * part->element_bytes;
	}
	return 0;
}

int hspmd_pieces_unpack(struct hspmd_comm *c, const struct hspmd_pieces *p, size_t m, const struct hspmd_local_buffer *part,
                        const void *host, bool add, struct hspmd_error *err)
{
	const char *at = host;
	for (size_t i = p->first[m]; i < p->first[m + 1]; i++) {
		if (hspmd_local_buffer_unpack(c, &part[p->piece[i].part], &p->piece[i].box, at, add, err))
			return -1;
		at += (size_t)hspmd_box_elements(&p->piece[i].box) * part->element_bytes;
	}
	return 0;
}

int hspmd_comm_send_pieces(struct hspmd_comm *c, const struct hspmd_pieces *p, const struct hspmd_local_buffer *part, int device,
                           uint64_t tag, struct hspmd_error *err)
{
	int rv = 0;
	for (size_t m = 0; !rv && m < p->message_count; m++) {
		const char *data = hspmd_pieces_in_place(p, m, part);
		struct hspmd_scratch *s = NULL;
		if (!data) {
			s = hspmd_comm_scratch_acquire(c, p->bytes[m], err);
			rv = s ? hspmd_pieces_pack(c, p, m, part, s->data, err) : -1;
			data = s ? s->data : NULL;
		}
		if (!rv)
			rv = hspmd_comm_send(c, device, tag, data, p->bytes[m], s, err);
		hspmd_comm_scratch_release(s);
	}
	return rv;
}
