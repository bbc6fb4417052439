/* SPDX-License-Identifier: Apache-2.0 */
/* A* over partial programs (Hart, Nilsson and Raphael 1968). synthesis.h says what a state is, and why the bound never overestimates. */
#include <math.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/synthesis/synthesis_internal.h"

#define SHARES_MARGIN 1.01 /* for messages, which may get shorter under other shares, too */
#define MAX_EXPANDED 300 /* partial programs of one length that are continued; the rest then only counts for the bound */
#define PROOF_EXPANDED 6000 /* the same in a search that only proves a bound (hspmd_synthesis_is_beaten) */

/* A partial program: groups before `group` are divided. */
struct partial {
	double seconds, estimate;
	int group, parent, choice;
	int next;      /* in the same bucket, -1: none */
	uint64_t hash; /* of its state */
	size_t state;  /* of live tensors, in `states` */
	size_t memory; /* per watched device, in `bytes` */
	bool dominated;
};

/* When a search ends that has only partial programs left of below_s or more. */
enum wanted {
	WANTED_ANY,   /* if none that was left out could take less; else it goes on until one is complete */
	WANTED_BELOW, /* always */
	WANTED_ALL,   /* at once if one is left out that could take less */
};

struct search {
	struct hspmd_synthesis *s;
	struct partial *partials;
	size_t partial_count, partial_capacity;
	struct live *states;
	size_t state_count, state_capacity;
	double *bytes;
	size_t byte_count, byte_capacity;
	int *heap;
	size_t heap_count, heap_capacity;
	int *buckets;
	size_t bucket_count;
	struct live *scratch, *after;
	bool *reads;
	double *after_bytes;
	int *expanded;   /* per group: partial programs that ended before it and were continued */
	double left_out; /* the least estimate of those that were not */
	double below_s;  /* a complete program that takes as long, or longer, is not wanted; HUGE_VAL: any is */
	enum wanted wanted;
};

static bool precedes(const struct search *a, int x, int y)
{
	const struct partial *p = &a->partials[x], *q = &a->partials[y];
	if (p->estimate != q->estimate)
		return p->estimate < q->estimate;
	return p->group != q->group ? p->group > q->group : x < y;
}

static int push(struct search *a, int item)
{
	if (hspmd_array_grow(&a->heap, &a->heap_capacity, a->heap_count, sizeof *a->heap))
		return -1;
	size_t at = a->heap_count++;
	for (; at && precedes(a, item, a->heap[(at - 1) / 2]); at = (at - 1) / 2)
		a->heap[at] = a->heap[(at - 1) / 2];
	a->heap[at] = item;
	return 0;
}

static int pop(struct search *a)
{
	int top = a->heap[0], item = a->heap[--a->heap_count];
	size_t at = 0;
	for (size_t child; (child = 2 * at + 1) < a->heap_count; at = child) {
		if (child + 1 < a->heap_count && precedes(a, a->heap[child + 1], a->heap[child]))
			child++;
		if (!precedes(a, a->heap[child], item))
			break;
		a->heap[at] = a->heap[child];
	}
	a->heap[at] = item;
	return top;
}

/* What decides how a tensor can be used later. Copies in other layouts, and what its gradient has cost so far, are only worth seconds. */
static uint64_t kind_of(const struct live *l)
{
	return (uint64_t)l->home | (uint64_t)l->first << 8 | (uint64_t)l->partial << 16 | (uint64_t)l->gradient << 24;
}

static uint64_t hash_of(int group, const struct live *state, int count)
{
	uint64_t h = 14695981039346656037ULL ^ (uint64_t)group;
	for (int i = 0; i < count; i++) {
		h = (h ^ kind_of(&state[i])) * 1099511628211ULL;
		h ^= h >> 29;
	}
	return h;
}

static bool same_kinds(const struct live *x, const struct live *y, int count)
{
	for (int i = 0; i < count; i++)
		if (kind_of(&x[i]) != kind_of(&y[i]))
			return false;
	return true;
}

/* The most that a partial program in state x can still pay more than one in state y: to make the copies that only y has, and for gradients.
 */
static double handicap(const struct search *a, int group, const struct live *x, const struct live *y)
{
	double seconds = 0;
	for (int i = 0; i < a->s->live_count[group]; i++) {
		uint32_t missing = y[i].made & ~x[i].made;
		for (int l = 0; missing >> l; l++)
			if (missing >> l & 1)
				seconds += hspmd_synthesis_reshard(a->s, a->s->live[group][i],
				                                   x[i].first == LAYOUT_NONE ? x[i].home : x[i].first, l);
		seconds += fmax(0, fmax(x[i].plain - y[i].plain, x[i].sum - y[i].sum));
	}
	return seconds;
}

/* Returns true if whatever of the groups from `group` on fits beside y fits beside x, too. */
static bool leaves_room(const struct search *a, int group, const double *x, const double *y)
{
	int count = a->s->watched_count;
	const double *most = a->s->most_bytes + (size_t)group * (size_t)count;
	for (int w = 0; w < count; w++)
		if (x[w] > y[w] && x[w] + most[w] > a->s->watched_memory[w])
			return false;
	return true;
}

/* Returns true if a known partial program is at least as good as a new one; those that the new one beats are marked, and are no longer
 * looked at. */
static bool is_dominated(struct search *a, uint64_t hash, int group, double seconds)
{
	for (int *at = &a->buckets[hash % a->bucket_count]; *at >= 0;) {
		struct partial *p = &a->partials[*at];
		const struct live *state = a->states + p->state;
		bool same = p->hash == hash && p->group == group;
		bool may_beat = same && p->seconds <= seconds && leaves_room(a, group, a->bytes + p->memory, a->after_bytes);
		bool may_lose = same && p->seconds >= seconds && leaves_room(a, group, a->after_bytes, a->bytes + p->memory);
		if (!(may_beat || may_lose) || !same_kinds(state, a->after, a->s->live_count[group])) {
			at = &p->next;
			continue;
		}
		if (may_beat && p->seconds + handicap(a, group, state, a->after) <= seconds)
			return true;
		if (may_lose && seconds + handicap(a, group, a->after, state) <= p->seconds) {
			p->dominated = true;
			*at = p->next;
			continue;
		}
		at = &p->next;
	}
	return false;
}

static int rehash(struct search *a)
{
	size_t count = a->bucket_count * 2;
	int *buckets = malloc(count * sizeof *buckets);
	if (!buckets)
		return -1;
	memset(buckets, -1, count * sizeof *buckets);
	for (size_t i = 0; i < a->partial_count; i++) {
		struct partial *p = &a->partials[i];
		if (p->dominated)
			continue;
		int *bucket = &buckets[p->hash % count];
		p->next = *bucket;
		*bucket = (int)i;
	}
	free(a->buckets);
	a->buckets = buckets;
	a->bucket_count = count;
	return 0;
}

/* Adds the partial program whose state is in a->after. */
static int add(struct search *a, int group, int parent, int choice, double seconds)
{
	size_t live = (size_t)a->s->live_count[group], devices = (size_t)a->s->watched_count;
	uint64_t hash = hash_of(group, a->after, (int)live);
	if (is_dominated(a, hash, group, seconds))
		return 0;
	double rest = hspmd_synthesis_bound(a->s, group, a->after, a->scratch, a->reads);
	if (!isfinite(rest))
		return 0;
	if (a->partial_count >= a->bucket_count && rehash(a))
		return -1;
	while (a->state_capacity < a->state_count + live)
		if (hspmd_array_grow(&a->states, &a->state_capacity, a->state_capacity, sizeof *a->states))
			return -1;
	while (a->byte_capacity < a->byte_count + devices)
		if (hspmd_array_grow(&a->bytes, &a->byte_capacity, a->byte_capacity, sizeof *a->bytes))
			return -1;
	if (hspmd_array_grow(&a->partials, &a->partial_capacity, a->partial_count, sizeof *a->partials))
		return -1;
	if (live)
		memcpy(a->states + a->state_count, a->after, live * sizeof *a->states);
	if (devices)
		memcpy(a->bytes + a->byte_count, a->after_bytes, devices * sizeof *a->bytes);
	int *bucket = &a->buckets[hash % a->bucket_count];
	a->partials[a->partial_count] = (struct partial){ .seconds = seconds,
		                                          .estimate = seconds + rest,
		                                          .group = group,
		                                          .parent = parent,
		                                          .choice = choice,
		                                          .next = *bucket,
		                                          .hash = hash,
		                                          .state = a->state_count,
		                                          .memory = a->byte_count };
	a->state_count += live;
	a->byte_count += devices;
	*bucket = (int)a->partial_count;
	return push(a, (int)a->partial_count++);
}

/* Adds a choice's memory to that of the partial program. Returns false if a device then has too little for the groups that are left,
 * however these are divided. */
static bool fits(struct search *a, const struct partial *p, const struct choice *choice)
{
	int count = a->s->watched_count;
	const double *least = a->s->least_bytes + (size_t)(p->group + 1) * (size_t)count;
	for (int w = 0; w < count; w++) {
		a->after_bytes[w] = a->bytes[p->memory + (size_t)w] + choice->bytes[a->s->watched[w]];
		if (a->after_bytes[w] + least[w] > a->s->watched_memory[w])
			return false;
	}
	return true;
}

static int expand(struct search *a, int item)
{
	int number = a->partials[item].group;
	const struct group *g = &a->s->groups[number];
	for (int k = 0; k < g->choice_count; k++) {
		const struct partial *p = &a->partials[item]; /* may have moved */
		if (g->choices[k].excluded || !fits(a, p, &g->choices[k]))
			continue;
		double seconds = hspmd_synthesis_advance(a->s, number, &g->choices[k], a->states + p->state, a->after, a->scratch);
		if (isfinite(seconds) && add(a, number + 1, item, k, p->seconds + seconds))
			return -1;
	}
	return 0;
}

/* Takes the best partial program from the queue until it is complete. Returns its number, -1: memory, -2: there is none, -3: none was
 * complete in time, -4: none that is wanted. */
static int run(struct search *a, long *expanded)
{
	while (a->heap_count) {
		int item = pop(a);
		if (a->partials[item].dominated)
			continue;
		if (a->partials[item].estimate >= a->below_s && (a->wanted == WANTED_BELOW || a->left_out >= a->below_s))
			return -4;
		if (a->partials[item].group == a->s->group_count)
			return item;
		if (a->expanded[a->partials[item].group]++ >= (a->wanted == WANTED_ALL ? PROOF_EXPANDED : MAX_EXPANDED)) {
			a->left_out = fmin(a->left_out, a->partials[item].estimate);
			if (a->wanted == WANTED_ALL && a->left_out < a->below_s)
				return -2;
			continue;
		}
		if (hspmd_synthesis_timed_out(a->s))
			return -3;
		++*expanded;
		if (expand(a, item))
			return -1;
	}
	return -2;
}

static void end(struct search *a)
{
	free(a->partials);
	free(a->states);
	free(a->bytes);
	free(a->heap);
	free(a->buckets);
	free(a->scratch);
	free(a->reads);
	free(a->after);
	free(a->after_bytes);
	free(a->expanded);
}

/* Returns what run() does. */
static int find(struct hspmd_synthesis *s, double below_s, enum wanted wanted, struct hspmd_synthesis_result *result)
{
	struct search a = { .s = s, .bucket_count = 1024, .left_out = HUGE_VAL, .below_s = below_s, .wanted = wanted };
	a.buckets = malloc(a.bucket_count * sizeof *a.buckets);
	a.scratch = hspmd_calloc(s->g->tensor_count, sizeof *a.scratch);
	a.reads = hspmd_calloc(s->g->tensor_count, sizeof *a.reads);
	a.after = hspmd_calloc(MAX_LIVE, sizeof *a.after);
	a.after_bytes = hspmd_calloc((size_t)s->stage.device_count, sizeof *a.after_bytes);
	a.expanded = hspmd_calloc((size_t)s->group_count + 1, sizeof *a.expanded);
	int found = -1;
	if (a.buckets && a.scratch && a.reads && a.after && a.after_bytes && a.expanded) {
		memset(a.buckets, -1, a.bucket_count * sizeof *a.buckets);
		found = add(&a, 0, -1, -1, 0) ? -1 : run(&a, &result->expanded);
	}
	if (found >= 0) {
		result->seconds = a.partials[found].seconds;
		result->bound = fmin(result->seconds, a.left_out);
	}
	for (int item = found; item >= 0 && a.partials[item].parent >= 0; item = a.partials[item].parent)
		s->chosen[a.partials[item].group - 1] = a.partials[item].choice;
	end(&a);
	return found;
}

int hspmd_synthesis_astar(struct hspmd_synthesis *s, double below_s, struct hspmd_synthesis_result *result, struct hspmd_error *err)
{
	int found = find(s, below_s, WANTED_ANY, result);
	if (found >= 0)
		return 0;
	return found == -4   ? 1
	       : found == -1 ? hspmd_fail_memory(err, "searching a program")
	       : found == -3 ? hspmd_fail(err, "no program of the stage was found in time")
	                     : hspmd_fail(err, "no program of the stage fits into its memory");
}

/* Lets choices cost what they do at least under any shares, and back. */
static void swap_shares(struct hspmd_synthesis *s)
{
	for (int n = 0; n < s->group_count; n++)
		for (int k = 0; k < s->groups[n].choice_count; k++) {
			struct choice *c = &s->groups[n].choices[k];
			double seconds = c->seconds;
			c->seconds = c->any_shares;
			c->any_shares = seconds;
		}
}

/* Memory is not limited meanwhile: partial programs that are dearer, but need less of it, need not be kept. */
bool hspmd_synthesis_is_beaten(struct hspmd_synthesis *s, struct hspmd_synthesis_result *result)
{
	int watched = s->watched_count;
	double below_s = s->stage.below_s;
	if (!(below_s > 0))
		return false;
	if (!s->alike) {
		below_s *= SHARES_MARGIN;
		swap_shares(s);
	}
	s->watched_count = 0;
	hspmd_synthesis_set_bounds(s);
	bool beaten = s->rest[0] >= below_s || find(s, below_s, WANTED_ALL, result) == -4;
	if (!s->alike)
		swap_shares(s);
	s->watched_count = watched;
	hspmd_synthesis_set_bounds(s);
	return beaten;
}

bool hspmd_synthesis_search_again(struct hspmd_synthesis *s, struct hspmd_synthesis_result *known, int *chosen)
{
	size_t bytes = (size_t)s->group_count * sizeof *chosen;
	struct hspmd_synthesis_result again = { 0 };
	memcpy(chosen, s->chosen, bytes);
	hspmd_synthesis_set_bounds(s);
	bool better = find(s, known->seconds * (1 - 1e-9), WANTED_BELOW, &again) >= 0 && again.seconds < known->seconds * (1 - 1e-9);
	known->expanded += again.expanded;
	if (better)
		known->seconds = again.seconds;
	else
		memcpy(s->chosen, chosen, bytes);
	return better;
}
