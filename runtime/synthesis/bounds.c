/* SPDX-License-Identifier: Apache-2.0 */
/* What the groups that are left of a partial program cost at least: seconds, and memory of the devices that decide what fits. */
#include <math.h>
#include <string.h>

#include "runtime/synthesis/synthesis_internal.h"

static double memory_of(const struct hspmd_synthesis *s, int d)
{
	const struct hspmd_cluster *c = s->stage.cluster;
	return (double)c->types[c->devices[s->stage.devices[d]].type].memory_bytes;
}

/* Returns true if whatever fits on device a fits on b: its memory is no larger, and no choice needs less of it. */
static bool decides_for(const struct hspmd_synthesis *s, int a, int b)
{
	if (memory_of(s, a) > memory_of(s, b))
		return false;
	for (int n = 0; n < s->group_count; n++)
		for (int k = 0; k < s->groups[n].choice_count; k++)
			if (s->groups[n].choices[k].bytes[a] < s->groups[n].choices[k].bytes[b])
				return false;
	return true;
}

/* Of a stage's devices most are alike: one of them decides for all. */
static void watch(struct hspmd_synthesis *s)
{
	s->watched_count = 0;
	for (int d = 0; s->limited && d < s->stage.device_count; d++) {
		int kept = 0;
		bool needed = true;
		for (int w = 0; w < s->watched_count && needed; w++)
			needed = !decides_for(s, s->watched[w], d);
		if (!needed)
			continue;
		for (int w = 0; w < s->watched_count; w++)
			if (!decides_for(s, d, s->watched[w]))
				s->watched[kept++] = s->watched[w];
		s->watched[kept++] = d;
		s->watched_count = kept;
	}
	for (int w = 0; w < s->watched_count; w++)
		s->watched_memory[w] = memory_of(s, s->watched[w]);
}

/* Fills what group n, and those after it, need of a watched device at least and at most. */
static void set_bytes(struct hspmd_synthesis *s, int n, int w)
{
	const struct group *g = &s->groups[n];
	double least = HUGE_VAL, most = 0;
	for (int k = 0; k < g->choice_count; k++)
		if (!g->choices[k].excluded) {
			least = fmin(least, g->choices[k].bytes[s->watched[w]]);
			most = fmax(most, g->choices[k].bytes[s->watched[w]]);
		}
	size_t here = (size_t)n * (size_t)s->watched_count + (size_t)w, next = here + (size_t)s->watched_count;
	s->least_bytes[here] = s->least_bytes[next] + least;
	s->most_bytes[here] = s->most_bytes[next] + most;
}

void hspmd_synthesis_set_bounds(struct hspmd_synthesis *s)
{
	size_t end = (size_t)s->group_count * (size_t)s->watched_count;
	s->rest[s->group_count] = 0;
	for (int w = 0; w < s->watched_count; w++)
		s->least_bytes[end + (size_t)w] = s->most_bytes[end + (size_t)w] = 0;
	for (int n = s->group_count - 1; n >= 0; n--) {
		struct group *g = &s->groups[n];
		g->least = HUGE_VAL;
		for (int k = 0; k < g->choice_count; k++)
			if (!g->choices[k].excluded)
				g->least = fmin(g->least, g->choices[k].seconds);
		s->rest[n] = s->rest[n + 1] + g->least;
		for (int w = 0; w < s->watched_count; w++)
			set_bytes(s, n, w);
	}
}

void hspmd_synthesis_watch(struct hspmd_synthesis *s)
{
	watch(s);
	hspmd_synthesis_set_bounds(s);
}
