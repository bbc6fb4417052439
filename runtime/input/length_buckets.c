/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/input/length_buckets.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/input/blend.h"
#include "runtime/input/shuffle.h"

struct bucket {
	int64_t tokens, samples, draws;
	size_t count, capacity;
	struct hspmd_token_run last, *own; /* last: of those added; own: NULL if they lie elsewhere */
	const struct hspmd_token_run *runs;
};

/* The sets' buckets of one length. */
struct length {
	int64_t tokens;
	struct bucket *buckets;    /* [sets] */
	struct hspmd_blend *blend; /* of the sets that have samples here; NULL: no weights, or no samples */
	int *blended;              /* by number in the blend: the set */
};

struct hspmd_length_buckets {
	int count, sets;
	double *weights;        /* [sets]; NULL: there is one set, without a weight */
	int64_t batch;
	int64_t drawn;            /* samples that are drawn together, from one bucket: a batch, or one if steps mix lengths */
	int64_t draws, per_epoch; /* of all buckets without weights, and how many of them an epoch has: those that fill batches */
	uint64_t seed;
	struct hspmd_blend *blend; /* of the lengths that have samples; NULL: no weights */
	int *blended;              /* by number in the blend: the length */
	hspmd_run_sink *sink;      /* NULL: runs are kept */
	void *context;
	struct length lengths[];
};

struct hspmd_length_buckets *hspmd_length_buckets_create(const int64_t *lengths, int count, const double *weights, int sets, int64_t batch,
                                                         uint64_t seed)
{
	struct hspmd_length_buckets *g = calloc(1, sizeof *g + (size_t)count * sizeof *g->lengths);
	if (!g)
		return NULL;
	g->count = count;
	g->sets = sets;
	g->batch = g->drawn = batch;
	g->seed = seed;
	bool made = !weights || ((g->weights = hspmd_calloc((size_t)sets, sizeof *weights)) &&
	                         (g->blended = hspmd_calloc((size_t)count, sizeof *g->blended)));
	if (weights && made)
		memcpy(g->weights, weights, (size_t)sets * sizeof *weights);
	for (int i = 0; i < count; i++) {
		g->lengths[i].tokens = lengths[i];
		g->lengths[i].buckets = hspmd_calloc((size_t)sets, sizeof *g->lengths[i].buckets);
		g->lengths[i].blended = hspmd_calloc((size_t)sets, sizeof *g->lengths[i].blended);
		made = made && g->lengths[i].buckets && g->lengths[i].blended;
	}
	if (made)
		return g;
	hspmd_length_buckets_destroy(g);
	return NULL;
}

void hspmd_length_buckets_destroy(struct hspmd_length_buckets *g)
{
	if (!g)
		return;
	for (int i = 0; i < g->count; i++) {
		for (int k = 0; g->lengths[i].buckets && k < g->sets; k++)
			free(g->lengths[i].buckets[k].own);
		free(g->lengths[i].buckets);
		free(g->lengths[i].blended);
		hspmd_blend_destroy(g->lengths[i].blend);
	}
	hspmd_blend_destroy(g->blend);
	free(g->blended);
	free(g->weights);
	free(g);
}

void hspmd_length_buckets_hand_on(struct hspmd_length_buckets *g, hspmd_run_sink *sink, void *context)
{
	g->sink = sink;
	g->context = context;
}

void hspmd_length_buckets_lend(struct hspmd_length_buckets *g, int length, int set, const struct hspmd_token_run *runs, size_t count,
                               int64_t tokens)
{
	struct bucket *b = &g->lengths[length].buckets[set];
	b->runs = runs;
	b->count = count;
	b->tokens = tokens;
}

bool hspmd_length_buckets_bucket(const struct hspmd_length_buckets *g, int length, int set, int64_t *of, int64_t *tokens, size_t *runs)
{
	if (length < 0 || length >= g->count || set < 0 || set >= g->sets)
		return false;
	*of = g->lengths[length].tokens;
	*tokens = g->lengths[length].buckets[set].tokens;
	*runs = g->lengths[length].buckets[set].count;
	return true;
}

void hspmd_length_buckets_mix(struct hspmd_length_buckets *g)
{
	g->drawn = 1;
}

/* Begins a run of a bucket. */
static int add_run(struct hspmd_length_buckets *g, int length, int set, struct bucket *to, int64_t start, struct hspmd_error *err)
{
	to->last = (struct hspmd_token_run){ start, to->tokens };
	if (g->sink) {
		to->count++;
		return g->sink(g->context, length, set, &to->last, err);
	}
	if (hspmd_array_grow(&to->own, &to->capacity, to->count, sizeof *to->own))
		return hspmd_fail_memory(err, "grouping documents");
	to->own[to->count++] = to->last;
	to->runs = to->own;
	return 0;
}

int hspmd_length_buckets_add(struct hspmd_length_buckets *g, int set, int64_t start, int64_t tokens, struct hspmd_error *err)
{
	int length = 0;
	while (length < g->count - 1 && g->lengths[length].tokens < tokens)
		length++;
	struct bucket *to = &g->lengths[length].buckets[set];
	bool follows = to->count && to->last.start + to->tokens - to->last.before == start;
	if (!follows && add_run(g, length, set, to, start, err))
		return -1;
	to->tokens += tokens;
	return 0;
}

int64_t hspmd_length_buckets_tokens(const struct hspmd_length_buckets *g, int length)
{
	int64_t tokens = 0;
	for (int k = 0; k < g->sets; k++)
		tokens += g->lengths[length].buckets[k].tokens;
	return tokens;
}

/* Mixes lengths, and sets within each length. tokens[sets]: of a set's samples, of all lengths. */
static int mix(struct hspmd_length_buckets *g, const double *tokens, struct hspmd_error *err)
{
	double *of_length = hspmd_calloc((size_t)g->count, sizeof *of_length), *of_set = hspmd_calloc((size_t)g->sets, sizeof *of_set);
	bool failed = !of_length || !of_set;
	int lengths = 0;
	for (int i = 0; !failed && i < g->count; i++) {
		struct length *l = &g->lengths[i];
		double sum = 0;
		int sets = 0;
		for (int k = 0; k < g->sets; k++) {
			if (!l->buckets[k].samples)
				continue;
			of_set[sets] = g->weights[k] / tokens[k] * (double)l->buckets[k].samples;
			sum += of_set[sets];
			l->blended[sets++] = k;
		}
		if (!sets)
			continue;
		failed = !(l->blend = hspmd_blend_create(of_set, sets));
		of_length[lengths] = sum;
		g->blended[lengths++] = i;
	}
	failed = failed || !(g->blend = hspmd_blend_create(of_length, lengths));
	free(of_length);
	free(of_set);
	return failed ? hspmd_fail_memory(err, "grouping documents") : 0;
}

int hspmd_length_buckets_close(struct hspmd_length_buckets *g, int *set, struct hspmd_error *err)
{
	double *tokens = hspmd_calloc((size_t)g->sets, sizeof *tokens);
	*set = -1;
	if (!tokens)
		return hspmd_fail_memory(err, "grouping documents");
	for (int i = 0; i < g->count; i++)
		for (int k = 0; k < g->sets; k++) {
			struct bucket *of = &g->lengths[i].buckets[k];
			of->samples = of->tokens > 0 ? (of->tokens - 1) / g->lengths[i].tokens : 0;
			of->draws = of->samples / g->drawn;
			g->draws += of->draws;
			tokens[k] += (double)(of->samples * g->lengths[i].tokens);
		}
	g->per_epoch = g->draws / (g->batch / g->drawn) * (g->batch / g->drawn);
	int status = 0;
	for (int k = 0; g->weights && !status && k < g->sets; k++)
		if (tokens[k] == 0) {
			*set = k;
			status = hspmd_fail(err, "its documents of no length fill a sample");
		}
	if (!status && g->weights)
		status = mix(g, tokens, err);
	else if (!status && !g->per_epoch)
		status = hspmd_fail(err, "documents of %s fill a global batch of %lld samples",
		                    g->drawn > 1 || g->batch == 1 ? "no length" : "all lengths together do not", (long long)g->batch);
	free(tokens);
	return status;
}

/* Where a sample is: the length and the set of its bucket, its index in the bucket, and the epoch. */
struct place {
	int length, set;
	int64_t index, epoch;
};

static struct place place_of(const struct hspmd_length_buckets *g, int64_t number)
{
	int64_t draw = number / g->drawn, at;
	struct place p = { 0 };
	if (g->weights) { /* the samples of every set and length have epochs of their own */
		const struct length *length = &g->lengths[p.length = g->blended[hspmd_blend_find(g->blend, draw, &at)]];
		p.set = length->blended[hspmd_blend_find(length->blend, at * g->drawn + number % g->drawn, &p.index)];
		p.epoch = p.index / length->buckets[p.set].samples;
		p.index %= length->buckets[p.set].samples;
		return p;
	}
	p.epoch = draw / g->per_epoch;
	at = (int64_t)hspmd_shuffle((uint64_t)(draw % g->per_epoch), (uint64_t)g->draws, hspmd_mix(g->seed ^ hspmd_mix((uint64_t)p.epoch)));
	for (; at >= g->lengths[p.length].buckets[0].draws; p.length++)
		at -= g->lengths[p.length].buckets[0].draws;
	p.index = at * g->drawn + number % g->drawn;
	return p;
}

int hspmd_length_buckets_of_sample(const struct hspmd_length_buckets *g, int64_t number)
{
	return place_of(g, number).length;
}

int64_t hspmd_length_buckets_find(const struct hspmd_length_buckets *g, int64_t number, int64_t offset, int *set, int64_t *run)
{
	struct place p = place_of(g, number);
	const struct length *length = &g->lengths[p.length];
	const struct bucket *of = &length->buckets[p.set];
	*set = p.set;
	uint64_t key = hspmd_mix(g->seed ^ hspmd_mix((uint64_t)p.epoch ^ hspmd_mix((uint64_t)(p.set * g->count + p.length) + 1)));
	int64_t at = (int64_t)hspmd_shuffle((uint64_t)p.index, (uint64_t)of->samples, key) * length->tokens + offset;
	size_t low = 0, high = of->count; /* the last run that begins at or before `at` */
	while (high - low > 1) {
		size_t middle = (low + high) / 2;
		if (of->runs[middle].before <= at)
			low = middle;
		else
			high = middle;
	}
	int64_t end = low + 1 < of->count ? of->runs[low + 1].before : of->tokens;
	*run = end - at;
	return of->runs[low].start + at - of->runs[low].before;
}
