/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/program/place_blocks.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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

/* What one placement knows, and the weights for the next one. */
struct skyline {
	struct hspmd_memory_block *blocks;
	size_t count, end; /* end: number of instructions */
	double *weights;   /* per block */
	/* Binary trees in arrays, the root at 1: over the blocks; and over the segments, the number of the lowest one. */
	size_t leaves, segment_leaves;
	struct waiting_blocks *waiting;
	size_t *lowest;
	struct skyline_part *segments;
	size_t segment_count;
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

static void update_segment(struct skyline *p, size_t segment)
{
	size_t at = p->segment_leaves + segment;
	p->lowest[at] = p->segments[segment].height == SIZE_MAX ? NONE : segment;
	while (at >>= 1) {
		size_t a = p->lowest[2 * at], b = p->lowest[2 * at + 1], low = height_of(p, b) < height_of(p, a) ? b : a;
		if (low == p->lowest[at] && low != segment)
			return;
		p->lowest[at] = low;
	}
}

/* The first block that begins at `first` or later. */
static size_t first_block(const struct skyline *p, size_t first)
{
	size_t low = 0, high = p->count;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (p->blocks[middle].first < first)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Of the waiting blocks from..to-1, within those under the tree's node (low..low+width-1), the one of most weight above `weight` whose
 * life ends by `last`; else `best`. */
static size_t heaviest_within(const struct skyline *p, size_t node, size_t low, size_t width, size_t from, size_t to, size_t last,
                              double *weight, size_t best)
{
	if (p->waiting[node].heaviest <= *weight || p->waiting[node].soonest > last || low >= to || low + width <= from)
		return best;
	if (width == 1) {
		*weight = p->waiting[node].heaviest;
		return low;
	}
	width /= 2;
	best = heaviest_within(p, 2 * node, low, width, from, to, last, weight, best);
	return heaviest_within(p, 2 * node + 1, low + width, width, from, to, last, weight, best);
}

static size_t add_segment(struct skyline *p, struct skyline_part s)
{
	size_t number = p->segment_count++;
	p->segments[number] = s;
	if (s.before != NONE)
		p->segments[s.before].after = number;
	if (s.after != NONE)
		p->segments[s.after].before = number;
	update_segment(p, number);
	return number;
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
	update_segment(p, gone);
}

static void rise(struct skyline *p, size_t segment, size_t height)
{
	struct skyline_part *s = &p->segments[segment];
	s->height = height;
	update_segment(p, segment);
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
	memset(p->lowest, -1, 2 * p->segment_leaves * sizeof *p->lowest);
	p->segment_count = 0;
	add_segment(p, (struct skyline_part){ 0, p->end - 1, 0, NONE, NONE });
	for (size_t left = p->count; left;) {
		size_t low = p->lowest[1];
		const struct skyline_part *s = &p->segments[low];
		double weight = 0;
		size_t block =
		        heaviest_within(p, 1, 0, p->leaves, first_block(p, s->first), first_block(p, s->last + 1), s->last, &weight, NONE);
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

/* Places all blocks again and again, as long as *bytes is more than `enough`; improves *bytes and offsets[]. */
static void place_by_weights(struct skyline *p, int kind, size_t enough, size_t *bytes, size_t *offsets)
{
	for (size_t i = 0; i < p->count; i++)
		p->weights[i] = weight(&p->blocks[i], kind);
	for (size_t round = 0, in_vain = 0; round < ROUNDS && in_vain < ROUNDS_IN_VAIN && *bytes > enough; round++) {
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

int hspmd_place_blocks(struct hspmd_memory_block *blocks, size_t count, size_t *bytes, struct hspmd_error *err)
{
	struct skyline p = {
		.blocks = blocks, .count = count, .leaves = power_of_two(count), .segment_leaves = power_of_two(2 * count + 1)
	};
	size_t enough = hspmd_live_bytes(blocks, count), *offsets = hspmd_calloc(count + 1, sizeof *offsets);
	p.weights = hspmd_calloc(count + 1, sizeof *p.weights);
	p.waiting = hspmd_calloc(2 * p.leaves, sizeof *p.waiting);
	p.lowest = malloc(2 * p.segment_leaves * sizeof *p.lowest);
	p.segments = hspmd_calloc(2 * count + 1, sizeof *p.segments);
	int status = 0;
	*bytes = count ? SIZE_MAX : 0;
	if (enough < SIZE_MAX)
		enough += (size_t)(NEGLIGIBLE * (double)enough);
	if (enough == SIZE_MAX || !offsets || !p.weights || !p.waiting || !p.lowest || !p.segments) {
		status = hspmd_fail_memory(err, "planning memory");
	} else {
		for (size_t i = 0; i < count; i++)
			p.end = blocks[i].last + 1 > p.end ? blocks[i].last + 1 : p.end;
		for (int kind = 0; kind < WEIGHTS; kind++)
			place_by_weights(&p, kind, enough, bytes, offsets);
		for (size_t i = 0; i < count; i++)
			blocks[i].offset = offsets[i];
	}
	free(offsets);
	free(p.weights);
	free(p.waiting);
	free(p.lowest);
	free(p.segments);
	return status;
}
