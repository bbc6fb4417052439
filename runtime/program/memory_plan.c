/* SPDX-License-Identifier: Apache-2.0 */
/* Assigns an offset to every slot. Fixed slots are adjacent. Transient slots are live from the instruction that writes them to the last
 * one that reads them (hspmd_program_lifetimes); they are placed by best fit into the gaps between live slots. Small slots in a large
 * slot's gap (that of the logits) can prevent the next large slot from fitting; therefore the largest slots are also tried in a part of
 * their own. If both leave gaps, all slots are also placed by place_blocks.c. The smallest arena is used. What is offloaded has a place in
 * the host's memory from its copy there to its copy back: copies are made in the order of the instructions. */
#include <stdint.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/op/op.h"
#include "runtime/program/place_blocks.h"
#include "runtime/program/program.h"

struct gap {
	size_t offset, bytes;
};

/* A part of the transient arena. */
struct heap {
	size_t bytes;
	size_t gap_count, gap_capacity;
	struct gap *gaps; /* free ranges by offset, never adjacent to each other; everything after `bytes` is free */
};

struct placer {
	struct hspmd_program *p;
	struct hspmd_error *err;
	struct hspmd_slot_lifetime *lifetimes; /* per slot */
	struct heap heaps[2];
	size_t large; /* slots of at least this many bytes are in the second heap */
	size_t goal;  /* no smaller arena is looked for */
};

static size_t aligned(size_t bytes)
{
	return bytes ? (bytes + HSPMD_PROGRAM_ALIGN - 1) / HSPMD_PROGRAM_ALIGN * HSPMD_PROGRAM_ALIGN : HSPMD_PROGRAM_ALIGN;
}

static size_t slot_bytes(const struct hspmd_program *p, int slot)
{
	const struct hspmd_slot_type *type = &p->slot_types[p->slots[slot].slot_type];
	return aligned(type->room > type->bytes ? type->room : type->bytes);
}

/* The slot must still be there at instruction `at`. */
static void hold(struct hspmd_slot_lifetime *l, size_t at)
{
	l->last = at > l->last ? at : l->last;
}

static void touch(struct hspmd_slot_lifetime *l, size_t at)
{
	if (!l->used)
		l->first = at;
	l->used = true;
	l->last_use = at;
	hold(l, at);
}

/* The slot (-1: none) is used by all of these instructions. */
static void touch_all(struct hspmd_slot_lifetime *lifetimes, int slot, size_t begin, size_t end)
{
	if (slot < 0)
		return;
	touch(&lifetimes[slot], begin);
	touch(&lifetimes[slot], end);
}

/* A message may still be in transit after its instruction, and whatever overwrites its source must wait for it. Within a stage all
 * devices run the same instructions, so if the source stays until the end of the next schedule entry, that wait is certain to end;
 * mostly an earlier point suffices (surely_taken). Between stages it does not: the receiver may be waiting for this device. In that case
 * the source stays until this device receives something that the receiver sent after it had received this message (or, if there is no
 * such message, until the vote). */
static size_t end_of_next_entry(const struct hspmd_program *p, size_t at)
{
	int schedule_index = p->instructions[at].schedule_index + 1;
	while (at + 1 < p->instruction_count && p->instructions[at + 1].schedule_index <= schedule_index)
		at++;
	return at;
}

static size_t surely_received(const struct hspmd_program *p, size_t at)
{
	const struct hspmd_instruction *sent = &p->instructions[at];
	for (size_t i = at + 1; i < p->vote; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (in->kind == HSPMD_INSTRUCTION_COMM && in->peer_pipeline_rank == sent->peer_pipeline_rank && !in->sends &&
		    in->peer_schedule_index >= sent->peer_schedule_index)
			return i;
	}
	return p->vote > at ? p->vote - 1 : at;
}

static const struct hspmd_comm_step *step_of(const struct hspmd_instruction *in)
{
	return &in->transfer->steps[in->step];
}

/* Returns true if no member can finish this step before all of these members have begun it. */
static bool includes_members(const struct hspmd_comm_step *step, const struct hspmd_comm_step *members)
{
	if (step->kind != HSPMD_COMM_ALL_REDUCE && step->kind != HSPMD_COMM_REDUCE_SCATTER && step->kind != HSPMD_COMM_ALL_GATHER)
		return false;
	for (int m = 0, at; m < members->member_count; m++) {
		for (at = 0; at < step->member_count && step->members[at] != members->members[m]; at++)
			continue;
		if (at == step->member_count)
			return false;
	}
	return true;
}

/* The point from which a message's source may be overwritten. An all-reduce has sent everything when its result is complete, and the
 * first reader of the result waits for that. For other steps, the members have received what this device sends when they take part in a
 * later collective, because an engine runs steps in order. end: the last of the instructions that run with this one. At most `latest`. */
static size_t surely_taken(const struct hspmd_program *p, size_t at, size_t end, size_t latest)
{
	const struct hspmd_instruction *sent = &p->instructions[at];
	bool whole = step_of(sent)->kind == HSPMD_COMM_ALL_REDUCE && sent->out[0] >= 0;
	for (size_t i = end + 1; sent->micro_batch >= 0 && i < latest; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (whole ? hspmd_instruction_uses(in, sent->out[0])
		          : in->kind == HSPMD_INSTRUCTION_COMM && in->micro_batch >= 0 && includes_members(step_of(in), step_of(sent)))
			return i;
	}
	return latest;
}

static void find_uses(const struct hspmd_program *p, struct hspmd_slot_lifetime *lifetimes)
{
	size_t entry_end = 0, begin = 0, end = 0; /* of instructions that run as one, or beside each other */
	int schedule_index = -1;
	for (size_t i = 0; i < p->instruction_count; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		if (!hspmd_program_runs_along(p, i)) {
			begin = i;
			end = hspmd_program_runs_until(p, i);
		}
		for (int k = 0; k < in->input_count; k++)
			touch_all(lifetimes, in->in[k], begin, end);
		for (int k = 0; k < in->output_count; k++)
			touch_all(lifetimes, in->out[k], begin, end);
		if (in->kind != HSPMD_INSTRUCTION_COMM)
			continue;
		/* The passes do not wait for steps that overlap them, whose peers may be late: the slots stay until the vote. */
		if (in->overlaps && in->out[0] >= 0)
			hold(&lifetimes[in->out[0]], p->vote - 1);
		if (in->overlaps && in->in[0] >= 0)
			hold(&lifetimes[in->in[0]], p->vote - 1);
		if (in->overlaps || in->in[0] < 0)
			continue;
		if (in->schedule_index != schedule_index) {
			schedule_index = in->schedule_index;
			entry_end = end_of_next_entry(p, i);
		}
		hold(&lifetimes[in->in[0]],
		     in->peer_pipeline_rank >= 0 && in->sends ? surely_received(p, i) : surely_taken(p, i, end, entry_end));
	}
}

/* If an output may overwrite an input that dies at this instruction, and none of those from `begin` on that run beside it uses it, it takes
 * the input's memory. Returns the input's index, -1: none. */
static int overwrites(const struct hspmd_program *p, const struct hspmd_slot_lifetime *lifetimes, size_t begin, size_t at, int output)
{
	const struct hspmd_instruction *in = &p->instructions[at];
	if (in->kind != HSPMD_INSTRUCTION_RUN)
		return -1;
	int k = hspmd_op_types[in->opcode]->in_place[output] - 1;
	if (k < 0 || k >= in->input_count || in->in[k] < 0 || p->slots[in->in[k]].memory != HSPMD_ARENA_TRANSIENT ||
	    lifetimes[in->in[k]].last != at)
		return -1;
	for (int other = 0; other < in->input_count; other++)
		if (other != k && in->in[other] == in->in[k])
			return -1;
	for (size_t i = begin; i < at; i++)
		if (hspmd_instruction_uses(&p->instructions[i], in->in[k]))
			return -1;
	return slot_bytes(p, in->in[k]) == slot_bytes(p, in->out[output]) ? k : -1;
}

static bool is_new(const struct hspmd_program *p, const struct hspmd_slot_lifetime *lifetimes, size_t at, int slot)
{
	return slot >= 0 && p->slots[slot].memory == HSPMD_ARENA_TRANSIENT && lifetimes[slot].first == at;
}

void hspmd_program_lifetimes(const struct hspmd_program *p, struct hspmd_slot_lifetime *lifetimes)
{
	for (size_t s = 0; s < p->slot_count; s++)
		lifetimes[s] = (struct hspmd_slot_lifetime){ .takes_over = -1 };
	find_uses(p, lifetimes);
	for (size_t i = 0, begin = 0; i < p->instruction_count; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		bool taken[HSPMD_OP_MAX_IO] = { false };
		begin = hspmd_program_runs_along(p, i) ? begin : i;
		for (int o = 0; o < in->output_count; o++) {
			int k = is_new(p, lifetimes, begin, in->out[o]) ? overwrites(p, lifetimes, begin, i, o) : -1;
			if (k < 0 || taken[k])
				continue;
			taken[k] = true;
			lifetimes[in->out[o]].takes_over = in->in[k];
		}
	}
}

static struct heap *heap_of(struct placer *pl, size_t bytes)
{
	return &pl->heaps[bytes >= pl->large];
}

static int free_range(struct placer *pl, size_t offset, size_t bytes)
{
	struct heap *h = heap_of(pl, bytes);
	size_t at = 0;
	while (at < h->gap_count && h->gaps[at].offset < offset)
		at++;
	bool joins_before = at > 0 && h->gaps[at - 1].offset + h->gaps[at - 1].bytes == offset;
	bool joins_after = at < h->gap_count && offset + bytes == h->gaps[at].offset;
	if (joins_before && joins_after) {
		h->gaps[at - 1].bytes += bytes + h->gaps[at].bytes;
		memmove(&h->gaps[at], &h->gaps[at + 1], (--h->gap_count - at) * sizeof *h->gaps);
	} else if (joins_before) {
		h->gaps[at - 1].bytes += bytes;
	} else if (joins_after) {
		h->gaps[at].offset = offset;
		h->gaps[at].bytes += bytes;
	} else {
		if (hspmd_array_grow(&h->gaps, &h->gap_capacity, h->gap_count, sizeof *h->gaps))
			return hspmd_fail_memory(pl->err, "planning memory");
		memmove(&h->gaps[at + 1], &h->gaps[at], (h->gap_count++ - at) * sizeof *h->gaps);
		h->gaps[at] = (struct gap){ offset, bytes };
	}
	return 0;
}

static size_t allocate_range(struct placer *pl, size_t bytes)
{
	struct heap *h = heap_of(pl, bytes);
	size_t best = h->gap_count;
	for (size_t g = 0; g < h->gap_count; g++)
		if (h->gaps[g].bytes >= bytes && (best == h->gap_count || h->gaps[g].bytes < h->gaps[best].bytes))
			best = g;
	if (best == h->gap_count) { /* grow the heap, including the last gap if it touches the end */
		size_t offset = h->bytes;
		if (h->gap_count && h->gaps[h->gap_count - 1].offset + h->gaps[h->gap_count - 1].bytes == h->bytes)
			offset = h->gaps[--h->gap_count].offset;
		h->bytes = offset + bytes;
		return offset;
	}
	size_t offset = h->gaps[best].offset;
	h->gaps[best].offset += bytes;
	h->gaps[best].bytes -= bytes;
	if (!h->gaps[best].bytes)
		memmove(&h->gaps[best], &h->gaps[best + 1], (--h->gap_count - best) * sizeof *h->gaps);
	return offset;
}

static void place_outputs(struct placer *pl, size_t at, bool *taken_over)
{
	struct hspmd_program *p = pl->p;
	const struct hspmd_instruction *in = &p->instructions[at], *last = p->instructions + hspmd_program_runs_until(p, at);
	for (; in <= last; in++)
		for (int o = 0; o < in->output_count; o++) {
			int slot = in->out[o];
			if (!is_new(p, pl->lifetimes, at, slot))
				continue;
			int from = pl->lifetimes[slot].takes_over;
			if (from >= 0)
				taken_over[from] = true;
			p->slots[slot].offset = from >= 0 ? p->slots[from].offset : allocate_range(pl, slot_bytes(p, slot));
		}
}

/* Slots by the instruction of their last use, as linked lists: head per instruction, next per slot. */
static int place_arena(struct placer *pl)
{
	struct hspmd_program *p = pl->p;
	int *head = malloc((p->instruction_count + 1) * sizeof *head), *next = malloc((p->slot_count + 1) * sizeof *next);
	bool *taken_over = hspmd_calloc(p->slot_count + 1, sizeof *taken_over);
	int status = head && next && taken_over ? 0 : hspmd_fail_memory(pl->err, "planning memory");
	if (!status) {
		memset(head, -1, (p->instruction_count + 1) * sizeof *head);
		for (size_t s = 0; s < p->slot_count; s++) {
			if (!pl->lifetimes[s].used || p->slots[s].memory != HSPMD_ARENA_TRANSIENT)
				continue;
			next[s] = head[pl->lifetimes[s].last];
			head[pl->lifetimes[s].last] = (int)s;
		}
	}
	for (size_t i = 0; !status && i < p->instruction_count; i++) {
		place_outputs(pl, i, taken_over);
		for (int s = head[i]; !status && s >= 0; s = next[s])
			if (!taken_over[s])
				status = free_range(pl, p->slots[s].offset, slot_bytes(p, s));
	}
	free(head);
	free(next);
	free(taken_over);
	return status;
}

/* Place all transient slots; those of at least `large` bytes in a part of their own after the others. */
static int place_with(struct placer *pl, size_t large)
{
	struct hspmd_program *p = pl->p;
	pl->large = large;
	for (int h = 0; h < 2; h++)
		pl->heaps[h].bytes = pl->heaps[h].gap_count = 0;
	if (place_arena(pl))
		return -1;
	for (size_t s = 0; s < p->slot_count; s++)
		if (pl->lifetimes[s].used && p->slots[s].memory == HSPMD_ARENA_TRANSIENT && slot_bytes(p, (int)s) >= large)
			p->slots[s].offset += pl->heaps[0].bytes;
	p->arena_bytes = pl->heaps[0].bytes + pl->heaps[1].bytes;
	return 0;
}

/* Slots that take over each other's memory are one block. Returns their number; the caller frees *blocks and *block_of, which gives a
 * slot's block. -1: memory. */
static long find_blocks(const struct placer *pl, struct hspmd_memory_block **blocks, int **block_of)
{
	const struct hspmd_program *p = pl->p;
	long count = 0;
	*blocks = hspmd_calloc(p->slot_count, sizeof **blocks);
	*block_of = hspmd_calloc(p->slot_count, sizeof **block_of);
	for (size_t i = 0, begin = 0; *blocks && *block_of && i < p->instruction_count; i++) {
		begin = hspmd_program_runs_along(p, i) ? begin : i;
		for (int o = 0; o < p->instructions[i].output_count; o++) {
			int slot = p->instructions[i].out[o];
			if (!is_new(p, pl->lifetimes, begin, slot))
				continue;
			const struct hspmd_slot_lifetime *l = &pl->lifetimes[slot];
			if (l->takes_over >= 0) {
				(*block_of)[slot] = (*block_of)[l->takes_over];
				(*blocks)[(*block_of)[slot]].last = l->last;
				continue;
			}
			(*blocks)[count] = (struct hspmd_memory_block){ .first = l->first, .last = l->last, .bytes = slot_bytes(p, slot) };
			(*block_of)[slot] = (int)count++;
		}
	}
	return *blocks && *block_of ? count : -1;
}

/* If the slots take more memory than the goal and than what lives at one time, place them by all lifetimes at once. */
static int place_by_lifetimes(struct placer *pl)
{
	struct hspmd_program *p = pl->p;
	struct hspmd_memory_block *blocks;
	int *block_of;
	size_t bytes = SIZE_MAX;
	if (p->arena_bytes <= pl->goal)
		return 0;
	long count = find_blocks(pl, &blocks, &block_of);
	int status = count < 0 ? hspmd_fail_memory(pl->err, "planning memory") : 0;
	if (!status && hspmd_live_bytes(blocks, (size_t)count) < p->arena_bytes)
		status = hspmd_place_blocks(blocks, (size_t)count, pl->goal, &bytes, pl->err);
	if (bytes < p->arena_bytes) {
		p->arena_bytes = bytes;
		for (size_t s = 0; s < p->slot_count; s++)
			if (pl->lifetimes[s].used && p->slots[s].memory == HSPMD_ARENA_TRANSIENT)
				p->slots[s].offset = blocks[block_of[s]].offset;
	}
	free(blocks);
	free(block_of);
	return status;
}

static int place_best(struct placer *pl)
{
	const struct hspmd_program *p = pl->p;
	size_t largest = 0;
	if (place_with(pl, SIZE_MAX))
		return -1;
	size_t together = p->arena_bytes;
	for (size_t s = 0; s < p->slot_count; s++)
		if (pl->lifetimes[s].used && p->slots[s].memory == HSPMD_ARENA_TRANSIENT && slot_bytes(p, (int)s) > largest)
			largest = slot_bytes(p, (int)s);
	if (!largest || largest == together)
		return 0;
	if (place_with(pl, largest))
		return -1;
	return p->arena_bytes > together ? place_with(pl, SIZE_MAX) : 0;
}

static void place_next(struct hspmd_program *p, int slot, bool *placed)
{
	if (slot < 0 || placed[slot])
		return;
	size_t *end = p->slots[slot].memory == HSPMD_ARENA_HOST ? &p->host_bytes : &p->fixed_bytes;
	placed[slot] = true;
	p->slots[slot].offset = *end;
	*end += slot_bytes(p, slot);
}

/* Place all fixed slots one after another, those in the host's memory in an arena of their own: first the training state, so that its place
 * depends on nothing but the state, and programs of several plans can work on one state; adjacent_to chains stay in order. */
static int place_fixed(struct placer *pl)
{
	struct hspmd_program *p = pl->p;
	int *next = malloc((p->slot_count + 1) * sizeof *next);
	bool *placed = hspmd_calloc(p->slot_count + 1, sizeof *placed);
	if (!next || !placed) {
		free(next);
		free(placed);
		return hspmd_fail_memory(pl->err, "planning memory");
	}
	for (int i = 0; i < p->state_count; i++) {
		place_next(p, p->states[i].param, placed);
		for (int k = 0; k < HSPMD_OPTIMIZER_MOMENTS; k++)
			place_next(p, p->states[i].moments[k], placed);
		place_next(p, p->states[i].copy, placed);
	}
	memset(next, -1, (p->slot_count + 1) * sizeof *next);
	for (size_t s = 0; s < p->slot_count; s++)
		if (p->slots[s].adjacent_to >= 0)
			next[p->slots[s].adjacent_to] = (int)s;
	for (size_t s = 0; s < p->slot_count; s++) {
		if (p->slots[s].memory != HSPMD_ARENA_FIXED || p->slots[s].adjacent_to >= 0 || p->slots[s].aliases >= 0)
			continue;
		for (int at = (int)s; at >= 0; at = next[at])
			place_next(p, at, placed);
	}
	for (size_t s = 0; s < p->slot_count; s++)
		if (p->slots[s].aliases >= 0)
			p->slots[s].offset = p->slots[p->slots[s].aliases].offset;
	free(next);
	free(placed);
	return 0;
}

/* Place the offloaded activations in their arena. */
static int place_saved(struct placer *pl)
{
	struct hspmd_program *p = pl->p;
	struct hspmd_memory_block *blocks = hspmd_calloc(p->slot_count + 1, sizeof *blocks);
	int *slots = hspmd_calloc(p->slot_count + 1, sizeof *slots);
	size_t count = 0;
	int status = blocks && slots ? 0 : hspmd_fail_memory(pl->err, "planning memory");
	for (size_t i = 0; !status && i < p->instruction_count; i++) {
		int slot = p->instructions[i].kind == HSPMD_INSTRUCTION_COPY ? p->instructions[i].out[0] : -1;
		if (slot < 0 || p->slots[slot].memory != HSPMD_ARENA_SAVED)
			continue;
		blocks[count] = (struct hspmd_memory_block){ .first = pl->lifetimes[slot].first,
			                                     .last = pl->lifetimes[slot].last,
			                                     .bytes = slot_bytes(p, slot) };
		slots[count++] = slot;
	}
	if (!status && count)
		status = hspmd_place_blocks(blocks, count, 0, &p->saved_bytes, pl->err);
	for (size_t i = 0; !status && i < count; i++)
		p->slots[slots[i]].offset = blocks[i].offset;
	free(blocks);
	free(slots);
	return status;
}

int hspmd_program_live_bytes(const struct hspmd_program *p, size_t *live, struct hspmd_error *err)
{
	struct hspmd_slot_lifetime *lifetimes = hspmd_calloc(p->slot_count, sizeof *lifetimes);
	if (!lifetimes)
		return hspmd_fail_memory(err, "planning memory");
	hspmd_program_lifetimes(p, lifetimes);
	memset(live, 0, (p->instruction_count + 1) * sizeof *live);
	for (size_t s = 0; s < p->slot_count; s++) {
		const struct hspmd_slot_lifetime *l = &lifetimes[s];
		if (!l->used || p->slots[s].memory != HSPMD_ARENA_TRANSIENT)
			continue;
		/* What takes over another slot's memory has its own from there on where the other one ends. */
		live[l->takes_over >= 0 ? lifetimes[l->takes_over].last + 1 : l->first] += slot_bytes(p, (int)s);
		live[l->last + 1] -= slot_bytes(p, (int)s);
	}
	for (size_t i = 1; i < p->instruction_count; i++)
		live[i] += live[i - 1];
	free(lifetimes);
	return 0;
}

int hspmd_program_plan_memory(struct hspmd_program *p, size_t goal, struct hspmd_error *err)
{
	struct placer pl = {
		.p = p, .err = err, .goal = goal, .lifetimes = hspmd_calloc(p->slot_count, sizeof(struct hspmd_slot_lifetime))
	};
	if (!pl.lifetimes)
		return hspmd_fail_memory(err, "planning memory");
	p->fixed_bytes = p->host_bytes = p->saved_bytes = p->arena_bytes = 0;
	int status = place_fixed(&pl);
	if (!status) {
		hspmd_program_lifetimes(p, pl.lifetimes);
		status = place_best(&pl) || place_by_lifetimes(&pl) || place_saved(&pl) ? -1 : 0;
	}
	free(pl.lifetimes);
	free(pl.heaps[0].gaps);
	free(pl.heaps[1].gaps);
	return status;
}
