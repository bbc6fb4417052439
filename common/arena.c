/* SPDX-License-Identifier: Apache-2.0 */
#include "common/arena.h"

#include <errno.h>
#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT alignof(max_align_t)
#define FIRST_CHUNK 4096u
#define LARGEST_CHUNK (1u << 20)

struct chunk {
	struct chunk *next;
	size_t size, used;
	alignas(max_align_t) char data[];
};

struct hspmd_arena {
	struct chunk *chunks; /* newest first; only it is filled further */
	struct chunk *spare;  /* cleared */
	size_t next_size;
};

struct hspmd_arena *hspmd_arena_create(void)
{
	struct hspmd_arena *a = calloc(1, sizeof *a);
	if (a)
		a->next_size = FIRST_CHUNK;
	return a;
}

void hspmd_arena_clear(struct hspmd_arena *a)
{
	while (a->chunks) {
		struct chunk *c = a->chunks;
		a->chunks = c->next;
		c->next = a->spare;
		c->used = 0;
		a->spare = c;
	}
}

void hspmd_arena_destroy(struct hspmd_arena *a)
{
	if (!a)
		return;
	int saved = errno;
	hspmd_arena_clear(a);
	while (a->spare) {
		struct chunk *c = a->spare;
		a->spare = c->next;
		free(c);
	}
	free(a);
	errno = saved;
}

static struct chunk *reuse_chunk(struct hspmd_arena *a, size_t bytes)
{
	for (struct chunk **at = &a->spare; *at; at = &(*at)->next)
		if ((*at)->size >= bytes) {
			struct chunk *c = *at;
			*at = c->next;
			c->next = a->chunks;
			return a->chunks = c;
		}
	return NULL;
}

static struct chunk *add_chunk(struct hspmd_arena *a, size_t bytes)
{
	struct chunk *spare = reuse_chunk(a, bytes);
	if (spare)
		return spare;
	size_t size = bytes > a->next_size ? bytes : a->next_size;
	if (size > SIZE_MAX - sizeof(struct chunk)) {
		errno = ENOMEM;
		return NULL;
	}
	struct chunk *c = malloc(sizeof *c + size);
	if (!c)
		return NULL;
	*c = (struct chunk){ .next = a->chunks, .size = size };
	a->chunks = c;
	if (a->next_size < LARGEST_CHUNK)
		a->next_size *= 2;
	return c;
}

void *hspmd_arena_alloc(struct hspmd_arena *a, size_t n, size_t size)
{
	size_t bytes;
	if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX - ALIGNMENT) {
		errno = ENOMEM;
		return NULL;
	}
	bytes = bytes ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT;
	struct chunk *c = a->chunks;
	if (!c || c->size - c->used < bytes) {
		c = add_chunk(a, bytes);
		if (!c)
			return NULL;
	}
	void *p = c->data + c->used;
	c->used += bytes;
	return memset(p, 0, bytes);
}

int hspmd_arena_array_grow(struct hspmd_arena *a, void *base, size_t *capacity, size_t count, size_t size)
{
	if (count < *capacity)
		return 0;
	size_t wanted = *capacity ? *capacity * 2 : 8;
	void **array = base;
	void *grown = wanted > *capacity ? hspmd_arena_alloc(a, wanted, size) : NULL;
	if (!grown)
		return -1;
	if (count > 0)
		memcpy(grown, *array, count * size);
	*array = grown;
	*capacity = wanted;
	return 0;
}
