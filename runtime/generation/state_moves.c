/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/generation/state_moves.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/alloc.h"
#include "common/order.h"
#include "runtime/state/manifest.h"

/* A parameter that self holds or needs. */
struct own_parameter {
	int number;
	XXH128_hash_t members; /* of its holders and receivers */
	size_t have, have_end, need, need_end;
};

struct planner {
	const struct hspmd_state_moves *m;
	struct hspmd_error *err;
	bool joined; /* all kinds of state lie alike, so that one is planned and the others follow it */
	int *devices, *ranks;
	struct hspmd_local_shard *shards; /* of one annotation, of `devices` */
	struct own_parameter *own;
	struct hspmd_holding *have; /* of all own parameters, parameter after parameter */
	struct hspmd_need *need;
	size_t own_count, own_capacity, have_count, have_capacity, need_count, need_capacity;
	size_t *element_bytes; /* per state tensor; of all kinds together if they are joined */
	struct hspmd_planned_move *moves;
	size_t move_count, move_capacity;
};

static int out_of_memory(const struct planner *p)
{
	return hspmd_fail_memory(p->err, "planning state moves");
}

static int box_order(const struct hspmd_box *x, const struct hspmd_box *y)
{
	for (int d = 0; d < x->rank; d++) {
		if (x->lo[d] != y->lo[d])
			return x->lo[d] < y->lo[d] ? -1 : 1;
		if (x->hi[d] != y->hi[d])
			return x->hi[d] < y->hi[d] ? -1 : 1;
	}
	return 0;
}

static bool is_there(const struct hspmd_state_side *side, int parameter, int rank)
{
	const struct hspmd_annotation *a = side->layouts->parameters[parameter].state;
	for (int g = 0; g < a->hsize; g++)
		for (int d = 0; d < a->groups[g].device_count; d++)
			if (side->rank_of[a->groups[g].devices[d]] == rank)
				return true;
	return false;
}

static int add_have(struct planner *p, int tensor, int rank, const struct hspmd_box *box)
{
	if (hspmd_array_grow(&p->have, &p->have_capacity, p->have_count, sizeof *p->have))
		return out_of_memory(p);
	p->have[p->have_count++] = (struct hspmd_holding){ tensor, rank, *box };
	return 0;
}

static int add_need(struct planner *p, int tensor, int rank, const struct hspmd_box *box)
{
	if (hspmd_array_grow(&p->need, &p->need_capacity, p->need_count, sizeof *p->need))
		return out_of_memory(p);
	p->need[p->need_count++] = (struct hspmd_need){ tensor, rank, *box };
	return 0;
}

/* Add what the members of one side have, or need, of a parameter. */
static int add_side(struct planner *p, const struct hspmd_state_side *side, int parameter, bool needed)
{
	const struct hspmd_parameter_layout *l = &side->layouts->parameters[parameter];
	int count = hspmd_annotation_local_shards(l->state, &l->shape, p->devices, p->shards), status = 0;
	for (int i = 0; !status && i < count; i++) {
		int rank = side->rank_of[p->devices[i]];
		for (int k = 0; !status && rank >= 0 && k < (p->joined ? 1 : p->m->kinds); k++) {
			int tensor = parameter * HSPMD_STATE_KIND_COUNT + k;
			status = needed ? add_need(p, tensor, rank, &p->shards[i].box) : add_have(p, tensor, rank, &p->shards[i].box);
		}
	}
	return status;
}

static bool reads(const struct hspmd_file_side *f, int device, int rank)
{
	for (int i = f->first_reader[device]; i < f->first_reader[device + 1]; i++)
		if (f->readers[i] == rank)
			return true;
	return false;
}

static bool is_in_files(const struct hspmd_file_side *f, int parameter, int rank)
{
	const struct hspmd_annotation *a = f->layouts->parameters[parameter].state;
	for (int g = 0; g < a->hsize; g++)
		for (int d = 0; d < a->groups[g].device_count; d++)
			if (reads(f, a->groups[g].devices[d], rank) && f->has(f->context, a->groups[g].devices[d], parameter))
				return true;
	return false;
}

/* Add that members can read this part of a parameter in a device's file. Of a file that everybody can read, each reads what it needs. */
static int add_file(struct planner *p, const struct own_parameter *o, int device, const struct hspmd_box *box)
{
	const struct hspmd_file_side *f = p->m->files;
	struct hspmd_box common;
	int status = 0;
	for (int i = f->first_reader[device]; i < f->first_reader[device + 1]; i++)
		for (int k = 0; !status && k < (p->joined ? 1 : p->m->kinds); k++)
			status = add_have(p, o->number * HSPMD_STATE_KIND_COUNT + k, f->readers[i], box);
	for (size_t i = o->need; !status && f->everybody[device] && i < p->need_count; i++)
		if (hspmd_box_intersect(&p->need[i].box, box, &common))
			status = add_have(p, p->need[i].tensor, p->need[i].device, &common);
	return status;
}

/* Add what members can read of a parameter in files, after what they need of it. */
static int add_files(struct planner *p, const struct own_parameter *o)
{
	const struct hspmd_file_side *f = p->m->files;
	const struct hspmd_parameter_layout *l = &f->layouts->parameters[o->number];
	int count = hspmd_annotation_local_shards(l->state, &l->shape, p->devices, p->shards), status = 0;
	for (int i = 0; !status && i < count; i++)
		if (f->has(f->context, p->devices[i], o->number))
			status = add_file(p, o, p->devices[i], &p->shards[i].box);
	return status;
}

/* Appends the distinct ranks in ascending order; returns their end. */
static size_t add_ranks(int *ranks, size_t first, size_t end)
{
	size_t out = first;
	qsort(ranks + first, end - first, sizeof *ranks, hspmd_int_order);
	for (size_t i = first; i < end; i++)
		if (i == first || ranks[i] != ranks[out - 1])
			ranks[out++] = ranks[i];
	return out;
}

/* Identify the parameter's holders and receivers. */
static int find_members(struct planner *p, struct own_parameter *o)
{
	size_t have = o->have_end - o->have, need = o->need_end - o->need, holders, end;
	int *ranks = realloc(p->ranks, (have + need + 2) * sizeof *ranks);
	if (!ranks)
		return out_of_memory(p);
	p->ranks = ranks;
	for (size_t i = 0; i < have; i++)
		ranks[1 + i] = p->have[o->have + i].holder;
	holders = add_ranks(ranks, 1, 1 + have);
	for (size_t i = 0; i < need; i++)
		ranks[holders + i] = p->need[o->need + i].device;
	end = add_ranks(ranks, holders, holders + need);
	ranks[0] = (int)holders;
	o->members = XXH3_128bits(ranks, end * sizeof *ranks);
	return 0;
}

static int add_parameter(struct planner *p, int number, const struct hspmd_holding *stored, size_t stored_count)
{
	const struct hspmd_state_moves *m = p->m;
	struct own_parameter o = { .number = number, .have = p->have_count, .need = p->need_count };
	int status = add_side(p, m->now, number, true);
	for (int s = 0; !status && s < m->live_count; s++)
		status = add_side(p, &m->live[s], number, false);
	if (!status && m->files)
		status = add_files(p, &o);
	for (size_t i = 0; !status && i < stored_count; i++)
		status = add_have(p, stored[i].tensor, stored[i].holder, &stored[i].box);
	o.have_end = p->have_count;
	o.need_end = p->need_count;
	if (status || find_members(p, &o))
		return -1;
	if (hspmd_array_grow(&p->own, &p->own_capacity, p->own_count, sizeof *p->own))
		return out_of_memory(p);
	p->own[p->own_count++] = o;
	return 0;
}

/* Total, so that all members sort alike. */
static int holding_order(const void *a, const void *b)
{
	const struct hspmd_holding *x = a, *y = b;
	if (x->tensor != y->tensor)
		return x->tensor < y->tensor ? -1 : 1;
	return x->holder != y->holder ? (x->holder < y->holder ? -1 : 1) : box_order(&x->box, &y->box);
}

/* Collect the parameters that self holds or needs. */
static int find_own(struct planner *p)
{
	const struct hspmd_state_moves *m = p->m;
	struct hspmd_holding *stored = hspmd_calloc(m->stored_count, sizeof *stored);
	int status = stored ? 0 : out_of_memory(p);
	if (!status && m->stored_count) {
		memcpy(stored, m->stored, m->stored_count * sizeof *stored);
		qsort(stored, m->stored_count, sizeof *stored, holding_order);
	}
	size_t at = 0, end;
	for (int i = 0; !status && i < m->now->layouts->parameter_count; i++, at = end) {
		bool own = is_there(m->now, i, m->self);
		for (end = at; end < m->stored_count && stored[end].tensor / HSPMD_STATE_KIND_COUNT == i; end++)
			own = own || stored[end].holder == m->self;
		for (int s = 0; !own && s < m->live_count; s++)
			own = is_there(&m->live[s], i, m->self);
		own = own || (m->files && is_in_files(m->files, i, m->self));
		if (own && !(m->absent && m->absent[i]))
			status = add_parameter(p, i, stored + at, end - at);
	}
	free(stored);
	return status;
}

static int own_order(const void *a, const void *b)
{
	const struct own_parameter *x = a, *y = b;
	int order = XXH128_cmp(&x->members, &y->members);
	return order ? order : (x->number > y->number) - (x->number < y->number);
}

/* Keep the moves of self, of every kind of state. */
static int keep_moves(struct planner *p, const struct hspmd_planned_move *moves, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (moves[i].from != p->m->self && moves[i].to != p->m->self)
			continue;
		for (int k = 0; k < (p->joined ? p->m->kinds : 1); k++) {
			if (hspmd_array_grow(&p->moves, &p->move_capacity, p->move_count, sizeof *p->moves))
				return out_of_memory(p);
			p->moves[p->move_count] = moves[i];
			p->moves[p->move_count++].tensor += k;
		}
	}
	return 0;
}

/* Plan the moves of own[first..end), which have the same members. */
static int plan_together(struct planner *p, size_t first, size_t end)
{
	struct hspmd_holding *have = NULL;
	struct hspmd_need *need = NULL;
	struct hspmd_planned_move *moves = NULL;
	size_t have_count = 0, need_count = 0, count = 0;
	for (size_t i = first; i < end; i++) {
		have_count += p->own[i].have_end - p->own[i].have;
		need_count += p->own[i].need_end - p->own[i].need;
	}
	have = hspmd_calloc(have_count, sizeof *have);
	need = hspmd_calloc(need_count, sizeof *need);
	int status = have && need ? 0 : out_of_memory(p);
	have_count = need_count = 0;
	for (size_t i = first; !status && i < end; i++) {
		const struct own_parameter *o = &p->own[i];
		for (size_t k = o->have; k < o->have_end; k++)
			have[have_count++] = p->have[k];
		for (size_t k = o->need; k < o->need_end; k++)
			need[need_count++] = p->need[k];
	}
	if (!status)
		status = hspmd_plan_moves(have, have_count, need, need_count, p->element_bytes, p->m->cost, &moves, &count, p->err);
	if (!status)
		status = keep_moves(p, moves, count);
	free(have);
	free(need);
	free(moves);
	return status;
}

static int most_devices(const struct hspmd_state_moves *m)
{
	int most = m->now->device_count;
	for (int s = 0; s < m->live_count; s++)
		most = m->live[s].device_count > most ? m->live[s].device_count : most;
	return m->files && m->files->device_count > most ? m->files->device_count : most;
}

static int prepare(struct planner *p)
{
	const struct hspmd_state_moves *m = p->m;
	int parameters = m->now->layouts->parameter_count;
	size_t devices = (size_t)most_devices(m);
	p->joined = m->stored_count == 0;
	p->devices = hspmd_calloc(devices, sizeof *p->devices);
	p->shards = hspmd_calloc(devices, sizeof *p->shards);
	p->element_bytes = hspmd_calloc((size_t)parameters * HSPMD_STATE_KIND_COUNT, sizeof *p->element_bytes);
	if (!p->devices || !p->shards || !p->element_bytes)
		return out_of_memory(p);
	for (int i = 0; i < parameters * HSPMD_STATE_KIND_COUNT; i++)
		p->element_bytes[i] = m->element_bytes[i] * (size_t)(p->joined ? m->kinds : 1);
	return 0;
}

int hspmd_state_moves_plan(const struct hspmd_state_moves *m, struct hspmd_planned_move **moves, size_t *count, struct hspmd_error *err)
{
	struct planner p = { .m = m, .err = err };
	int status = prepare(&p) || find_own(&p) ? -1 : 0;
	if (!status && p.own_count)
		qsort(p.own, p.own_count, sizeof *p.own, own_order);
	for (size_t i = 0, end; !status && i < p.own_count; i = end) {
		for (end = i + 1; end < p.own_count && XXH128_isEqual(p.own[end].members, p.own[i].members);)
			end++;
		status = plan_together(&p, i, end);
	}
	if (!status && p.move_count)
		qsort(p.moves, p.move_count, sizeof *p.moves, hspmd_planned_move_order);
	free(p.devices);
	free(p.ranks);
	free(p.shards);
	free(p.own);
	free(p.have);
	free(p.need);
	free(p.element_bytes);
	if (status) {
		free(p.moves);
		return -1;
	}
	*moves = p.moves;
	*count = p.move_count;
	return 0;
}
