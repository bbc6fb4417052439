/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/input/data.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/input/blend.h"
#include "runtime/input/length_buckets.h"
#include "runtime/input/shuffle.h"
#include "runtime/input/token_file.h"
#include "runtime/tensor/input_names.h"

#define NOISE UINT64_C(0x6e6f697365) /* keeps the numbers apart from those that order samples */

/* Files whose tokens are one stream. Without weights all files are one; with weights each is one. */
struct stream {
	int first_file, file_count;
	int64_t tokens, samples;
};

struct hspmd_data {
	struct hspmd_token_file *files;
	int64_t *first; /* by file: position of its first token in the stream */
	int file_count, stream_count;
	struct stream *streams;
	struct hspmd_blend *blend; /* NULL: there is one stream */
	int64_t samples, seq_len, vocab, batch;
	uint64_t seed;
	const struct hspmd_job *job;
	bool drops;                           /* training: models with dropout apply it */
	bool once;                            /* every token is measured once: samples after the last do not count */
	struct hspmd_length_buckets *buckets; /* NULL: the samples of all steps have seq_len tokens */
};

/* ---- opening */

/* Adds a document of a stream that begins at token `start` of it and ends before `end`. */
static int add_document(struct hspmd_data *d, int stream, int64_t start, int64_t end, struct hspmd_error *err)
{
	return end > start ? hspmd_length_buckets_add(d->buckets, stream, start, end - start, err) : 0;
}

/* Records the position and length of every document of a file; reads the file, or its index. *start: where a document begins that the
 * stream's files before it have not ended. */
static int bucket_file(struct hspmd_data *d, int file, int stream, int64_t *start, struct hspmd_error *err)
{
	const struct hspmd_token_file *f = &d->files[file];
	for (int64_t k = 0; k < f->documents; k++)
		if (hspmd_token_file_check_document(f, k, err) ||
		    add_document(d, stream, d->first[file] + hspmd_token_file_document_start(f, k),
		                 d->first[file] + hspmd_token_file_document_start(f, k + 1), err))
			return -1;
	for (int64_t k = 0; k < f->tokens && !f->documents; k++) {
		int64_t end = d->first[file] + k + 1;
		if (hspmd_token_file_get(f, k) != d->job->document_end && end < d->streams[stream].tokens)
			continue;
		if (add_document(d, stream, *start, end, err))
			return -1;
		*start = end;
	}
	return 0;
}

static int add_documents(struct hspmd_data *d, const int64_t *lengths, int count, struct hspmd_error *err)
{
	const struct hspmd_job *job = d->job;
	int64_t start = 0;
	d->buckets = hspmd_length_buckets_create(lengths, count, job->train_weights, d->stream_count, job->global_batch, job->seed);
	if (!d->buckets)
		return hspmd_fail_memory(err, "opening data");
	for (int i = 0; i < d->file_count; i++) {
		int stream = d->stream_count > 1 ? i : 0;
		start = stream ? 0 : start;
		if (bucket_file(d, i, stream, &start, err))
			return -1;
	}
	return 0;
}

static int bucket_documents(struct hspmd_data *d, const struct hspmd_job *job, struct hspmd_error *err)
{
	int set;
	if (add_documents(d, job->lengths, job->length_count, err))
		return -1;
	if (!hspmd_length_buckets_close(d->buckets, &set, err))
		return 0;
	return set < 0 ? hspmd_error_prefix(err, "%s: data.lengths", job->file)
	               : hspmd_error_prefix(err, "%s: data.train[%d], %s", job->file, set, d->files[set].data.path);
}

/* Each file is a stream if there are weights. */
static int make_streams(struct hspmd_data *d, const double *weights, struct hspmd_error *err)
{
	d->stream_count = weights ? d->file_count : 1;
	d->streams = hspmd_calloc((size_t)d->stream_count, sizeof *d->streams);
	if (!d->streams || (weights && !(d->blend = hspmd_blend_create(weights, d->file_count))))
		return hspmd_fail_memory(err, "opening data");
	for (int i = 0; i < d->file_count; i++) {
		struct stream *s = &d->streams[weights ? i : 0];
		if (!s->file_count++)
			s->first_file = i;
		d->first[i] = s->tokens;
		s->tokens += d->files[i].tokens;
	}
	for (int k = 0; k < d->stream_count; k++) {
		struct stream *s = &d->streams[k];
		s->samples = (s->tokens - 1 + (d->once ? d->seq_len - 1 : 0)) / d->seq_len;
		d->samples += s->samples;
		if (s->tokens - 1 < d->seq_len && !(d->once && s->samples))
			return hspmd_fail(err, "%s: %" PRId64 " tokens in %s, one sample takes seq_len + 1 = %" PRId64,
			                  s->file_count ? d->files[s->first_file].data.path : d->job->file, s->tokens,
			                  weights ? "a file with a weight" : "all files", d->seq_len + 1);
	}
	return 0;
}

static struct hspmd_data *open_files(const struct hspmd_job *job, char *const *paths, int count, const double *weights, bool once,
                                     int64_t vocab, struct hspmd_error *err)
{
	struct hspmd_data *d = calloc(1, sizeof *d);
	int status = 0;
	if (!d || !(d->files = hspmd_calloc((size_t)count, sizeof *d->files)) ||
	    !(d->first = hspmd_calloc((size_t)count, sizeof *d->first))) {
		hspmd_data_close(d);
		hspmd_fail_memory(err, "opening data");
		return NULL;
	}
	d->job = job;
	d->seq_len = job->seq_len;
	d->batch = job->global_batch;
	d->vocab = vocab;
	d->seed = job->seed;
	d->drops = true;
	d->once = once;
	for (int i = 0; !status && i < count; i++)
		status = hspmd_token_file_open(&d->files[d->file_count++], job, paths[i], err);
	if (!status && !make_streams(d, weights, err))
		return d;
	hspmd_data_close(d);
	return NULL;
}

#define AUTO_SHORTEST 16 /* tokens: what steps of fewer would save is little */
#define AUTO_PART 0.01   /* of all tokens: fewer are trained in longer steps */
#define AUTO_BATCHES 4   /* as many as a length needs: what does not fill a batch is left out of each epoch */

int hspmd_data_choose_lengths(const struct hspmd_job *job, int64_t vocab, int64_t *lengths, struct hspmd_error *err)
{
	int64_t all[HSPMD_DATA_LENGTHS_MOST] = { job->seq_len };
	int count = 1, kept = 0;
	while (count < HSPMD_DATA_LENGTHS_MOST && all[0] % 2 == 0 && all[0] / 2 >= AUTO_SHORTEST) {
		memmove(&all[1], &all[0], (size_t)count++ * sizeof *all);
		all[0] = all[1] / 2;
	}
	struct hspmd_data *d = open_files(job, job->train, job->train_count, job->train_weights, false, vocab, err);
	if (!d || add_documents(d, all, count, err)) {
		hspmd_data_close(d);
		return -1;
	}
	double tokens = 0, part = 0; /* part: of documents that the last length kept does not hold */
	for (int i = 0; i < count; i++)
		tokens += (double)hspmd_length_buckets_tokens(d->buckets, i);
	for (int i = 0; i < count; i++) {
		part += (double)hspmd_length_buckets_tokens(d->buckets, i);
		if (i < count - 1 && (part < AUTO_PART * tokens || part < (double)(AUTO_BATCHES * job->global_batch * all[i])))
			continue;
		lengths[kept++] = all[i];
		part = 0;
	}
	hspmd_data_close(d);
	return kept;
}

struct hspmd_data *hspmd_data_open(const struct hspmd_job *job, int64_t vocab, struct hspmd_error *err)
{
	if (job->lengths_auto && !job->length_count) {
		hspmd_fail(err, "%s: data.lengths: nothing has been chosen for \"auto\"", job->file);
		return NULL;
	}
	struct hspmd_data *d = open_files(job, job->train, job->train_count, job->train_weights, false, vocab, err);
	if (!d || !job->length_count || !bucket_documents(d, job, err))
		return d;
	hspmd_data_close(d);
	return NULL;
}

struct hspmd_data *hspmd_data_open_valid(const struct hspmd_job *job, int64_t vocab, struct hspmd_error *err)
{
	struct hspmd_data *d = open_files(job, job->valid, job->valid_count, NULL, job->valid_batches < 0, vocab, err);
	if (d)
		d->drops = false;
	return d;
}

void hspmd_data_close(struct hspmd_data *d)
{
	if (!d)
		return;
	for (int i = 0; i < d->file_count; i++)
		hspmd_token_file_close(&d->files[i]);
	hspmd_blend_destroy(d->blend);
	free(d->streams);
	free(d->first);
	hspmd_length_buckets_destroy(d->buckets);
	free(d->files);
	free(d);
}

int hspmd_data_length_of_step(const struct hspmd_data *d, int64_t step)
{
	return d->buckets ? hspmd_length_buckets_of_step(d->buckets, step) : 0;
}

int64_t hspmd_data_samples(const struct hspmd_data *d)
{
	return d->samples;
}

/* ---- reading */

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

/* Returns true if the token is to be predicted. */
static bool counts(const struct walk *w)
{
	const struct hspmd_data *d = w->d;
	if (w->ended || (d->once && w->number >= d->samples))
		return false;
	return !d->job->mask || d->files[w->file].mask.bytes[w->at];
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

double hspmd_data_loss_factor(const struct hspmd_data *d, int64_t step)
{
	if (!d->job->mask && !d->once)
		return 1;
	int64_t length = d->buckets ? d->job->lengths[hspmd_data_length_of_step(d, step)] : d->seq_len, counted = 0;
	for (int64_t b = 0; b < d->batch; b++) {
		struct walk w = walk_from(d, step * d->batch + b, 1);
		for (int64_t i = 0; i < length; i++) {
			if (i)
				walk_on(&w);
			counted += counts(&w);
		}
	}
	return counted ? (double)(d->batch * length) / (double)counted : 0;
}

static int read_input(void *context, const char *name, int64_t number, int64_t start, int64_t count, void *to, struct hspmd_error *err)
{
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
