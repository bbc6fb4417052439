/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/program/place_blocks.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/alloc.h"

/* For each kind of weights: rounds at most, and rounds in a row at most that bring nothing. For all of them: blocks placed at most (some
 * 50 ms), and the part of the memory that is not worth more rounds. */
#define ROUNDS 50
#define ROUNDS_IN_VAIN 25
#define PLACED_MAX 150000
#define NEGLIGIBLE 0.001

/* By how much the weight of a block grows that ended too high. */
#define MORE_WEIGHT 2.0

#define WEIGHTS 4 /* kinds of them */

#define NONE SIZE_MAX

/* A part of the skyline: from instruction `first` to `last` everything up to `height` is taken, and all above is free. */
struct skyline_part {
	size_t first, last, height;
	size_t before, after; /* numbers of its neighbours, or NONE */
};

/* Of the blocks under a node of a tree that are not placed yet. */
struct waiting_blocks {
	double heaviest; /* 0: none */
	size_t soonest;  /* the first end of a lifetime */
};

/* A segment in the heap of all: its height, and in the lower half its number. The lowest is on top, of several the one with the lowest
 * number. As one integer: which of two is lower is then no branch, which would often be guessed wrongly. */
typedef unsigned __int128 low_part;

/* What one placement knows, and the weights for the next one. */
struct skyline {
	struct hspmd_memory_block *blocks;
	size_t count, end; /* end: number of instructions */
	double *weights;   /* per block */
	size_t *begins;    /* per instruction, and for `end`: the first block that begins there or later */
	/* A binary tree over the blocks in an array, the root at 1. */
	size_t leaves;
	struct waiting_blocks *waiting;
	struct skyline_part *segments;
	size_t segment_count;
	/* Only the segment on top rises. One that was joined with another stays here until it comes to the top. */
	low_part *heap;
	size_t heap_count;
	size_t placed; /* blocks, in all rounds */
};

static struct waiting_blocks both(struct waiting_blocks a, struct waiting_blocks b)
{
	return (struct waiting_blocks){ a.heaviest > b.heaviest ? a.heaviest : b.heaviest, a.soonest < b.soonest ? a.soonest : b.soonest };
}

static void take_block(struct skyline *p, size_t block)
{
	size_t at = p->leaves + block;
	p->waiting[at] = (struct waiting_blocks){ 0, NONE };
	while (at >>= 1) {
		struct waiting_blocks now = both(p->waiting[2 * at], p->waiting[2 * at + 1]);
		if (now.heaviest == p->waiting[at].heaviest && now.soonest == p->waiting[at].soonest)
			return;
		p->waiting[at] = now;
	}
}

static size_t height_of(const struct skyline *p, size_t segment)
{
	return segment == NONE ? SIZE_MAX : p->segments[segment].height;
}

static low_part as_low_part(size_t height, size_t segment)
{
	return (low_part)height << 64 | segment;
}

static void heap_rise(struct skyline *p, size_t at, low_part part)
{
	for (; at > 0 && part < p->heap[(at - 1) / 2]; at = (at - 1) / 2)
		p->heap[at] = p->heap[(at - 1) / 2];
	p->heap[at] = part;
}

/* Puts the part in the place of the one on top. It goes to the bottom and rises from there, as nearly all belong near the bottom. */
static void heap_replace_top(struct skyline *p, low_part part)
{
	size_t at = 0, child;
	for (; (child = 2 * at + 2) < p->heap_count; at = child) {
		child -= p->heap[child - 1] < p->heap[child];
		p->heap[at] = p->heap[child];
	}
	if (child == p->heap_count) { /* it has no brother */
		p->heap[at] = p->heap[child - 1];
		at = child - 1;
	}
	heap_rise(p, at, part);
}

static size_t lowest_segment(struct skyline *p)
{
	while (height_of(p, (size_t)p->heap[0]) == SIZE_MAX) { /* joined */
		p->heap_count--;
		heap_replace_top(p, p->heap[p->heap_count]);
	}
	return (size_t)p->heap[0];
}

/* The heaviest block found so far, of several the first. */
struct block_choice {
	double weight;
	size_t block; /* NONE: none yet */
};

/* Whether a block that goes before the choice may be among those under the tree's node, which are from `low` on. */
static bool may_have(const struct waiting_blocks *w, size_t low, size_t last, const struct block_choice *choice)
{
	return w->soonest <= last && (w->heaviest > choice->weight || (w->heaviest == choice->weight && low < choice->block));
}

/* Among the waiting blocks under the tree's node, which are `width` from `low` on and may have one: takes the heaviest whose life ends by
 * `last`, if it goes before the choice. */
static void choose_below(const struct skyline *p, size_t node, size_t low, size_t width, size_t last, struct block_choice *choice)
{
	while (width > 1) {
		const struct waiting_blocks *half = &p->waiting[2 * node];
		width /= 2;
		/* The heavier half first: then there is often nothing to look for in the other one. */
		size_t first = half[1].heaviest > half[0].heaviest, second = !first;
		bool in_first = may_have(&half[first], low + first * width, last, choice);
		bool in_second = may_have(&half[second], low + second * width, last, choice);
		if (in_first && in_second) {
			choose_below(p, 2 * node + first, low + first * width, width, last, choice);
			in_first = false;
			in_second = may_have(&half[second], low + second * width, last, choice);
		}
		if (!in_first && !in_second)
			return;
		size_t next = in_first ? first : second;
		node = 2 * node + next;
		low += next * width;
	}
	*choice = (struct block_choice){ p->waiting[node].heaviest, low };
}

/* Returns the heaviest waiting block from..to-1 whose life ends by `last`, or NONE. Those from `to` on begin later, so they end later, too:
 * the nodes may contain some of them. */
static size_t choose_block(const struct skyline *p, size_t from, size_t to, size_t last)
{
	struct block_choice choice = { 0, NONE };
	for (size_t node = p->leaves + from, low = from, width = 1; low < to; low += width, node++) {
		int up = __builtin_ctzll(node); /* to the widest node that begins here */
		node >>= up;
		width <<= up;
		if (may_have(&p->waiting[node], low, last, &choice))
			choose_below(p, node, low, width, last, &choice);
	}
	return choice.block;
}

static void add_segment(struct skyline *p, struct skyline_part s)
{
	size_t number = p->segment_count++;
	p->segments[number] = s;
	if (s.before != NONE)
		p->segments[s.before].after = number;
	if (s.after != NONE)
		p->segments[s.after].before = number;
	heap_rise(p, p->heap_count++, as_low_part(s.height, number));
}

/* Joins the segment with the one after it if both are of one height. */
static void join(struct skyline *p, size_t segment)
{
	struct skyline_part *s = &p->segments[segment];
	if (segment == NONE || s->after == NONE || p->segments[s->after].height != s->height)
		return;
	size_t gone = s->after;
	s->last = p->segments[gone].last;
	s->after = p->segments[gone].after;
	if (s->after != NONE)
		p->segments[s->after].before = segment;
	p->segments[gone].height = SIZE_MAX;
}

/* The segment is the one on top of the heap. */
static void rise(struct skyline *p, size_t segment, size_t height)
{
	struct skyline_part *s = &p->segments[segment];
	s->height = height;
	heap_replace_top(p, as_low_part(height, segment));
	join(p, segment);
	join(p, s->before);
}

/* The block stands on the segment, within whose instructions it lives. */
static void put(struct skyline *p, size_t segment, size_t block)
{
	struct hspmd_memory_block *b = &p->blocks[block];
	struct skyline_part *s = &p->segments[segment];
	b->offset = s->height;
	take_block(p, block);
	if (s->first < b->first)
		add_segment(p, (struct skyline_part){ s->first, b->first - 1, s->height, s->before, segment });
	if (s->last > b->last)
		add_segment(p, (struct skyline_part){ b->last + 1, s->last, s->height, segment, s->after });
	s->first = b->first;
	s->last = b->last;
	rise(p, segment, s->height + b->bytes);
}

static size_t place_once(struct skyline *p)
{
	size_t bytes = 0;
	for (size_t i = 0; i < p->leaves; i++)
		p->waiting[p->leaves + i] =
		        i < p->count ? (struct waiting_blocks){ p->weights[i], p->blocks[i].last } : (struct waiting_blocks){ 0, NONE };
	for (size_t at = p->leaves; --at;)
		p->waiting[at] = both(p->waiting[2 * at], p->waiting[2 * at + 1]);
	p->segment_count = p->heap_count = 0;
	add_segment(p, (struct skyline_part){ 0, p->end - 1, 0, NONE, NONE });
	for (size_t left = p->count; left;) {
		size_t low = lowest_segment(p);
		const struct skyline_part *s = &p->segments[low];
		size_t block = choose_block(p, p->begins[s->first], p->begins[s->last + 1], s->last);
		if (block == NONE) {
			size_t before = height_of(p, s->before), after = height_of(p, s->after);
			rise(p, low, before < after ? before : after);
			continue;
		}
		put(p, low, block);
		size_t top = p->blocks[block].offset + p->blocks[block].bytes;
		bytes = top > bytes ? top : bytes;
		left--;
	}
	return bytes;
}

size_t hspmd_live_bytes(const struct hspmd_memory_block *blocks, size_t count)
{
	size_t end = 0, most = 0, live = 0;
	for (size_t i = 0; i < count; i++)
		end = blocks[i].last + 1 > end ? blocks[i].last + 1 : end;
	size_t *freed = hspmd_calloc(end + 1, sizeof *freed); /* before an instruction */
	if (!freed)
		return SIZE_MAX;
	for (size_t i = 0; i < count; i++)
		freed[blocks[i].last + 1] += blocks[i].bytes;
	for (size_t i = 0, at = 0; i < count; i++) {
		while (at <= blocks[i].first)
			live -= freed[at++];
		live += blocks[i].bytes;
		most = live > most ? live : most;
	}
	free(freed);
	return most;
}

static double weight(const struct hspmd_memory_block *b, int kind)
{
	double bytes = (double)b->bytes, life = (double)(b->last - b->first + 1);
	return kind == 0 ? bytes : kind == 1 ? bytes * life : kind == 2 ? bytes * sqrt(life) : life;
}

/* Places all blocks again and again, as long as *bytes is more than `enough` and than `goal`; improves *bytes and offsets[]. */
static void place_by_weights(struct skyline *p, int kind, size_t enough, size_t goal, size_t *bytes, size_t *offsets)
{
	for (size_t i = 0; i < p->count; i++)
		p->weights[i] = weight(&p->blocks[i], kind);
	size_t end = enough > goal ? enough : goal;
	for (size_t round = 0, in_vain = 0; round < ROUNDS && in_vain < ROUNDS_IN_VAIN && end < *bytes; round++) {
		if (*bytes < SIZE_MAX && (p->placed += p->count) > PLACED_MAX)
			return;
		size_t now = place_once(p);
		for (size_t i = 0; i < p->count; i++) {
			if (now < *bytes)
				offsets[i] = p->blocks[i].offset;
			if (p->blocks[i].offset + p->blocks[i].bytes > enough)
				p->weights[i] *= MORE_WEIGHT;
		}
		in_vain = now < *bytes ? 0 : in_vain + 1;
		*bytes = now < *bytes ? now : *bytes;
	}
}

static size_t power_of_two(size_t least)
{
	size_t n = 1;
	while (n < least)
		n *= 2;
	return n;
}

int hspmd_place_blocks(struct hspmd_memory_block *blocks, size_t count, size_t goal, size_t *bytes, struct hspmd_error *err)
{
	struct skyline p = { .blocks = blocks, .count = count, .leaves = power_of_two(count) };
	size_t enough = hspmd_live_bytes(blocks, count), *offsets = hspmd_calloc(count + 1, sizeof *offsets);
	for (size_t i = 0; i < count; i++)
		p.end = blocks[i].last + 1 > p.end ? blocks[i].last + 1 : p.end;
	p.weights = hspmd_calloc(count + 1, sizeof *p.weights);
	p.begins = hspmd_calloc(p.end + 1, sizeof *p.begins);
	p.waiting = hspmd_calloc(2 * p.leaves, sizeof *p.waiting);
	p.segments = hspmd_calloc(2 * count + 1, sizeof *p.segments);
	p.heap = hspmd_calloc(2 * count + 1, sizeof *p.heap);
	int status = 0;
	*bytes = count ? SIZE_MAX : 0;
	if (enough < SIZE_MAX)
		enough += (size_t)(NEGLIGIBLE * (double)enough);
	if (enough == SIZE_MAX || !offsets || !p.weights || !p.begins || !p.waiting || !p.segments || !p.heap) {
		status = hspmd_fail_memory(err, "planning memory");
	} else {
		for (size_t at = 0, i = 0; at <= p.end; at++) {
			while (i < count && blocks[i].first < at)
				i++;
			p.begins[at] = i;
		}
		for (int kind = 0; kind < WEIGHTS; kind++)
			place_by_weights(&p, kind, enough, goal, bytes, offsets);
		for (size_t i = 0; i < count; i++)
			blocks[i].offset = offsets[i];
	}
	free(offsets);
	free(p.weights);
	free(p.begins);
	free(p.waiting);
	free(p.segments);
	free(p.heap);
	return status;
}
