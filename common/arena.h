/* SPDX-License-Identifier: Apache-2.0 */
/* An arena: allocations that live and die together, so that a search over many temporary arrays has one cleanup. Not thread-safe. */
#ifndef HSPMD_COMMON_ARENA_H
#define HSPMD_COMMON_ARENA_H

#include <stddef.h>

struct hspmd_arena;

struct hspmd_arena *hspmd_arena_create(void); /* NULL: out of memory */
void hspmd_arena_destroy(struct hspmd_arena *a);

/* Ends all allocations, and keeps their memory for the next ones. */
void hspmd_arena_clear(struct hspmd_arena *a);

/* n * size zeroed bytes, aligned for any type, valid until the arena is cleared or destroyed. Never NULL for n == 0; NULL (errno ENOMEM) if
 * memory is short or n * size overflows. */
void *hspmd_arena_alloc(struct hspmd_arena *a, size_t n, size_t size);

/* As hspmd_array_grow, for an array in the arena. The memory of an array that has grown is freed with the arena only. 0 or -1. */
int hspmd_arena_array_grow(struct hspmd_arena *a, void *base, size_t *capacity, size_t count, size_t size);

#endif
