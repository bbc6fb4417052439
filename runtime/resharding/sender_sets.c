/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of senders, each stored once: the slices of a thousand devices have few different sets, so sets are compared by pointer, and the
 * fastest senders of a set for a receiver are searched once. Two hash tables with linear probing, at most half full. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/resharding/move_plan_internal.h"
#include "runtime/resharding/resolve_internal.h"

/* Links that take up to this much longer than the fastest count as equally fast: measured links are never quite equal. */
#define EQUALLY_FAST 1.1

/* The fastest of `all` for messages to `to` of 2^size to 2^(size+1) bytes. */
struct choice {
	const struct sender_set *all, *fastest;
	int to, size;
};

struct sender_sets {
	struct hspmd_arena *arena;
	const struct hspmd_link_cost *cost;
	const int *name; /* of the caller, by dense number */
	size_t set_count, set_slots, choice_count, choice_slots;
	struct sender_set **set;
	struct choice *choice;
	int *chosen; /* scratch */
	double *seconds;
	size_t scratch;
};

static uint64_t mix(uint64_t h, uint64_t v)
{
	h = (h ^ v) * UINT64_C(0x9fb21c651e98df25);
	return h ^ h >> 32;
}

static uint64_t hash_numbers(const int *numbers, int count)
{
	uint64_t h = 1;
	for (int i = 0; i < count; i++)
		h = mix(h, (uint64_t)numbers[i]);
	return h;
}

static uint64_t hash_choice(const struct sender_set *all, int to, int size)
{
	return mix(mix(mix(1, (uint64_t)all->id), (uint64_t)to), (uint64_t)size);
}

struct sender_sets *hspmd_sender_sets_create(struct hspmd_arena *arena, const struct hspmd_link_cost *cost, const int *name)
{
	struct sender_sets *s = hspmd_arena_alloc(arena, 1, sizeof *s);
	if (s)
		*s = (struct sender_sets){ .arena = arena, .cost = cost, .name = name };
	return s;
}

static void place_set(struct sender_sets *s, struct sender_set *set)
{
	size_t at = hash_numbers(set->senders, set->count) & (s->set_slots - 1);
	while (s->set[at])
		at = (at + 1) & (s->set_slots - 1);
	s->set[at] = set;
}

static int grow_sets(struct sender_sets *s)
{
	struct sender_set **old = s->set;
	size_t slots = s->set_slots;
	if (s->set_count * 2 < slots)
		return 0;
	s->set_slots = slots ? slots * 2 : 64;
	s->set = hspmd_arena_alloc(s->arena, s->set_slots, sizeof(struct sender_set *));
	if (!s->set)
		return -1;
	for (size_t i = 0; i < slots; i++)
		if (old[i])
			place_set(s, old[i]);
	return 0;
}

const struct sender_set *hspmd_sender_set(struct sender_sets *s, const int *senders, int count)
{
	if (grow_sets(s) != 0)
		return NULL;
	size_t at = hash_numbers(senders, count) & (s->set_slots - 1);
	for (; s->set[at]; at = (at + 1) & (s->set_slots - 1))
		if (s->set[at]->count == count && memcmp(s->set[at]->senders, senders, (size_t)count * sizeof *senders) == 0)
			return s->set[at];
	struct sender_set *set = hspmd_arena_alloc(s->arena, 1, sizeof *set + (size_t)count * sizeof *senders);
	if (!set)
		return NULL;
	set->id = (int)s->set_count++;
	set->count = count;
	memcpy(set->senders, senders, (size_t)count * sizeof *senders);
	return s->set[at] = set;
}

static const struct sender_set *choose(struct sender_sets *s, const struct sender_set *all, int to, double bytes)
{
	if (s->scratch < (size_t)all->count) {
		s->scratch = (size_t)all->count * 2;
		s->chosen = hspmd_arena_alloc(s->arena, s->scratch, sizeof *s->chosen);
		s->seconds = hspmd_arena_alloc(s->arena, s->scratch, sizeof *s->seconds);
		if (!s->chosen || !s->seconds)
			return NULL;
	}
	double least = 0;
	int n = 0;
	for (int i = 0; i < all->count; i++) {
		s->seconds[i] = hspmd_message_seconds(s->cost, s->name[all->senders[i]], s->name[to], bytes);
		least = i == 0 || s->seconds[i] < least ? s->seconds[i] : least;
	}
	for (int i = 0; i < all->count; i++)
		if (s->seconds[i] <= least * EQUALLY_FAST)
			s->chosen[n++] = all->senders[i];
	return hspmd_sender_set(s, s->chosen, n);
}

static struct choice *find_choice(struct sender_sets *s, const struct sender_set *all, int to, int size)
{
	size_t at = hash_choice(all, to, size) & (s->choice_slots - 1);
	while (s->choice[at].all && (s->choice[at].all != all || s->choice[at].to != to || s->choice[at].size != size))
		at = (at + 1) & (s->choice_slots - 1);
	return &s->choice[at];
}

static int grow_choices(struct sender_sets *s)
{
	struct choice *old = s->choice;
	size_t slots = s->choice_slots;
	if (s->choice_count * 2 < slots)
		return 0;
	s->choice_slots = slots ? slots * 2 : 64;
	s->choice = hspmd_arena_alloc(s->arena, s->choice_slots, sizeof *s->choice);
	if (!s->choice)
		return -1;
	for (size_t i = 0; i < slots; i++)
		if (old[i].all)
			*find_choice(s, old[i].all, old[i].to, old[i].size) = old[i];
	return 0;
}

const struct sender_set *hspmd_sender_set_fastest(struct sender_sets *s, const struct sender_set *all, int to, double bytes)
{
	int size = bytes < 1 ? 0 : ilogb(bytes);
	if (grow_choices(s) != 0)
		return NULL;
	struct choice *c = find_choice(s, all, to, size);
	if (c->all)
		return c->fastest;
	const struct sender_set *fastest = choose(s, all, to, ldexp(1, size));
	if (!fastest)
		return NULL;
	*c = (struct choice){ all, fastest, to, size };
	s->choice_count++;
	return fastest;
}
