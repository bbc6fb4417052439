/* SPDX-License-Identifier: Apache-2.0 */
/* Samples: which tokens, targets and documents they have. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/input/data_internal.h"
#include "runtime/input/shuffle.h"
#include "runtime/tensor/input_names.h"

#define NOISE UINT64_C(0x6e6f697365) /* keeps the numbers apart from those that order samples */

/* A walk over the tokens of a sample. */
struct walk {
	const struct hspmd_data *d;
	int64_t number, offset; /* of the sample, of the token in it */
	int file;               /* of the token */
	int64_t at;             /* in the file */
	int64_t run;            /* tokens from here on that follow each other in the stream */
	int64_t document, next; /* with an index: the document of the token, and where the next one begins */
	int last_file;          /* of the stream */
	bool ended;             /* after the last token of all (`once`) */
	bool begins;            /* this token begins a document, as far as an index knows */
	bool wrong;             /* the index contradicts itself about the document */
	bool outside;           /* the index of lengths names a place that is not in the data */
};

/* Position of token `offset` of a sample in its stream, and the number of tokens that follow contiguously. */
static int64_t find(const struct hspmd_data *d, int64_t number, int64_t offset, int *stream, int64_t *run)
{
	*stream = 0;
	*run = INT64_MAX;
	if (d->buckets)
		return hspmd_length_buckets_find(d->buckets, number, offset, stream, run);
	if (d->blend)
		*stream = hspmd_blend_find(d->blend, number, &number);
	int64_t samples = d->streams[*stream].samples;
	uint64_t epoch = (uint64_t)(number / samples),
	         key = hspmd_mix(d->seed ^ hspmd_mix(epoch ^ (*stream ? hspmd_mix((uint64_t)*stream) : 0)));
	return (int64_t)hspmd_shuffle((uint64_t)(number % samples), (uint64_t)samples, key) * d->seq_len + offset;
}

/* Goes on to the next file that has a token at or after w->at, which is counted from the beginning of w->file. */
static void find_file(struct walk *w)
{
	while (w->file <= w->last_file && w->at >= w->d->files[w->file].tokens)
		w->at -= w->d->files[w->file++].tokens;
	w->ended = w->file > w->last_file;
	w->next = 0;
	w->wrong = false;
	if (w->ended || !w->d->files[w->file].documents)
		return;
	const struct hspmd_token_file *f = &w->d->files[w->file];
	w->document = hspmd_token_file_document(f, w->at);
	w->wrong = hspmd_token_file_check_document(f, w->document, NULL);
	w->begins = hspmd_token_file_document_start(f, w->document) == w->at;
	w->next = hspmd_token_file_document_start(f, w->document + 1);
}

static void locate(struct walk *w)
{
	const struct hspmd_data *d = w->d;
	int stream;
	int64_t at = find(d, w->number, w->offset, &stream, &w->run);
	w->outside = d->buckets && (at < 0 || at >= d->streams[stream].tokens);
	at = w->outside ? 0 : at;
	int low = d->streams[stream].first_file, high = low + d->streams[stream].file_count;
	w->last_file = high - 1;
	while (high - low > 1) { /* the last file that begins at or before `at` */
		int middle = low + (high - low) / 2;
		if (d->first[middle] <= at)
			low = middle;
		else
			high = middle;
	}
	w->file = low;
	w->at = at - d->first[low];
	find_file(w);
}

static struct walk walk_from(const struct hspmd_data *d, int64_t number, int64_t offset)
{
	struct walk w = { .d = d, .number = number, .offset = offset };
	locate(&w);
	return w;
}

static void walk_on(struct walk *w)
{
	w->offset++;
	w->at++;
	w->begins = false;
	if (--w->run == 0) {
		locate(w);
		return;
	}
	const struct hspmd_token_file *f = w->ended ? NULL : &w->d->files[w->file];
	if (f && w->at >= f->tokens) {
		find_file(w);
	} else if (f && f->documents && w->at == w->next) {
		w->begins = true;
		while (!w->wrong && w->next <= w->at && w->document < f->documents - 1) { /* documents may be empty */
			w->next = hspmd_token_file_document_start(f, ++w->document + 1);
			w->wrong = hspmd_token_file_check_document(f, w->document, NULL);
		}
	}
}

/* -1 and err if the token is not below the vocabulary, or its document is not known. */
static int token_of(const struct walk *w, int32_t *token, struct hspmd_error *err)
{
	if (w->outside)
		return hspmd_fail(err, "%s: its index of lengths is damaged: sample %" PRId64 " is outside of the data; remove the index",
		                  w->d->job->file, w->number);
	if (w->ended) {
		*token = 0;
		return 0;
	}
	const struct hspmd_token_file *f = &w->d->files[w->file];
	int64_t t = hspmd_token_file_get(f, w->at);
	if (w->wrong)
		return hspmd_token_file_check_document(f, w->document, err);
	*token = (int32_t)t;
	if (t >= 0 && t < w->d->vocab)
		return 0;
	return hspmd_fail(err, "%s: token %" PRId64 " at position %" PRId64 " is not below the model's vocabulary of %" PRId64,
	                  f->data.path, t, w->at, w->d->vocab);
}

/* False: no token is to be predicted here, whatever its mask. */
static bool counts_at_all(const struct walk *w)
{
	return !w->ended && !(w->d->once && w->number >= w->d->samples);
}

/* Returns true if the token is to be predicted. */
static bool counts(const struct walk *w)
{
	return counts_at_all(w) && (!w->d->job->mask || w->d->files[w->file].mask.bytes[w->at]);
}

int hspmd_data_read(const struct hspmd_data *d, int64_t number, int64_t start, int64_t count, int32_t *tokens, struct hspmd_error *err)
{
	struct walk w = walk_from(d, number, start);
	for (int64_t i = 0; i < count; i++) {
		if (i)
			walk_on(&w);
		if (token_of(&w, &tokens[i], err))
			return -1;
	}
	return 0;
}

static int read_targets(const struct hspmd_data *d, int64_t number, int64_t start, int64_t count, int32_t *targets, struct hspmd_error *err)
{
	struct walk w = walk_from(d, number, start + 1);
	for (int64_t i = 0; i < count; i++) {
		if (i)
			walk_on(&w);
		if (token_of(&w, &targets[i], err))
			return -1;
		if (!counts(&w))
			targets[i] = -1;
	}
	return 0;
}

/* Fills in the numbers of the documents, or (numbers NULL) positions in their documents. */
static int read_documents(const struct hspmd_data *d, int64_t number, int64_t start, int64_t count, int32_t *numbers, int32_t *positions,
                          struct hspmd_error *err)
{
	int32_t document = 0, token;
	int64_t began = 0;
	struct walk w = walk_from(d, number, 0);
	bool ends = false; /* the token before ends a document */
	for (int64_t at = 0; at < start + count; at++) {
		if (at)
			walk_on(&w);
		if (at && (ends || w.begins)) {
			document++;
			began = at;
		}
		if (token_of(&w, &token, err))
			return -1;
		ends = d->job->document_end >= 0 && token == d->job->document_end; /* it belongs to the document that it ends */
		if (at >= start && numbers)
			numbers[at - start] = document;
		else if (at >= start)
			positions[at - start] = (int32_t)(at - began);
	}
	return 0;
}

int hspmd_data_segments(const struct hspmd_data *d, int64_t number, int64_t start, int64_t count, int32_t *segments,
                        struct hspmd_error *err)
{
	return read_documents(d, number, start, count, segments, NULL, err);
}

void hspmd_sample_noise(uint64_t seed, bool drops, int64_t number, int64_t start, int64_t count, int32_t *noise)
{
	uint64_t key = hspmd_mix(seed ^ hspmd_mix((uint64_t)number ^ NOISE));
	for (int64_t i = 0; i < count; i++)
		noise[i] = drops ? (int32_t)(hspmd_mix(key + (uint64_t)(start + i)) >> 33) : -1;
}

void hspmd_data_noise(const struct hspmd_data *d, int64_t number, int64_t start, int64_t count, int32_t *noise)
{
	hspmd_sample_noise(d->seed, d->drops, number, start, count, noise);
}

/* The bytes that are not 0. In lots whose number fits into a byte, so that they are counted many at a time. */
static int64_t count_set(const unsigned char *bytes, int64_t count)
{
	int64_t set = 0;
	for (int64_t at = 0; at < count;) {
		int64_t end = count - at < 255 ? count : at + 255;
		unsigned char few = 0;
		for (; at < end; at++)
			few = (unsigned char)(few + (bytes[at] != 0));
		set += few;
	}
	return set;
}

/* How many of `count` tokens from w on are to be predicted. Every device counts all masks of a step: whole runs of tokens at once. */
static int64_t count_predicted(struct walk *w, int64_t count)
{
	const struct hspmd_data *d = w->d;
	int64_t predicted = 0, n;
	for (; count > 0; count -= n) {
		const struct hspmd_token_file *f = w->ended ? NULL : &d->files[w->file];
		n = count < w->run ? count : w->run;
		n = f && f->tokens - w->at < n ? f->tokens - w->at : n;
		if (counts_at_all(w))
			predicted += d->job->mask ? count_set(f->mask.bytes + w->at, n) : n;
		w->offset += n;
		w->at += n;
		w->run -= n;
		if (!w->run)
			locate(w);
		else if (f && w->at >= f->tokens)
			find_file(w);
	}
	return predicted;
}

double hspmd_data_loss_factor(const struct hspmd_data *d, int64_t step)
{
	if (!d->job->mask && !d->once)
		return 1;
	int64_t counted = 0;
	for (int64_t b = 0; b < d->batch; b++) {
		int64_t number = step * d->batch + b;
		struct walk w = walk_from(d, number, 1);
		counted += count_predicted(&w, d->buckets ? d->job->lengths[hspmd_data_length_of_sample(d, number)] : d->seq_len);
	}
	return counted ? (double)hspmd_data_step_tokens(d, step) / (double)counted : 0;
}

/* A sample that counts nothing: no target is to be predicted, nothing is dropped, all tokens are one document of the first token. */
static void fill_input(const char *name, int64_t count, int32_t *to)
{
	int32_t value = hspmd_input_is_noise(name) || !strcmp(name, HSPMD_TENSOR_TARGETS) ? -1 : 0;
	for (int64_t i = 0; i < count; i++)
		to[i] = value;
}

static int read_input(void *context, const char *name, int64_t number, int64_t start, int64_t count, void *to, struct hspmd_error *err)
{
	if (number < 0) {
		fill_input(name, count, to);
		return 0;
	}
	if (hspmd_input_is_noise(name)) {
		hspmd_data_noise(context, number, start, count, to);
		return 0;
	}
	if (!strcmp(name, HSPMD_TENSOR_SEGMENTS))
		return hspmd_data_segments(context, number, start, count, to, err);
	if (!strcmp(name, HSPMD_TENSOR_POSITIONS))
		return read_documents(context, number, start, count, NULL, to, err);
	if (!strcmp(name, HSPMD_TENSOR_TARGETS))
		return read_targets(context, number, start, count, to, err);
	return hspmd_data_read(context, number, start, count, to, err);
}

static double loss_factor(void *context, int64_t step)
{
	return hspmd_data_loss_factor(context, step);
}

struct hspmd_sample_source hspmd_data_source(const struct hspmd_data *d)
{
	return (struct hspmd_sample_source){ .read = read_input, .context = (void *)d, .loss_factor = loss_factor };
}

#define CHECKED_MOST (INT64_C(1) << 28) /* tokens; read in some seconds */

int64_t hspmd_data_valid_batches(const struct hspmd_job *job, int64_t samples, bool parts)
{
	int64_t batch = job->global_batch, whole = samples / batch;
	if (job->valid_batches < 0 && parts)
		return (samples + batch - 1) / batch;
	if (whole < 1)
		return 1;
	return job->valid_batches < 0 || whole < job->valid_batches ? whole : job->valid_batches;
}

int hspmd_data_check_valid(const struct hspmd_job *job, int64_t vocab, struct hspmd_error *err)
{
	struct hspmd_data *d = hspmd_data_open_valid(job, vocab, err);
	int32_t *tokens = hspmd_calloc((size_t)job->seq_len + 1, sizeof *tokens);
	int status = d && tokens ? 0 : -1;
	int64_t count = d ? job->global_batch * hspmd_data_valid_batches(job, d->samples, true) : 0;
	count = d && d->samples < count ? d->samples : count;
	for (int64_t n = 0; !status && n < count && n * job->seq_len < CHECKED_MOST; n++)
		status = hspmd_data_read(d, n, 0, job->seq_len + 1, tokens, err);
	if (d && !tokens)
		hspmd_fail_memory(err, "checking data.valid");
	free(tokens);
	hspmd_data_close(d);
	return status;
}
