/* SPDX-License-Identifier: Apache-2.0 */
#include "common/step_batches.h"

#include <stdbool.h>
#include <string.h>

#include "common/alloc.h"

#define ROUNDS_MOST 4096 /* improvements; each lets the step end sooner */

/* A division of samples among pipelines. Those of one length are alike, so that their numbers suffice. */
struct division {
	const struct hspmd_pipeline_rates *pipelines;
	int count, lengths;
	int *counts;    /* [pipeline][length] */
	int64_t *times; /* [pipeline] */
};

static int batches_of(const struct hspmd_length_rate *rate, int samples)
{
	return (samples + rate->most - 1) / rate->most;
}

int64_t hspmd_step_batches_time(const struct hspmd_pipeline_rates *pipeline, int lengths, const int *counts)
{
	int64_t sum = 0, longest = 0;
	for (int l = 0; l < lengths; l++) {
		const struct hspmd_length_rate *rate = &pipeline->length[l];
		if (!counts[l])
			continue;
		int batches = batches_of(rate, counts[l]);
		int64_t largest = (counts[l] + batches - 1) / batches * rate->sample;
		sum += counts[l] * rate->sample;
		longest = largest > longest ? largest : longest;
	}
	return sum + (pipeline->depth - 1) * longest;
}

int hspmd_step_batches_most(const struct hspmd_pipeline_rates *pipeline, int lengths, int samples)
{
	int least = 0, partial = 0; /* the smallest of the largest micro-batches; lengths whose last micro-batch may not be full */
	for (int l = 0; l < lengths && pipeline->length[l].most; l++) {
		int most = pipeline->length[l].most;
		least = !least || most < least ? most : least;
		partial += most > 1;
	}
	int batches = least ? samples / least + partial : 1;
	batches = batches < samples ? batches : samples;
	return batches > 1 ? batches : 1;
}

/* ---- dividing */

static int *counts_of(const struct division *d, int pipeline)
{
	return &d->counts[pipeline * d->lengths];
}

static bool takes(const struct division *d, int pipeline, int length)
{
	return d->pipelines[pipeline].length[length].most > 0;
}

static int64_t time_of(const struct division *d, int pipeline)
{
	return hspmd_step_batches_time(&d->pipelines[pipeline], d->lengths, counts_of(d, pipeline));
}

/* The time of a pipeline with one sample more of a length, and one fewer of another; -1: none. */
static int64_t time_with(const struct division *d, int pipeline, int more, int fewer)
{
	int *counts = counts_of(d, pipeline);
	if (more >= 0)
		counts[more]++;
	if (fewer >= 0)
		counts[fewer]--;
	int64_t time = time_of(d, pipeline);
	if (more >= 0)
		counts[more]--;
	if (fewer >= 0)
		counts[fewer]++;
	return time;
}

static void change(struct division *d, int pipeline, int more, int fewer)
{
	if (more >= 0)
		counts_of(d, pipeline)[more]++;
	if (fewer >= 0)
		counts_of(d, pipeline)[fewer]--;
	d->times[pipeline] = time_of(d, pipeline);
}

/* Gives a sample to the pipeline that ends first with it, of equal ones the first. -1: none takes it. */
static int place(struct division *d, int length)
{
	int best = -1;
	int64_t least = 0;
	for (int p = 0; p < d->count; p++) {
		if (!takes(d, p, length))
			continue;
		int64_t time = time_with(d, p, length, -1);
		if (best < 0 || time < least) {
			best = p;
			least = time;
		}
	}
	if (best >= 0)
		change(d, best, length, -1);
	return best;
}

/* A change: a sample moves to another pipeline, which may give one back. */
struct exchange {
	int to, length, back; /* back -1: none */
	int64_t time;         /* of the later of the two pipelines */
};

static void offer(const struct division *d, int from, struct exchange *best, struct exchange e)
{
	int64_t here = time_with(d, from, e.back, e.length), there = time_with(d, e.to, e.length, e.back);
	e.time = here > there ? here : there;
	if (e.time < best->time)
		*best = e;
}

/* Lets the pipeline that ends last end sooner, by the change that helps most. False: none helps. */
static bool improve(struct division *d)
{
	int last = 0;
	for (int p = 1; p < d->count; p++)
		last = d->times[p] > d->times[last] ? p : last;
	struct exchange best = { .to = -1, .time = d->times[last] };
	for (int l = 0; l < d->lengths; l++)
		for (int p = 0; counts_of(d, last)[l] && p < d->count; p++) {
			if (p == last || !takes(d, p, l))
				continue;
			offer(d, last, &best, (struct exchange){ .to = p, .length = l, .back = -1 });
			for (int b = 0; b < d->lengths; b++)
				if (b != l && counts_of(d, p)[b] && takes(d, last, b))
					offer(d, last, &best, (struct exchange){ .to = p, .length = l, .back = b });
		}
	if (best.to < 0)
		return false;
	change(d, last, best.back, best.length);
	change(d, best.to, best.length, best.back);
	return true;
}

/* ---- micro-batches */

/* Puts a pipeline's micro-batches, which come in the order of their times, so that the longest are in the middle. */
static void put_longest_in_the_middle(struct hspmd_micro_batch *to, const struct hspmd_micro_batch *sorted, int count)
{
	for (int i = 0; i < count; i++)
		to[i % 2 ? count - 1 - i / 2 : i / 2] = sorted[i];
}

/* The micro-batches of a pipeline, by insertion in the order of their times. Returns their number. */
static int sort_batches(const struct division *d, int pipeline, struct hspmd_micro_batch *sorted)
{
	const struct hspmd_length_rate *rates = d->pipelines[pipeline].length;
	int count = 0;
	for (int l = 0; l < d->lengths; l++) {
		int samples = counts_of(d, pipeline)[l], batches = samples ? batches_of(&rates[l], samples) : 0;
		for (int i = 0; i < batches; i++) {
			struct hspmd_micro_batch b = { .length = l, .samples = samples / batches + (i < samples % batches) };
			int at = count++;
			for (; at && sorted[at - 1].samples * rates[sorted[at - 1].length].sample > b.samples * rates[l].sample; at--)
				sorted[at] = sorted[at - 1];
			sorted[at] = b;
		}
	}
	if (!count)
		sorted[count++] = (struct hspmd_micro_batch){ .samples = 1, .first = -1 };
	return count;
}

/* Lists the samples of each length, in their order, and deals them to the micro-batches in theirs. room[samples + pipelines]. */
static void deal(const struct division *d, const int *length_of, int samples, struct hspmd_micro_batch *room, int *next,
                 struct hspmd_step_batches *out)
{
	int placed = 0;
	memset(next, 0, (size_t)d->lengths * sizeof *next); /* the next sample of each length to look at */
	for (int p = 0; p < d->count; p++) {
		struct hspmd_micro_batch *batches = &out->batches[out->batch_count];
		int count = sort_batches(d, p, room);
		put_longest_in_the_middle(batches, room, count);
		out->begin[p] = out->batch_count;
		out->batch_count += count;
		for (int i = 0; i < count && batches[i].first >= 0; i++) {
			batches[i].first = placed;
			for (int k = 0, *at = &next[batches[i].length]; k < batches[i].samples; k++, ++*at) {
				while (*at < samples && length_of[*at] != batches[i].length)
					++*at;
				out->order[placed++] = *at;
			}
		}
	}
	out->begin[d->count] = out->batch_count;
}

static int divide(struct division *d, const int *length_of, int samples, struct hspmd_error *err)
{
	for (int l = d->lengths - 1; l >= 0; l--)
		for (int i = 0; i < samples; i++)
			if (length_of[i] == l && place(d, l) < 0)
				return hspmd_fail(err, "no pipeline takes samples of length number %d", l);
	for (int round = 0; round < ROUNDS_MOST && improve(d); round++)
		;
	return 0;
}

int hspmd_step_batches_make(const struct hspmd_pipeline_rates *pipelines, int pipeline_count, int lengths, const int *length_of,
                            int samples, struct hspmd_step_batches *out, struct hspmd_error *err)
{
	size_t most = (size_t)samples + (size_t)pipeline_count;
	struct division d = {
		.pipelines = pipelines,
		.count = pipeline_count,
		.lengths = lengths,
		.counts = hspmd_calloc((size_t)pipeline_count * (size_t)lengths, sizeof *d.counts),
		.times = hspmd_calloc((size_t)pipeline_count, sizeof *d.times),
	};
	struct hspmd_micro_batch *room = hspmd_calloc(most, sizeof *room);
	int *next = hspmd_calloc((size_t)lengths, sizeof *next);
	*out = (struct hspmd_step_batches){
		.pipeline_count = pipeline_count,
		.begin = hspmd_calloc((size_t)pipeline_count + 1, sizeof *out->begin),
		.batches = hspmd_calloc(most, sizeof *out->batches),
		.order = hspmd_calloc((size_t)samples, sizeof *out->order),
	};
	int status = -1;
	if (!d.counts || !d.times || !room || !next || !out->begin || !out->batches || !out->order)
		hspmd_fail_memory(err, "dividing a step's samples");
	else if (!(status = divide(&d, length_of, samples, err)))
		deal(&d, length_of, samples, room, next, out);
	free(d.counts);
	free(d.times);
	free(room);
	free(next);
	if (status)
		hspmd_step_batches_clear(out);
	return status;
}

void hspmd_step_batches_clear(struct hspmd_step_batches *b)
{
	free(b->begin);
	free(b->batches);
	free(b->order);
	*b = (struct hspmd_step_batches){ 0 };
}
