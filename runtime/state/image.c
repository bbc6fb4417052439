/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "common/alloc.h"
#include "runtime/state/state_internal.h"
#include "runtime/weights/safetensors.h"

/* The extents as JSON text, with the checksums known so far. */
static char *extents_text(const struct hspmd_image *im)
{
	json_t *list = json_array();
	int bad = !list;
	size_t block = 0;
	for (size_t i = 0; i < im->extent_count && !bad; i++) {
		size_t count = hspmd_block_count(im->extents[i].bytes);
		char *sums = malloc(16 * count + 1);
		for (size_t b = 0; sums && b < count; b++)
			hspmd_checksum_text(im->blocks[block + b], sums + 16 * b);
		block += count;
		json_t *o = hspmd_extent_part_json(&im->extents[i]);
		bad |= !sums || json_object_set_new(o, "blocks", json_string(sums));
		bad |= json_array_append_new(list, o);
		free(sums);
	}
	char *text = bad ? NULL : json_dumps(list, JSON_COMPACT);
	json_decref(list);
	return text;
}

/* The header with the checksums known so far; its length does not depend on them. */
static char *make_head(const struct hspmd_image *im, size_t *bytes, struct hspmd_error *err)
{
	struct hspmd_safetensor *t = hspmd_calloc(im->extent_count, sizeof *t);
	char *text = extents_text(im), *head = NULL;
	json_t *metadata = text ? json_pack("{s:s, s:s}", "format", HSPMD_SHARD_FORMAT, "extents", text) : NULL;
	bool named = t && metadata;
	uint64_t at = 0;
	for (size_t i = 0; named && i < im->extent_count; i++) {
		const struct hspmd_extent *e = &im->extents[i];
		char box[256];
		t[i].name = hspmd_asprintf("%s/%s%s", hspmd_state_kind_names[e->kind], e->tensor, hspmd_box_text(&e->box, box, sizeof box));
		named = t[i].name != NULL;
		snprintf(t[i].dtype, sizeof t[i].dtype, "%s", hspmd_dtype_names[e->dtype]);
		t[i].shape.rank = e->box.rank;
		for (int d = 0; d < e->box.rank; d++)
			t[i].shape.dim[d] = e->box.hi[d] - e->box.lo[d];
		t[i].offset = at;
		t[i].bytes = e->bytes;
		at += e->bytes;
	}
	if (named)
		head = hspmd_safetensors_header(t, im->extent_count, metadata, HSPMD_IMAGE_ALIGN, bytes, err);
	else
		hspmd_fail_memory(err, "describing a shard");
	for (size_t i = 0; t && i < im->extent_count; i++)
		free(t[i].name);
	free(t);
	free(text);
	json_decref(metadata);
	return head;
}

static int list_extents(struct hspmd_image *im, const struct hspmd_state_slice *slices, size_t count, struct hspmd_error *err)
{
	hspmd_extents_free(im->extents, im->extent_count);
	im->extent_count = 0;
	im->block_count = 0;
	im->extents = hspmd_calloc(count, sizeof *im->extents);
	if (!im->extents)
		return hspmd_fail_memory(err, "describing a shard");
	for (size_t i = 0; i < count; i++) {
		const struct hspmd_state_slice *s = &slices[i];
		struct hspmd_extent *e = &im->extents[im->extent_count++];
		*e = (struct hspmd_extent){
			.tensor = strdup(s->tensor), .kind = s->kind, .dtype = s->dtype, .shape = s->shape, .box = s->box
		};
		if (!e->tensor)
			return hspmd_fail_memory(err, "describing a shard");
		if (s->box.rank != s->shape.rank || hspmd_box_empty(&s->box))
			return hspmd_fail(err, "checkpoint: an empty part of %s", s->tensor);
		e->bytes = (uint64_t)hspmd_box_elements(&s->box) * hspmd_dtype_bytes(s->dtype);
		im->block_count += hspmd_block_count(e->bytes);
	}
	free(im->blocks);
	im->blocks = hspmd_calloc(im->block_count, sizeof *im->blocks);
	return im->blocks ? 0 : hspmd_fail_memory(err, "describing a shard");
}

int hspmd_image_layout(struct hspmd_image *im, const struct hspmd_state_slice *slices, size_t count, struct hspmd_error *err)
{
	im->bytes = 0;
	if (list_extents(im, slices, count, err))
		return -1;
	char *head = make_head(im, &im->header_bytes, err);
	if (!head)
		return -1;
	free(head);
	uint64_t bytes = im->header_bytes;
	for (size_t i = 0; i < count; i++) {
		im->extents[i].offset = bytes;
		bytes += im->extents[i].bytes;
	}
	/* In huge pages: the first copy into new memory delays training, mostly by page faults. */
	const size_t huge = 2u << 20, align = bytes > huge ? huge : HSPMD_IMAGE_ALIGN;
	size_t room = (bytes + align - 1) / align * align;
	if (room > im->capacity) {
		free(im->data);
		im->capacity = 0;
		im->data = aligned_alloc(align, room);
		if (!im->data)
			return hspmd_fail(err, "out of memory: a copy of the state needs %zu bytes", room);
		if (align == huge)
			madvise(im->data, room, MADV_HUGEPAGE);
		im->capacity = room;
	}
	im->bytes = bytes;
	return 0;
}

/* memcpy that keeps the caches' contents: `to` is not read soon, and training runs meanwhile. */
static void copy_past_caches(char *to, const char *from, size_t bytes)
{
#ifdef __SSE2__
	size_t head = -(uintptr_t)to % sizeof(__m128i), at = head < bytes ? head : bytes;
	memcpy(to, from, at);
	for (; bytes - at >= sizeof(__m128i); at += sizeof(__m128i))
		_mm_stream_si128((__m128i *)(to + at), _mm_loadu_si128((const __m128i *)(from + at)));
	_mm_sfence();
	to += at;
	from += at;
	bytes -= at;
#endif
	memcpy(to, from, bytes);
}

void hspmd_image_copy(struct hspmd_image *im, size_t block, char *to, const char *from, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += HSPMD_BLOCK_BYTES, block++) {
		size_t n = bytes - at < HSPMD_BLOCK_BYTES ? bytes - at : HSPMD_BLOCK_BYTES;
		im->blocks[block] = hspmd_checksum_block(from + at, n);
		copy_past_caches(to + at, from + at, n);
	}
}

int hspmd_image_seal(struct hspmd_image *im, struct hspmd_error *err)
{
	size_t block = 0;
	for (size_t i = 0; i < im->extent_count; i++) {
		struct hspmd_extent *e = &im->extents[i];
		size_t count = hspmd_block_count(e->bytes);
		for (size_t b = 0; b < count; b++) {
			uint64_t at = (uint64_t)b * HSPMD_BLOCK_BYTES, rest = e->bytes - at;
			if (!im->blocks[block + b])
				im->blocks[block + b] = hspmd_checksum_block(im->data + e->offset + at,
				                                             rest < HSPMD_BLOCK_BYTES ? rest : HSPMD_BLOCK_BYTES);
		}
		e->xxh3 = hspmd_checksum_of_blocks(im->blocks + block, count);
		block += count;
	}
	size_t bytes;
	char *head = make_head(im, &bytes, err);
	if (!head)
		return -1;
	memcpy(im->data, head, bytes);
	free(head);
	im->list = hspmd_checksum_block(im->data, bytes);
	return 0;
}

int hspmd_image_check(const void *data, size_t bytes, struct hspmd_extent **extents, size_t *count, struct hspmd_error *err)
{
	const unsigned char *p = data;
	uint64_t length = 0;
	struct hspmd_shard_header head;
	for (int i = 0; i < 8 && bytes >= 8; i++)
		length |= (uint64_t)p[i] << 8 * i;
	if (bytes < 8 || length > bytes - 8)
		return hspmd_fail(err, "the received data is not a shard");
	if (hspmd_shard_header_parse((const char *)p + 8, length, bytes, "shard", &head, err))
		return -1;
	int rv = 0;
	for (size_t i = 0; i < head.count && !rv; i++) {
		const struct hspmd_extent *e = &head.extents[i];
		for (size_t b = 0; b < hspmd_block_count(e->bytes) && !rv; b++) {
			uint64_t at = (uint64_t)b * HSPMD_BLOCK_BYTES, rest = e->bytes - at;
			size_t n = rest < HSPMD_BLOCK_BYTES ? rest : HSPMD_BLOCK_BYTES;
			if (hspmd_checksum_block(p + e->offset + at, n) != head.blocks[head.first[i] + b])
				rv = hspmd_fail(err, "%s of %s has a wrong checksum", hspmd_state_kind_names[e->kind], e->tensor);
		}
	}
	if (!rv) {
		*extents = head.extents;
		*count = head.count;
		head.extents = NULL;
		head.count = 0;
	}
	hspmd_shard_header_free(&head);
	return rv;
}

json_t *hspmd_image_shard_json(const struct hspmd_image *im, const char *file, const char *node, const char *set)
{
	if (set) /* also if only others have copies: they do not know the set */
		return hspmd_root_shard_json(file, im->bytes, node, im->list, set);
	char *name = (char *)(uintptr_t)node;
	return node ? hspmd_shard_json(file, im->bytes, &name, 1, im->extents, (int)im->extent_count) : json_null();
}

void hspmd_image_free(struct hspmd_image *im)
{
	free(im->data);
	hspmd_extents_free(im->extents, im->extent_count);
	free(im->blocks);
	memset(im, 0, sizeof *im);
}
