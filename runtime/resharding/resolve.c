/* SPDX-License-Identifier: Apache-2.0 */
/* Resolution itself. The source's offers and the destination's needs are reduced to problems whose destination is not partial:
 *
 *   - Copies of a sum that have addends of their own (hdim -1 over partial subgroups) are alternative ways to one value, whose last bits
 * may differ. One way is taken, the same for all.
 *   - In a partial destination, one addend gets the full value and the others zero; or, if the source's addends can be assigned to the
 *     destination's, each of these gets the sum of its own. That keeps apart what need not be summed yet (gradients of data-parallel
 *     subgroups, for instance).
 *
 * Every combination is routed and the cheapest is taken. */
#include <stdlib.h>
#include <string.h>

#include "common/order.h"
#include "runtime/resharding/transfer_internal.h"

#define MAX_WAYS 4 /* limit of the ways of the source that are tried */
#define EVERYONE (-1)

/* An annotation's shards, in dense device numbers. */
struct side {
	const struct hspmd_annotation *annotation;
	int count;
	int *device;
	struct hspmd_local_shard *shard;
	int *at; /* per device: index of its shard, -1: none */
};

/* The source's addends assigned to problems: one problem per addend of the destination that does not become zero. */
struct assignment {
	int problems;
	int *from;             /* per source shard: problem, -1: not used */
	int *addend, *addends; /* per source shard, within its problem */
	int *to;               /* per destination shard: problem, -1: zero */
};

enum assignment_method { ASSIGN_TO_ONE, ASSIGN_EVENLY, ASSIGN_BY_GROUP, ASSIGNMENT_METHODS };

struct answer {
	bool found;
	struct transfer_plan plan;
	const char *why;
};

static int list_side(struct resolver *r, const struct hspmd_annotation *a, struct side *side)
{
	side->annotation = a;
	side->count = hspmd_annotation_local_shards(a, r->shape, NULL, NULL);
	side->device = hspmd_arena_alloc(r->arena, (size_t)side->count, sizeof *side->device);
	side->shard = hspmd_arena_alloc(r->arena, (size_t)side->count, sizeof *side->shard);
	if (!side->device || !side->shard)
		return -1;
	hspmd_annotation_local_shards(a, r->shape, side->device, side->shard);
	return 0;
}

static int renumber(struct resolver *r, struct side *side)
{
	side->at = hspmd_arena_alloc(r->arena, (size_t)r->device_count, sizeof *side->at);
	if (!side->at)
		return -1;
	for (int d = 0; d < r->device_count; d++)
		side->at[d] = -1;
	for (int i = 0; i < side->count; i++) {
		const int *found = bsearch(&side->device[i], r->real, (size_t)r->device_count, sizeof *r->real, hspmd_int_order);
		side->device[i] = (int)(found - r->real);
		side->at[side->device[i]] = i;
	}
	return 0;
}

static int number_devices(struct resolver *r, struct side *s, struct side *d)
{
	int total = s->count + d->count, count = 0;
	int *all = hspmd_arena_alloc(r->arena, (size_t)total, sizeof *all);
	if (!all)
		return -1;
	memcpy(all, s->device, (size_t)s->count * sizeof *all);
	memcpy(all + s->count, d->device, (size_t)d->count * sizeof *all);
	qsort(all, (size_t)total, sizeof *all, hspmd_int_order);
	for (int i = 0; i < total; i++)
		if (i == 0 || all[i] != all[count - 1])
			all[count++] = all[i];
	r->real = all;
	r->device_count = count;
	return renumber(r, s) != 0 || renumber(r, d) != 0 || hspmd_cost_prepare(r) != 0 ? -1 : 0;
}

/* Elements of shard i of side s that its device also holds on the other side. */
static int64_t overlap(const struct side *s, int i, const struct side *other)
{
	struct hspmd_box common;
	int j = other->at[s->device[i]];
	return j >= 0 && hspmd_box_intersect(&s->shard[i].box, &other->shard[j].box, &common) ? hspmd_box_elements(&common) : 0;
}

/* ---- ways to the source's value */

static bool on_way(const struct side *s, int i, int way)
{
	if (way != EVERYONE)
		return s->shard[i].group == way;
	return s->annotation->hdim != HSPMD_DUPLICATE || s->shard[i].partials == 1;
}

/* Fills ways[] with EVERYONE, or with the subgroups that overlap most with the destination; returns their number, -1: memory. */
static int list_ways(struct resolver *r, const struct side *s, const struct side *d, int *ways)
{
	for (int i = 0; i < s->count; i++)
		if (on_way(s, i, EVERYONE)) {
			ways[0] = EVERYONE;
			return 1;
		}
	int64_t *near = hspmd_arena_alloc(r->arena, (size_t)s->annotation->hsize, sizeof *near);
	if (!near)
		return -1;
	for (int i = 0; i < s->count; i++)
		near[s->shard[i].group] += overlap(s, i, d);
	int count = 0;
	while (count < MAX_WAYS && count < s->annotation->hsize) {
		int best = -1;
		for (int g = 0; g < s->annotation->hsize; g++)
			if (near[g] >= 0 && (best < 0 || near[g] > near[best]))
				best = g;
		near[best] = -1;
		ways[count++] = best;
	}
	return count;
}

/* ---- assigning addends */

/* One problem gives everything; in a partial destination, to the addend of each sum that overlaps most with the source. */
static void assign_to_one(const struct side *s, int way, const struct side *d, struct assignment *assignment)
{
	assignment->problems = 1;
	for (int i = 0; i < s->count; i++) {
		assignment->from[i] = on_way(s, i, way) ? 0 : -1;
		assignment->addend[i] = s->shard[i].partial;
		assignment->addends[i] = s->shard[i].partials;
	}
	for (int first = 0, end; first < d->count; first = end) {
		bool all = d->annotation->hdim == HSPMD_PARTIAL;
		for (end = first; end < d->count && (all || d->shard[end].group == d->shard[first].group);)
			end++;
		int best = 0;
		int64_t most = -1;
		for (int addend = 0; addend < d->shard[first].partials; addend++) {
			int64_t near = 0;
			for (int j = first; j < end; j++)
				near += d->shard[j].partial == addend ? overlap(d, j, s) : 0;
			if (near > most) {
				most = near;
				best = addend;
			}
		}
		for (int j = first; j < end; j++)
			assignment->to[j] = d->shard[j].partial == best ? 0 : -1;
	}
}

/* The number of addends, if all used shards agree on it; else 0. */
static int addends_of(const struct side *side, int way, bool source)
{
	int addends = 0;
	for (int i = 0; i < side->count; i++) {
		if (source && !on_way(side, i, way))
			continue;
		if (addends && side->shard[i].partials != addends)
			return 0;
		addends = side->shard[i].partials;
	}
	return addends;
}

static bool assign_evenly(const struct side *s, int way, const struct side *d, struct assignment *assignment)
{
	int have = addends_of(s, way, true), want = addends_of(d, way, false);
	if (want < 2 || have == 0 || have % want != 0)
		return false;
	int each = have / want;
	assignment->problems = want;
	for (int i = 0; i < s->count; i++) {
		assignment->from[i] = on_way(s, i, way) ? s->shard[i].partial / each : -1;
		assignment->addend[i] = s->shard[i].partial % each;
		assignment->addends[i] = each;
	}
	for (int j = 0; j < d->count; j++)
		assignment->to[j] = d->shard[j].partial;
	return true;
}

/* First and number of the addends of one subgroup. */
static void group_addends(const struct side *side, int group, int *first, int *count)
{
	int last = -1;
	*first = -1;
	for (int i = 0; i < side->count; i++) {
		if (side->shard[i].group != group)
			continue;
		if (*first < 0 || side->shard[i].partial < *first)
			*first = side->shard[i].partial;
		last = side->shard[i].partial > last ? side->shard[i].partial : last;
	}
	*count = last - *first + 1;
}

static bool assign_by_group(const struct side *s, const struct side *d, struct assignment *assignment)
{
	int hsize = s->annotation->hsize;
	if (s->annotation->hdim != HSPMD_PARTIAL || d->annotation->hdim != HSPMD_PARTIAL || d->annotation->hsize != hsize)
		return false;
	assignment->problems = d->shard[0].partials;
	for (int j = 0; j < d->count; j++)
		assignment->to[j] = -1;
	for (int g = 0; g < hsize; g++) {
		int first, count, to, wanted;
		group_addends(s, g, &first, &count);
		group_addends(d, g, &to, &wanted);
		int each = count % wanted == 0 ? count / wanted : count;
		for (int i = 0; i < s->count; i++) {
			if (s->shard[i].group != g)
				continue;
			int addend = s->shard[i].partial - first;
			assignment->from[i] = to + addend / each;
			assignment->addend[i] = addend % each;
			assignment->addends[i] = each;
		}
		for (int j = 0; j < d->count; j++)
			if (d->shard[j].group == g && d->shard[j].partial < to + count / each)
				assignment->to[j] = d->shard[j].partial;
	}
	return true;
}

static bool assign_addends(enum assignment_method how, const struct side *s, int way, const struct side *d, struct assignment *assignment)
{
	switch (how) {
	case ASSIGN_EVENLY:
		return assign_evenly(s, way, d, assignment);
	case ASSIGN_BY_GROUP:
		return assign_by_group(s, d, assignment);
	default:
		assign_to_one(s, way, d, assignment);
		return true;
	}
}

/* ---- assembling the answer */

/* Numbers the copies of a shard's subgroup from *first; returns their number. */
static int copies_of(const struct side *side, int group, int *first)
{
	int last = 0;
	*first = -1;
	for (int i = 0; i < side->count; i++) {
		if (side->shard[i].group != group)
			continue;
		if (*first < 0 || side->shard[i].replica < *first)
			*first = side->shard[i].replica;
		last = side->shard[i].replica > last ? side->shard[i].replica : last;
	}
	return last - *first + 1;
}

/* Which experts each device has, if only their rows count. 0 or -1 (memory). */
static int place_experts(struct resolver *r, const struct side *side, struct placement *p)
{
	const struct hspmd_expert_rows *rows = side->annotation->rows;
	if (!rows)
		return 0;
	p->experts = hspmd_arena_alloc(r->arena, (size_t)r->device_count, sizeof *p->experts);
	p->expert_count = rows->count;
	p->per_token = rows->per_token;
	for (int i = 0; p->experts && i < side->count; i++) {
		struct hspmd_local_shard shard;
		if (hspmd_annotation_local_shard(rows->experts, &(struct hspmd_shape){ 1, { rows->count } }, r->real[side->device[i]],
		                                 &shard))
			p->experts[side->device[i]] = (struct hspmd_expert_range){ shard.box.lo[0], shard.box.hi[0] };
	}
	return p->experts ? 0 : -1;
}

static struct placement *source_placement(struct resolver *r, const struct side *s, const struct assignment *assignment, int problem)
{
	struct placement *p = hspmd_placement_create(r, s->count);
	int group = -1, first = 0, copies = 0;
	for (int i = 0; p && i < s->count; i++) {
		if (assignment->from[i] != problem)
			continue;
		if (s->shard[i].group != group) {
			group = s->shard[i].group;
			copies = copies_of(s, group, &first);
		}
		struct piece piece = { .device = s->device[i],
			               .box = s->shard[i].box,
			               .addend = assignment->addend[i],
			               .addends = assignment->addends[i],
			               .copy = s->shard[i].replica - first,
			               .copies = copies };
		hspmd_placement_add(p, &piece);
	}
	if (p)
		hspmd_placement_finish(r, p);
	return p && place_experts(r, s, p) == 0 ? p : NULL;
}

static struct placement *destination_placement(struct resolver *r, const struct side *d, const struct assignment *assignment, int problem)
{
	struct placement *p = hspmd_placement_create(r, d->count);
	for (int j = 0; p && j < d->count; j++) {
		if (assignment->to[j] != problem)
			continue;
		struct piece piece = {
			.device = d->device[j], .box = d->shard[j].box, .addends = 1, .copy = d->shard[j].replica, .copies = 1
		};
		hspmd_placement_add(p, &piece);
	}
	if (p)
		hspmd_placement_finish(r, p);
	return p && place_experts(r, d, p) == 0 ? p : NULL;
}

static int add_zeros(struct resolver *r, const struct side *d, const struct assignment *assignment, struct transfer_plan *plan)
{
	struct route route = { .hop_count = 1 };
	int zeros = 0;
	for (int j = 0; j < d->count; j++)
		zeros += assignment->to[j] < 0;
	if (zeros == 0)
		return 0;
	struct hspmd_comm_step *step = hspmd_hop_step(r, &route.hop[0], HSPMD_COMM_ZERO, zeros);
	if (!step)
		return -1;
	zeros = 0;
	for (int j = 0; j < d->count; j++) {
		if (assignment->to[j] >= 0)
			continue;
		step->out[zeros] = d->shard[j].box;
		step->members[zeros++] = d->device[j];
	}
	return hspmd_transfer_append(r, plan, &route);
}

static int answer_assignment(struct resolver *r, const struct side *s, const struct side *d, const struct assignment *assignment,
                             struct answer *answer)
{
	double longest = -1;
	answer->plan.network_busy = hspmd_arena_alloc(r->arena, 2 * (size_t)r->node_count, sizeof *answer->plan.network_busy);
	if (!answer->plan.network_busy || add_zeros(r, d, assignment, &answer->plan) != 0)
		return hspmd_fail_memory(r->err, "resolving");
	for (int problem = 0; problem < assignment->problems; problem++) {
		struct placement *from = source_placement(r, s, assignment, problem),
		                 *to = destination_placement(r, d, assignment, problem);
		if (!from || !to)
			return hspmd_fail_memory(r->err, "resolving");
		if (to->count == 0)
			continue;
		struct route route;
		if (hspmd_route_find(r, from, to, &route) != 0)
			return -1;
		if (hspmd_transfer_append(r, &answer->plan, &route) != 0)
			return hspmd_fail_memory(r->err, "resolving");
		if (route.seconds > longest) {
			longest = route.seconds;
			answer->why = route.why;
		}
	}
	answer->plan.seconds = hspmd_steps_seconds(r, answer->plan.step, answer->plan.step_count, answer->plan.network_busy);
	answer->found = true;
	return 0;
}

static int assignment_alloc(struct resolver *r, const struct side *s, const struct side *d, struct assignment *assignment)
{
	size_t have = (size_t)s->count, want = (size_t)d->count;
	*assignment = (struct assignment){ .from = hspmd_arena_alloc(r->arena, have, sizeof *assignment->from),
		                           .addend = hspmd_arena_alloc(r->arena, have, sizeof *assignment->addend),
		                           .addends = hspmd_arena_alloc(r->arena, have, sizeof *assignment->addends),
		                           .to = hspmd_arena_alloc(r->arena, want, sizeof *assignment->to) };
	return assignment->from && assignment->addend && assignment->addends && assignment->to ? 0 : -1;
}

static int find_answer(struct resolver *r, const struct hspmd_annotation *source, const struct hspmd_annotation *destination,
                       struct answer *best)
{
	struct side s, d;
	struct assignment assignment;
	int ways[MAX_WAYS], way_count;
	if (list_side(r, source, &s) != 0 || list_side(r, destination, &d) != 0 || number_devices(r, &s, &d) != 0 ||
	    assignment_alloc(r, &s, &d, &assignment) != 0 || (way_count = list_ways(r, &s, &d, ways)) < 0)
		return hspmd_fail_memory(r->err, "resolving");
	for (int w = 0; w < way_count; w++)
		for (enum assignment_method how = ASSIGN_TO_ONE; how < ASSIGNMENT_METHODS; how++) {
			struct answer answer = { 0 };
			if (!assign_addends(how, &s, ways[w], &d, &assignment))
				continue;
			if (answer_assignment(r, &s, &d, &assignment, &answer) != 0)
				return -1;
			if (!best->found || hspmd_cheaper(answer.plan.seconds, best->plan.seconds))
				*best = answer;
		}
	return 0;
}

static struct hspmd_transfer *resolve(struct resolver *r, const struct hspmd_annotation *source, const struct hspmd_annotation *destination)
{
	struct answer answer = { .why = "nothing to do" };
	if (source->rows && !hspmd_annotation_is_partial(source) && !hspmd_annotation_serves(source, destination, r->shape)) {
		hspmd_fail(r->err, "copies of which devices hold only the rows of their experts cannot be resharded");
		return NULL;
	}
	if (!hspmd_annotation_serves(source, destination, r->shape) && find_answer(r, source, destination, &answer) != 0)
		return NULL;
	struct hspmd_transfer *t = hspmd_transfer_create(r, &answer.plan, source, destination, answer.why);
	if (!t)
		hspmd_fail_memory(r->err, "resolving");
	return t;
}

static struct hspmd_transfer *resolve_anew(const struct hspmd_shape *shape, size_t element_bytes, const struct hspmd_annotation *source,
                                           const struct hspmd_annotation *destination, const struct hspmd_link_cost *cost,
                                           struct hspmd_error *err)
{
	struct resolver r = { .arena = hspmd_arena_create(), .shape = shape, .element_bytes = element_bytes, .cost = cost, .err = err };
	bool made = r.arena;
	for (int i = 0; i < SCRATCH_ARENAS; i++)
		made &= (r.scratch[i] = hspmd_arena_create()) != NULL;
	struct hspmd_transfer *t = NULL;
	if (made)
		t = resolve(&r, source, destination);
	else
		hspmd_fail_memory(err, "resolving");
	for (int i = 0; i < SCRATCH_ARENAS; i++)
		hspmd_arena_destroy(r.scratch[i]);
	hspmd_arena_destroy(r.arena);
	return t;
}

struct hspmd_transfer *hspmd_resolve(const struct hspmd_shape *shape, size_t element_bytes, const struct hspmd_annotation *source,
                                     const struct hspmd_annotation *destination, const struct hspmd_link_cost *cost,
                                     struct hspmd_error *err)
{
	struct hspmd_resolve_cache *cache = cost ? cost->cache : NULL;
	struct resolve_key key = { 0 };
	struct hspmd_transfer *t = NULL;
	if (cache && hspmd_resolve_key(&key, shape, element_bytes, source, destination) != 0) {
		hspmd_fail_memory(err, "resolving");
		return NULL;
	}
	if (cache)
		t = hspmd_resolve_cache_find(cache, &key);
	/* Annotations that have an answer have been checked. */
	if (!t && !hspmd_annotation_check(source, shape, err) && !hspmd_annotation_check(destination, shape, err)) {
		t = resolve_anew(shape, element_bytes, source, destination, cost, err);
		if (t && cache)
			hspmd_resolve_cache_keep(cache, &key, t);
	}
	free(key.value);
	return t;
}
