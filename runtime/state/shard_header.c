/* SPDX-License-Identifier: Apache-2.0 */
/* A shard describes its own contents: its metadata contain the extents (their parts of tensors, and their blocks' checksums) as JSON
 * text, in the order of their offsets. So a shard can be checked, and a lost manifest restored, without any other file. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/state/state_internal.h"
#include "runtime/weights/safetensors.h"

static int read_blocks(struct hspmd_json *at, uint64_t *blocks, size_t count)
{
	const char *text = hspmd_json_string(at, "blocks");
	if (!text)
		return -1;
	for (size_t i = 0; i < count; i++, text += 16)
		if (hspmd_checksum_parse(text, &blocks[i]) != 16)
			return hspmd_json_fail(at, "blocks: expected %zu sums", count);
	return *text ? hspmd_json_fail(at, "blocks: expected %zu sums", count) : 0;
}

static int read_extent(struct hspmd_json *at, const struct hspmd_safetensor *t, struct hspmd_shard_header *h, size_t i)
{
	struct hspmd_extent *e = &h->extents[i];
	int dtype = 0;
	if (hspmd_extent_read_part(at, e))
		return -1;
	while (dtype < HSPMD_STORED_DTYPE_COUNT && strcmp(hspmd_dtype_names[dtype], t->dtype))
		dtype++;
	e->dtype = (enum hspmd_dtype)dtype;
	e->offset = t->offset;
	e->bytes = t->bytes;
	if (dtype == HSPMD_STORED_DTYPE_COUNT || e->bytes != (uint64_t)hspmd_box_elements(&e->box) * hspmd_dtype_bytes(e->dtype))
		return hspmd_json_fail(at, "does not fit tensor \"%s\"", t->name);
	size_t count = hspmd_block_count(e->bytes);
	uint64_t *grown = realloc(h->blocks, (h->first[i] + count + 1) * sizeof *grown);
	if (!grown)
		return hspmd_json_fail_memory(at);
	h->blocks = grown;
	h->first[i + 1] = h->first[i] + count;
	if (read_blocks(at, h->blocks + h->first[i], count) || hspmd_json_check_keys(at))
		return -1;
	e->xxh3 = hspmd_checksum_of_blocks(h->blocks + h->first[i], count);
	return 0;
}

static int read_extents(const struct hspmd_safetensors *s, struct hspmd_shard_header *h, const char *name, struct hspmd_error *err)
{
	const char *text = json_string_value(json_object_get(s->metadata, "extents")),
	           *format = json_string_value(json_object_get(s->metadata, "format"));
	struct hspmd_json_doc doc;
	if (!text || !format || strcmp(format, HSPMD_SHARD_FORMAT))
		return hspmd_fail(err, "%s: not a shard of a checkpoint", name);
	if (hspmd_json_parse(&doc, name, text, strlen(text), err))
		return -1;
	struct hspmd_json list = hspmd_json_root(&doc);
	h->extents = hspmd_calloc(s->count, sizeof *h->extents);
	h->first = hspmd_calloc(s->count + 1, sizeof *h->first);
	int rv = h->extents && h->first ? 0 : hspmd_json_fail_memory(&list);
	if (!rv && !hspmd_json_expect_array(&list, s->count, s->count))
		rv = -1;
	for (size_t i = 0; i < s->count && !rv; i++) {
		struct hspmd_json at = hspmd_json_at(&list, i);
		h->count++;
		rv = read_extent(&at, &s->tensors[i], h, i);
	}
	hspmd_json_close(&doc);
	return rv;
}

int hspmd_shard_header_parse(const char *text, size_t bytes, uint64_t file_bytes, const char *name, struct hspmd_shard_header *head,
                             struct hspmd_error *err)
{
	memset(head, 0, sizeof *head);
	struct hspmd_safetensors *s = hspmd_safetensors_parse(text, bytes, file_bytes, name, err);
	int rv = s ? read_extents(s, head, name, err) : -1;
	hspmd_safetensors_destroy(s);
	if (rv)
		hspmd_shard_header_free(head);
	return rv;
}

int hspmd_shard_header_read(int fd, const char *name, struct hspmd_shard_header *head, struct hspmd_error *err)
{
	size_t bytes;
	uint64_t file_bytes;
	char *text = hspmd_safetensors_read_header(fd, name, &bytes, &file_bytes, err);
	memset(head, 0, sizeof *head);
	int rv = text ? hspmd_shard_header_parse(text + 8, bytes - 8, file_bytes, name, head, err) : -1;
	if (!rv)
		head->list = hspmd_checksum_block(text, bytes);
	free(text);
	return rv;
}

void hspmd_extents_free(struct hspmd_extent *extents, size_t count)
{
	for (size_t i = 0; i < count; i++)
		free(extents[i].tensor);
	free(extents);
}

void hspmd_shard_header_free(struct hspmd_shard_header *head)
{
	hspmd_extents_free(head->extents, head->count);
	free(head->blocks);
	free(head->first);
	memset(head, 0, sizeof *head);
}
