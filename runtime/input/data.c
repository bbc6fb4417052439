/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/input/data_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/log.h"
#include "runtime/input/blend.h"
#include "runtime/input/length_buckets.h"
#include "runtime/input/length_index.h"
#include "runtime/input/token_file.h"

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

/* sink: as of length_buckets.h, with `index` as its context; NULL: where documents are is kept in memory. */
static int add_documents(struct hspmd_data *d, const int64_t *lengths, int count, hspmd_run_sink *sink,
                         struct hspmd_length_index_writer *index, struct hspmd_error *err)
{
	const struct hspmd_job *job = d->job;
	int64_t start = 0;
	d->buckets = hspmd_length_buckets_create(lengths, count, job->train_weights, d->stream_count, job->global_batch, job->seed);
	if (!d->buckets)
		return hspmd_fail_memory(err, "opening data");
	if (job->mix_lengths)
		hspmd_length_buckets_mix(d->buckets);
	hspmd_length_buckets_hand_on(d->buckets, sink, index);
	for (int i = 0; i < d->file_count; i++) {
		int stream = d->stream_count > 1 ? i : 0;
		start = stream ? 0 : start;
		if (bucket_file(d, i, stream, &start, err))
			return -1;
	}
	return 0;
}

/* What the buckets depend on: an index is used by those alone for whom this is the same. NULL: memory. Files that changed have another
 * size or time. */
static json_t *index_of(const struct hspmd_data *d)
{
	const struct hspmd_job *job = d->job;
	json_t *files = json_array(), *lengths = json_array();
	int bad = !files || !lengths;
	for (int i = 0; i < d->file_count; i++) {
		const struct hspmd_mapping *f[] = { &d->files[i].data, &d->files[i].index };
		for (int k = 0; k < 2; k++)
			bad |= f[k]->path &&
			       json_array_append_new(files, json_pack("{ss,sI,sI}", "path", f[k]->path, "bytes", (json_int_t)f[k]->size,
			                                              "changed_ns", (json_int_t)f[k]->changed_ns));
	}
	for (int i = 0; i < job->length_count; i++)
		bad |= json_array_append_new(lengths, json_integer(job->lengths[i]));
	json_t *of = json_pack("{so,so,sI,sI,sI,sb,sb}", "files", files, "lengths", lengths, "document_end", (json_int_t)job->document_end,
	                       "seq_len", (json_int_t)job->seq_len, "global_batch", (json_int_t)job->global_batch, "auto",
	                       job->lengths_auto, "streams", d->stream_count > 1);
	if (!bad)
		return of;
	json_decref(of);
	return NULL;
}

/* Two descriptions of what an index was made of are equal but for this key. */
static bool same_but(const char *key, const json_t *a, const json_t *b)
{
	json_t *x = json_copy((json_t *)(uintptr_t)a), *y = json_copy((json_t *)(uintptr_t)b);
	json_object_del(x, key);
	json_object_del(y, key);
	bool same = x && y && json_equal(x, y);
	json_decref(x);
	json_decref(y);
	return same;
}

/* Opens an index that was made of these files, whoever chose the lengths. NULL and err if there is none. */
static struct hspmd_length_index *open_index(const char *path, const json_t *of, struct hspmd_error *err)
{
	struct hspmd_length_index *x = hspmd_length_index_open(path, err);
	if (!x || same_but("auto", hspmd_length_index_of(x), of))
		return x;
	hspmd_fail(err, "%s: it was made of other files, or of files that have changed since, or for other lengths", path);
	hspmd_length_index_close(x);
	return NULL;
}

/* Takes the buckets from an index. 0; -1 and err: they must be made of the documents. */
static int use_index(struct hspmd_data *d, const char *path, struct hspmd_error *err)
{
	const struct hspmd_job *job = d->job;
	json_t *of = index_of(d);
	if (!of)
		return hspmd_fail_memory(err, "opening data");
	d->index = open_index(path, of, err);
	json_decref(of);
	if (!d->index)
		return -1;
	d->buckets = hspmd_length_buckets_create(job->lengths, job->length_count, job->train_weights, d->stream_count, job->global_batch,
	                                         job->seed);
	if (d->buckets && job->mix_lengths)
		hspmd_length_buckets_mix(d->buckets);
	int status = d->buckets ? hspmd_length_index_fill(d->index, d->buckets, err) : hspmd_fail_memory(err, "opening data");
	if (!status)
		return 0;
	hspmd_length_buckets_destroy(d->buckets);
	hspmd_length_index_close(d->index);
	d->buckets = NULL;
	d->index = NULL;
	return -1;
}

static int close_buckets(struct hspmd_data *d, struct hspmd_error *err)
{
	const struct hspmd_job *job = d->job;
	int set;
	if (!hspmd_length_buckets_close(d->buckets, &set, err))
		return 0;
	return set < 0 ? hspmd_error_prefix(err, "%s: data.lengths", job->file)
	               : hspmd_error_prefix(err, "%s: data.train[%d], %s", job->file, set, d->files[set].data.path);
}

static int bucket_documents(struct hspmd_data *d, const char *index, struct hspmd_error *err)
{
	struct hspmd_error why;
	bool indexed = index && !use_index(d, index, &why);
	if (index && !indexed)
		hspmd_info("all documents are read for their lengths: %s", why.text);
	if (!indexed && add_documents(d, d->job->lengths, d->job->length_count, NULL, NULL, err))
		return -1;
	return close_buckets(d, err);
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

static int keep_nothing(void *context, int length, int set, const struct hspmd_token_run *run, struct hspmd_error *err)
{
	(void)context, (void)length, (void)set, (void)run, (void)err;
	return 0;
}

/* The lengths that were chosen when the index was made, if it was made of these files for such a job. Returns their number; 0: it was
 * not. */
static int lengths_of_index(const struct hspmd_data *d, const char *path, int64_t *lengths)
{
	struct hspmd_error why;
	struct hspmd_length_index *x = hspmd_length_index_open(path, &why);
	json_t *of = x ? index_of(d) : NULL, *chosen = x ? json_object_get(hspmd_length_index_of(x), "lengths") : NULL;
	int count = 0;
	if (of && same_but("lengths", hspmd_length_index_of(x), of) && json_array_size(chosen) <= HSPMD_DATA_LENGTHS_MOST)
		for (; count < (int)json_array_size(chosen); count++)
			lengths[count] = json_integer_value(json_array_get(chosen, (size_t)count));
	json_decref(of);
	hspmd_length_index_close(x);
	return count;
}

#define AUTO_SHORTEST 16 /* tokens: what steps of fewer would save is little */
#define AUTO_PART 0.01   /* of all tokens: fewer are trained in longer steps */
#define AUTO_BATCHES 4   /* as many as a length needs: what does not fill a batch is left out of each epoch */

int hspmd_data_choose_lengths(const struct hspmd_job *job, int64_t vocab, const char *index, int64_t *lengths, struct hspmd_error *err)
{
	int64_t all[HSPMD_DATA_LENGTHS_MOST] = { job->seq_len };
	int count = 1, kept = 0;
	while (count < HSPMD_DATA_LENGTHS_MOST && all[0] % 2 == 0 && all[0] / 2 >= AUTO_SHORTEST) {
		memmove(&all[1], &all[0], (size_t)count++ * sizeof *all);
		all[0] = all[1] / 2;
	}
	struct hspmd_data *d = open_files(job, job->train, job->train_count, job->train_weights, false, vocab, err);
	if (d && index && (kept = lengths_of_index(d, index, lengths)) > 0) {
		hspmd_data_close(d);
		return kept;
	}
	if (!d || add_documents(d, all, count, keep_nothing, NULL, err)) {
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

static bool lengths_are_known(const struct hspmd_job *job, struct hspmd_error *err)
{
	if (job->lengths_auto && !job->length_count)
		hspmd_fail(err, "%s: data.lengths: nothing has been chosen for \"auto\"", job->file);
	return !job->lengths_auto || job->length_count;
}

static struct hspmd_data *open_train(const struct hspmd_job *job, int64_t vocab, struct hspmd_error *err)
{
	return lengths_are_known(job, err) ? open_files(job, job->train, job->train_count, job->train_weights, false, vocab, err) : NULL;
}

struct hspmd_data *hspmd_data_open(const struct hspmd_job *job, int64_t vocab, const char *index, struct hspmd_error *err)
{
	struct hspmd_data *d = open_train(job, vocab, err);
	if (!d || !job->length_count || !bucket_documents(d, index, err))
		return d;
	hspmd_data_close(d);
	return NULL;
}

/* Replaces an index that is missing or is of something else. */
static int make_index(struct hspmd_data *d, const char *path, struct hspmd_error *err)
{
	struct hspmd_error why;
	json_t *of = index_of(d);
	struct hspmd_length_index *there = of ? open_index(path, of, &why) : NULL;
	struct hspmd_length_index_writer *w = of && !there ? hspmd_length_index_begin(path, err) : NULL;
	int status = there ? 0 : -1;
	if (!of)
		hspmd_fail_memory(err, "indexing documents");
	if (w) {
		hspmd_info("all documents are read for their lengths, once: %s", path);
		status = add_documents(d, d->job->lengths, d->job->length_count, hspmd_length_index_add, w, err);
		struct hspmd_error ended;
		if (hspmd_length_index_end(w, status ? NULL : d->buckets, of, &ended) && !status)
			status = hspmd_fail(err, "%s", ended.text);
	}
	hspmd_length_index_close(there);
	json_decref(of);
	return status;
}

int hspmd_data_make_index(const struct hspmd_job *job, int64_t vocab, const char *path, struct hspmd_error *err)
{
	if (!job->length_count)
		return 0;
	struct hspmd_data *d = open_train(job, vocab, err);
	int status = d ? make_index(d, path, err) : -1;
	hspmd_data_close(d);
	return status;
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
	hspmd_length_index_close(d->index);
	free(d->files);
	free(d);
}

int hspmd_data_length_of_sample(const struct hspmd_data *d, int64_t number)
{
	return d->buckets ? hspmd_length_buckets_of_sample(d->buckets, number) : 0;
}

int hspmd_data_length_of_step(const struct hspmd_data *d, int64_t step)
{
	return hspmd_data_length_of_sample(d, step * d->batch);
}

static int64_t tokens_of_sample(const struct hspmd_data *d, int64_t number)
{
	return d->buckets ? d->job->lengths[hspmd_data_length_of_sample(d, number)] : d->seq_len;
}

int64_t hspmd_data_step_tokens(const struct hspmd_data *d, int64_t step)
{
	int64_t tokens = 0;
	if (!d->buckets || !d->job->mix_lengths)
		return d->batch * tokens_of_sample(d, step * d->batch);
	for (int64_t b = 0; b < d->batch; b++)
		tokens += tokens_of_sample(d, step * d->batch + b);
	return tokens;
}

int64_t hspmd_data_samples(const struct hspmd_data *d)
{
	return d->samples;
}
