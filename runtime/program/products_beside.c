/* SPDX-License-Identifier: Apache-2.0 */
/* Products that run beside other operators of the backward pass. Nothing but the sums of gradients waits for the gradients of weights, so
 * such products may be computed later than they could be. An operator that is bound by memory does not need all of a device's
 * multiprocessors, and a product can leave it some: both together take less time than one after the other.
 *
 * A group is some gradients of weights, marked `beside`, and the operator that is bound by memory behind them. The products move down to
 * it, over operators that neither write what they read nor touch what they write; the order of the additions to one gradient stays. A group
 * is within a layer's backward pass and has no communication, copies or samples in it: what follows waits for all of it. To the memory plan
 * everything that a group uses is in use from its beginning to its end (memory_plan.c). Devices whose kind cannot run operators beside each
 * other get no groups; a device that can decides by itself whether it does (struct hspmd_device_ops, run_apart), which changes no result's
 * place.
 *
 * How many products: as many as take as long as the operator does with the few multiprocessors that even a large product leaves idle
 * in its last round of tiles, or as there are in the layer.
 *
 * What waits keeps what it reads. A group is dropped if the arena would become larger by it than the program's without groups: where that
 * is full, which is mostly at the beginning of a backward pass, in the layers that come last in the model. So the solver, which knows no
 * groups, predicts the arena of programs with them. First all groups go during which more bytes would live at one time than the arena has.
 * Should the others not find their places in it, for what lives leaves gaps, those go first during which most lives: how many, is searched
 * by halves, with TRIES plans at most. With 80 layers and eight micro-batches all of it takes 0.1 s.
 *
 * HSPMD_CUDA_PRODUCTS_BESIDE=0: there are no groups. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/device_traits.h"
#include "runtime/op/op.h"
#include "runtime/program/program.h"

/* Operations of a product, per byte that the operator beside it moves, with which they end together if the product leaves it 4 of 132
 * multiprocessors: in a cycle one of them multiplies and adds 4096 / 2 pairs in BF16, or moves 48 bytes. */
#define ENOUGH (4096.0 / 48 * 128 / 4)

#define TRIES 6 /* plans of the arena at most, and one more for the last that fits */

/* A gradient that is sent away behind its layer (ZeRO 2 and 3) is in the transient arena; it stays where the solver expects it. */
static bool is_product(const struct hspmd_program *p, const struct hspmd_instruction *in)
{
	if (in->output_count < 1 || in->out[0] < 0 || p->slots[in->out[0]].memory != HSPMD_ARENA_FIXED)
		return false;
	return in->kind == HSPMD_INSTRUCTION_RUN && in->opcode == HSPMD_OP_LINEAR_GRAD_W && in->backward;
}

static bool streams(const struct hspmd_instruction *in)
{
	return in->kind == HSPMD_INSTRUCTION_RUN && in->backward && hspmd_op_types[in->opcode]->streams;
}

/* The slot whose memory it begins at. */
static int memory_of(const struct hspmd_program *p, int slot)
{
	return p->slots[slot].aliases >= 0 ? p->slots[slot].aliases : slot;
}

/* Returns true if `a` writes what `b` reads or writes. */
static bool writes_for(const struct hspmd_program *p, const struct hspmd_instruction *a, const struct hspmd_instruction *b)
{
	for (int o = 0; o < a->output_count; o++) {
		if (a->out[o] < 0)
			continue;
		for (int k = 0; k < b->input_count + b->output_count; k++) {
			int slot = k < b->input_count ? b->in[k] : b->out[k - b->input_count];
			if (slot >= 0 && memory_of(p, slot) == memory_of(p, a->out[o]))
				return true;
		}
	}
	return false;
}

/* Returns true if the product at `from` may run at the same time as, and so also behind, all instructions up to `to`. */
static bool can_wait(const struct hspmd_program *p, size_t from, size_t to)
{
	const struct hspmd_instruction *product = &p->instructions[from];
	for (size_t i = from + 1; i <= to; i++)
		if (writes_for(p, product, &p->instructions[i]) || writes_for(p, &p->instructions[i], product))
			return false;
	return true;
}

static bool is_near(const struct hspmd_instruction *in, const struct hspmd_instruction *last)
{
	return in->kind == HSPMD_INSTRUCTION_RUN && in->layer == last->layer && in->micro_batch == last->micro_batch &&
	       in->schedule_index == last->schedule_index && in->backward;
}

/* Numbers are those of the program's instructions without groups. */
struct group {
	size_t first, last; /* its first product, and the operator beside its products */
	size_t most;        /* bytes that live at one time while its products wait */
	bool kept;
};

struct trial {
	struct hspmd_program *p;
	struct hspmd_error *err;
	size_t room;                     /* bytes of the arena without groups */
	struct hspmd_instruction *apart; /* the program's without groups */
	int *group_of;                   /* per instruction: the group that it is a product of; -1: none */
	size_t *place;                   /* per instruction: where it is with the groups that are kept */
	size_t *live;                    /* per instruction in their order with these */
	struct group *groups, **order;   /* by their last instructions; those kept, what needs least first */
	size_t count, kept;
};

static int trial_open(struct trial *t, struct hspmd_program *p, struct hspmd_error *err)
{
	size_t n = p->instruction_count + 1;
	*t = (struct trial){ .p = p, .err = err, .room = p->arena_bytes };
	t->apart = malloc(n * sizeof *t->apart);
	t->group_of = malloc(n * sizeof *t->group_of);
	t->place = hspmd_calloc(n, sizeof *t->place);
	t->live = hspmd_calloc(n, sizeof *t->live);
	t->groups = hspmd_calloc(n, sizeof *t->groups);
	t->order = hspmd_calloc(n, sizeof *t->order);
	if (!t->apart || !t->group_of || !t->place || !t->live || !t->groups || !t->order)
		return hspmd_fail_memory(err, "planning memory");
	memcpy(t->apart, p->instructions, p->instruction_count * sizeof *t->apart);
	memset(t->group_of, -1, n * sizeof *t->group_of);
	return 0;
}

static void trial_close(struct trial *t)
{
	free(t->apart);
	free(t->group_of);
	free(t->place);
	free(t->live);
	free(t->groups);
	free(t->order);
}

/* Makes the group whose products run beside instruction `last`, if there are any. */
static void find_group(struct trial *t, size_t last)
{
	const struct hspmd_program *p = t->p;
	double wanted = ENOUGH * hspmd_instruction_bytes(p, &p->instructions[last]), flops = 0;
	size_t first = last;
	for (size_t i = last; i-- > 0 && flops < wanted && is_near(&p->instructions[i], &p->instructions[last]);) {
		if (t->group_of[i] >= 0 || !is_product(p, &p->instructions[i]) || !can_wait(p, i, last))
			continue;
		flops += hspmd_instruction_flops(p, &p->instructions[i]);
		t->group_of[i] = (int)t->count;
		first = i;
	}
	if (first < last)
		t->groups[t->count++] = (struct group){ .first = first, .last = last, .kept = true };
}

static void put(struct trial *t, size_t at, size_t instruction, bool beside)
{
	t->p->instructions[at] = t->apart[instruction];
	t->p->instructions[at].beside = beside;
	t->place[instruction] = at;
}

/* Gives the program the groups that are kept: their products are where their operators are. */
static void arrange(struct trial *t)
{
	size_t at = 0, next = 0;
	for (size_t i = 0; i < t->p->instruction_count; i++) {
		const struct group *g = &t->groups[next];
		if (t->group_of[i] >= 0 && t->groups[t->group_of[i]].kept)
			continue;
		if (next < t->count && g->last == i) {
			for (size_t k = g->first; k < i && g->kept; k++)
				if (t->group_of[k] == (int)next)
					put(t, at++, k, true);
			next++;
		}
		put(t, at++, i, false);
	}
}

/* The bytes that live at one time, at most, from where the group's first product was to its end. */
static size_t most_while(const struct trial *t, const struct group *g)
{
	size_t begin = t->place[g->last], most = 0;
	for (size_t i = g->first; i < g->last; i++)
		begin = t->place[i] < begin ? t->place[i] : begin;
	for (size_t at = begin; at <= t->place[g->last]; at++)
		most = t->live[at] > most ? t->live[at] : most;
	return most;
}

/* Drops all groups during which more lives than there is room for. */
static int drop_what_needs_more(struct trial *t)
{
	bool dropped = true;
	while (dropped) {
		arrange(t);
		if (hspmd_program_live_bytes(t->p, t->live, t->err))
			return -1;
		dropped = false;
		t->kept = 0;
		for (struct group *g = t->groups; g < t->groups + t->count; g++) {
			if (!g->kept)
				continue;
			g->most = most_while(t, g);
			g->kept = g->most <= t->room;
			dropped |= !g->kept;
			t->order[t->kept++] = g;
			t->kept -= !g->kept;
		}
	}
	return 0;
}

static int by_need(const void *a, const void *b)
{
	const struct group *x = *(struct group *const *)a, *y = *(struct group *const *)b;
	return x->most != y->most ? (x->most > y->most) - (x->most < y->most) : (x->last > y->last) - (x->last < y->last);
}

/* Keeps the first so many in their order. *fits: with them the arena is not larger than without groups. */
static int try_groups(struct trial *t, size_t count, bool *fits)
{
	for (size_t g = 0; g < t->kept; g++)
		t->order[g]->kept = g < count;
	arrange(t);
	if (hspmd_program_plan_memory(t->p, count ? t->room : 0, t->err))
		return -1;
	*fits = t->p->arena_bytes <= t->room;
	return 0;
}

static int keep_what_fits(struct trial *t)
{
	size_t low = 0, high = t->kept, now = t->kept;
	bool fits;
	qsort(t->order, t->kept, sizeof *t->order, by_need);
	if (try_groups(t, now, &fits))
		return -1;
	for (int tries = 1; !fits && tries < TRIES && high - low > 1; tries++) {
		now = low + (high - low) / 2;
		if (try_groups(t, now, &fits))
			return -1;
		*(fits ? &low : &high) = now;
		fits = false;
	}
	return now == low || fits ? 0 : try_groups(t, low, &fits);
}

static bool wanted(enum hspmd_device_kind kind)
{
	const char *asked = getenv("HSPMD_CUDA_PRODUCTS_BESIDE");
	return hspmd_device_traits(kind)->beside && !(asked && !strcmp(asked, "0"));
}

int hspmd_program_run_beside(struct hspmd_program *p, enum hspmd_device_kind kind, struct hspmd_error *err)
{
	struct trial t;
	if (!wanted(kind))
		return 0;
	int status = trial_open(&t, p, err);
	for (size_t i = 0; !status && i < p->instruction_count; i++)
		if (streams(&p->instructions[i]))
			find_group(&t, i);
	if (!status && t.count)
		status = drop_what_needs_more(&t) || keep_what_fits(&t) ? -1 : 0;
	trial_close(&t);
	return status;
}

int64_t hspmd_program_bytes_beside(const struct hspmd_program *p, const struct hspmd_instruction *in)
{
	size_t first = (size_t)(in - p->instructions), last = first;
	double flops = 0;
	if (!in->beside)
		return 0;
	while (first && p->instructions[first - 1].beside)
		first--;
	while (p->instructions[last].beside)
		last++;
	for (size_t i = first; i < last; i++)
		flops += hspmd_instruction_flops(p, &p->instructions[i]);
	return (int64_t)(hspmd_instruction_bytes(p, &p->instructions[last]) * hspmd_instruction_flops(p, in) / flops) + 1;
}
