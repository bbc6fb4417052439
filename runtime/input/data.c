/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/input/data.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "runtime/input/length_buckets.h"
#include "runtime/input/shuffle.h"
#include "runtime/tensor/input_names.h"

#define NOISE UINT64_C(0x6e6f697365) /* keeps the numbers apart from those that order samples */

/* How one token is stored in a file. */
enum width { WIDTH_U8, WIDTH_U16, WIDTH_U32, WIDTH_I16, WIDTH_I64 };
static const int width_bytes[] = { 1, 2, 4, 2, 8 };

struct file {
	char *path;
	const unsigned char *bytes;
	size_t size;
	int64_t first, tokens; /* of the stream */
	enum width width;
};

struct hspmd_data {
	struct file *files;
	int file_count;
	int64_t samples, seq_len, vocab;
	uint64_t seed;
	int64_t document_end;                 /* -1: no documents */
	bool drops;                           /* training: models with dropout apply it */
	struct hspmd_length_buckets *buckets; /* NULL: the samples of all steps have seq_len tokens */
};

/* Megatron-LM's indexed data: PREFIX.bin holds the tokens; PREFIX.idx begins with "MMIDIDX\\0\\0", a version (1) and the code of the token
 * type. */
static int megatron_width(const char *name, enum width *width, struct hspmd_error *err)
{
	static const enum width of_code[] = { 0, WIDTH_U8, WIDTH_U8, WIDTH_I16, WIDTH_U32, WIDTH_I64, 0, 0, WIDTH_U16 };
	unsigned char head[18];
	char *path = hspmd_asprintf("%.*s.idx", hspmd_job_megatron_base_length(name), name);
	if (!path)
		return hspmd_fail_memory(err, "opening data");
	int fd = open(path, O_RDONLY | O_CLOEXEC), status = 0;
	if (fd < 0)
		status = hspmd_fail_errno(err, "%s", path);
	else if (read(fd, head, sizeof head) != (ssize_t)sizeof head || memcmp(head, "MMIDIDX\0\0", 9) || head[9] != 1)
		status = hspmd_fail(err, "%s: not an index of Megatron data (version 1)", path);
	else if (head[17] < 1 || head[17] > 8 || head[17] == 6 || head[17] == 7)
		status = hspmd_fail(err, "%s: tokens of type code %d, expected an integer type", path, head[17]);
	else
		*width = of_code[head[17]];
	if (fd >= 0)
		close(fd);
	free(path);
	return status;
}

static int open_file(struct file *f, enum hspmd_data_kind kind, const char *path, struct hspmd_error *err)
{
	static const enum width of_kind[] = {
		[HSPMD_DATA_BYTES] = WIDTH_U8, [HSPMD_DATA_UINT16] = WIDTH_U16, [HSPMD_DATA_UINT32] = WIDTH_U32
	};
	if (kind == HSPMD_DATA_MEGATRON) {
		if (megatron_width(path, &f->width, err))
			return -1;
		f->path = hspmd_asprintf("%.*s.bin", hspmd_job_megatron_base_length(path), path);
	} else {
		f->width = of_kind[kind];
		f->path = strdup(path);
	}
	if (!f->path)
		return hspmd_fail_memory(err, "opening data");
	struct stat st;
	int fd = open(f->path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st)) {
		hspmd_fail_errno(err, "%s", f->path);
		if (fd >= 0)
			close(fd);
		return -1;
	}
	f->size = (size_t)st.st_size;
	f->tokens = (int64_t)(f->size / (size_t)width_bytes[f->width]);
	void *map = f->size ? mmap(NULL, f->size, PROT_READ, MAP_SHARED, fd, 0) : NULL;
	int saved = errno;
	close(fd);
	if (map == MAP_FAILED) {
		errno = saved;
		return hspmd_fail_errno(err, "%s: cannot be mapped", f->path);
	}
	f->bytes = map;
	if (map)
		madvise(map, f->size, MADV_RANDOM);
	return 0;
}

static int64_t token_at(const struct file *f, int64_t i)
{
	const unsigned char *at = f->bytes + i * width_bytes[f->width];
	switch (f->width) {
	case WIDTH_U8:
		return *at;
	case WIDTH_U16:
		return at[0] | at[1] << 8;
	case WIDTH_I16:
		return (int16_t)(at[0] | at[1] << 8);
	case WIDTH_U32: {
		uint32_t v;
		memcpy(&v, at, sizeof v);
		return v;
	}
	case WIDTH_I64: {
		int64_t v;
		memcpy(&v, at, sizeof v);
		return v;
	}
	}
	return -1;
}

/* Records the position and length of every document; reads all files once. */
static int bucket_documents(struct hspmd_data *d, const struct hspmd_job *job, struct hspmd_error *err)
{
	int64_t start = 0, at = 0;
	d->buckets = hspmd_length_buckets_create(job->lengths, job->length_count, job->global_batch, job->seed);
	if (!d->buckets)
		return hspmd_fail_memory(err, "opening data");
	for (int i = 0; i < d->file_count; i++) {
		const struct file *f = &d->files[i];
		for (int64_t k = 0; k < f->tokens; k++, at++)
			if (token_at(f, k) == d->document_end || (k + 1 == f->tokens && i + 1 == d->file_count)) {
				if (hspmd_length_buckets_add(d->buckets, start, at + 1 - start, err))
					return -1;
				start = at + 1;
			}
	}
	return hspmd_length_buckets_close(d->buckets, err) ? hspmd_error_prefix(err, "%s: data.lengths", job->file) : 0;
}

static struct hspmd_data *open_files(const struct hspmd_job *job, char *const *paths, int count, int64_t vocab, struct hspmd_error *err)
{
	struct hspmd_data *d = calloc(1, sizeof *d);
	if (!d || !(d->files = hspmd_calloc((size_t)count, sizeof *d->files))) {
		free(d);
		hspmd_fail_memory(err, "opening data");
		return NULL;
	}
	d->seq_len = job->seq_len;
	d->vocab = vocab;
	d->seed = job->seed;
	d->drops = true;
	d->document_end = job->documents ? job->document_end : -1;
	int64_t tokens = 0;
	for (int i = 0; i < count; i++) {
		struct file *f = &d->files[d->file_count++];
		if (open_file(f, job->data_kind, paths[i], err)) {
			hspmd_data_close(d);
			return NULL;
		}
		f->first = tokens;
		tokens += f->tokens;
	}
	d->samples = (tokens - 1) / d->seq_len;
	if (d->samples < 1) {
		hspmd_fail(err, "%s: %" PRId64 " tokens in all files, one sample takes seq_len + 1 = %" PRId64,
		           count ? paths[0] : job->file, tokens, d->seq_len + 1);
		hspmd_data_close(d);
		return NULL;
	}
	return d;
}

struct hspmd_data *hspmd_data_open(const struct hspmd_job *job, int64_t vocab, struct hspmd_error *err)
{
	struct hspmd_data *d = open_files(job, job->train, job->train_count, vocab, err);
	if (!d || !job->length_count || !bucket_documents(d, job, err))
		return d;
	hspmd_data_close(d);
	return NULL;
}

struct hspmd_data *hspmd_data_open_valid(const struct hspmd_job *job, int64_t vocab, struct hspmd_error *err)
{
	struct hspmd_data *d = open_files(job, job->valid, job->valid_count, vocab, err);
	if (d)
		d->drops = false;
	return d;
}

void hspmd_data_close(struct hspmd_data *d)
{
	if (!d)
		return;
	for (int i = 0; i < d->file_count; i++) {
		if (d->files[i].bytes)
			munmap((void *)d->files[i].bytes, d->files[i].size);
		free(d->files[i].path);
	}
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

/* Position of token `offset` of a sample in the stream, and the number of tokens that follow contiguously. */
static int64_t find(const struct hspmd_data *d, int64_t number, int64_t offset, int64_t *run)
{
	if (d->buckets)
		return hspmd_length_buckets_find(d->buckets, number, offset, run);
	uint64_t epoch = (uint64_t)(number / d->samples), key = hspmd_mix(d->seed ^ hspmd_mix(epoch));
	*run = INT64_MAX;
	return (int64_t)hspmd_shuffle((uint64_t)(number % d->samples), (uint64_t)d->samples, key) * d->seq_len + offset;
}

int hspmd_data_read(const struct hspmd_data *d, int64_t number, int64_t start, int64_t count, int32_t *tokens, struct hspmd_error *err)
{
	int64_t at = 0, run = 0;
	int file = 0;
	for (int64_t i = 0; i < count; i++, at++, run--) {
		if (run == 0) {
			at = find(d, number, start + i, &run);
			file = 0;
		}
		while (at >= d->files[file].first + d->files[file].tokens)
			file++;
		const struct file *f = &d->files[file];
		int64_t t = token_at(f, at - f->first);
		if (t < 0 || t >= d->vocab)
			return hspmd_fail(err,
			                  "%s: token %" PRId64 " at position %" PRId64 " is not below the model's vocabulary of %" PRId64,
			                  f->path, t, at - f->first, d->vocab);
		tokens[i] = (int32_t)t;
	}
	return 0;
}

int hspmd_data_segments(const struct hspmd_data *d, int64_t number, int64_t start, int64_t count, int32_t *segments,
                        struct hspmd_error *err)
{
	int32_t segment = 0, tokens[256];
	for (int64_t at = 0; at < start + count; at += 256) {
		int64_t n = start + count - at < 256 ? start + count - at : 256;
		if (hspmd_data_read(d, number, at, n, tokens, err))
			return -1;
		for (int64_t i = 0; i < n; i++) {
			if (at + i >= start)
				segments[at + i - start] = segment;
			segment += tokens[i] == d->document_end; /* the end token belongs to the document that it ends */
		}
	}
	return 0;
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

static int read_input(void *context, const char *name, int64_t number, int64_t start, int64_t count, void *to, struct hspmd_error *err)
{
	if (!strcmp(name, HSPMD_TENSOR_NOISE)) {
		hspmd_data_noise(context, number, start, count, to);
		return 0;
	}
	if (!strcmp(name, HSPMD_TENSOR_SEGMENTS))
		return hspmd_data_segments(context, number, start, count, to, err);
	return hspmd_data_read(context, number, start + !strcmp(name, HSPMD_TENSOR_TARGETS), count, to, err);
}

struct hspmd_sample_source hspmd_data_source(const struct hspmd_data *d)
{
	return (struct hspmd_sample_source){ read_input, (void *)d };
}
