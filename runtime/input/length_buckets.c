/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/input/length_buckets.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/input/shuffle.h"

/* A contiguous run of one bucket's documents in the stream. */
struct token_run {
	int64_t start, before; /* tokens of the bucket before it */
};

struct bucket {
	int64_t length, tokens, samples, batches;
	size_t count, capacity;
	struct token_run *runs;
};

struct hspmd_length_buckets {
	int count;
	int64_t batch, batches; /* per epoch, over all buckets */
	uint64_t seed;
	struct bucket buckets[];
};

struct hspmd_length_buckets *hspmd_length_buckets_create(const int64_t *lengths, int count, int64_t batch, uint64_t seed)
{
	struct hspmd_length_buckets *g = calloc(1, sizeof *g + (size_t)count * sizeof *g->buckets);
	if (!g)
		return NULL;
	g->count = count;
	g->batch = batch;
	g->seed = seed;
	for (int i = 0; i < count; i++)
		g->buckets[i].length = lengths[i];
	return g;
}

void hspmd_length_buckets_destroy(struct hspmd_length_buckets *g)
{
	for (int i = 0; g && i < g->count; i++)
		free(g->buckets[i].runs);
	free(g);
}

int hspmd_length_buckets_add(struct hspmd_length_buckets *g, int64_t start, int64_t tokens, struct hspmd_error *err)
{
	struct bucket *to = g->buckets;
	while (to < &g->buckets[g->count - 1] && to->length < tokens)
		to++;
	const struct token_run *last = to->count ? &to->runs[to->count - 1] : NULL;
	bool follows = last && last->start + to->tokens - last->before == start;
	if (!follows) {
		if (hspmd_array_grow(&to->runs, &to->capacity, to->count, sizeof *to->runs))
			return hspmd_fail_memory(err, "grouping documents");
		to->runs[to->count++] = (struct token_run){ start, to->tokens };
	}
	to->tokens += tokens;
	return 0;
}

int hspmd_length_buckets_close(struct hspmd_length_buckets *g, struct hspmd_error *err)
{
	for (int i = 0; i < g->count; i++) {
		struct bucket *of = &g->buckets[i];
		of->samples = of->tokens > 0 ? (of->tokens - 1) / of->length : 0;
		of->batches = of->samples / g->batch;
		g->batches += of->batches;
	}
	return g->batches ? 0 : hspmd_fail(err, "documents of no length fill a global batch of %lld samples", (long long)g->batch);
}

/* The bucket of a step, and the index of the step's batch in it. */
static const struct bucket *bucket_of(const struct hspmd_length_buckets *g, int64_t step, int64_t *batch)
{
	uint64_t epoch = (uint64_t)(step / g->batches);
	int64_t at = (int64_t)hspmd_shuffle((uint64_t)(step % g->batches), (uint64_t)g->batches, hspmd_mix(g->seed ^ hspmd_mix(epoch)));
	const struct bucket *of = g->buckets;
	for (; at >= of->batches; of++)
		at -= of->batches;
	*batch = at;
	return of;
}

int hspmd_length_buckets_of_step(const struct hspmd_length_buckets *g, int64_t step)
{
	int64_t batch;
	return (int)(bucket_of(g, step, &batch) - g->buckets);
}

int64_t hspmd_length_buckets_find(const struct hspmd_length_buckets *g, int64_t number, int64_t offset, int64_t *run)
{
	int64_t batch, step = number / g->batch;
	const struct bucket *of = bucket_of(g, step, &batch);
	uint64_t epoch = (uint64_t)(step / g->batches), which = (uint64_t)(of - g->buckets);
	uint64_t key = hspmd_mix(g->seed ^ hspmd_mix(epoch ^ hspmd_mix(which + 1)));
	int64_t sample = (int64_t)hspmd_shuffle((uint64_t)(batch * g->batch + number % g->batch), (uint64_t)of->samples, key);
	int64_t at = sample * of->length + offset;
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
