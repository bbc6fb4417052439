/* SPDX-License-Identifier: Apache-2.0 */
/* What makes a net of this folder the model of a job: sizes from the job's "model_config", and samples from its data files. */
#ifndef HSPMD_EXAMPLES_JOB_H
#define HSPMD_EXAMPLES_JOB_H

#include "parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static inline int failed(struct hspmd_error *err, const char *form, ...)
{
	va_list list;
	va_start(list, form);
	vsnprintf(err->text, sizeof err->text, form, list);
	va_end(list);
	return -1;
}

/* ---- sizes */

/* A number of model_config: whole and at least `least`, or real from 0 to below 1. */
struct setting {
	const char *name;
	int64_t *whole, least;
	double *real;
};

static inline const struct setting *find_setting(const struct setting *settings, size_t count, const char *name, size_t letters)
{
	for (size_t i = 0; i < count; i++)
		if (!strncmp(settings[i].name, name, letters) && !settings[i].name[letters])
			return &settings[i];
	return NULL;
}

/* config: an object of numbers, as hspmd passes it: without spaces. Numbers that are not there stay as they are. */
static inline int read_settings(const char *config, const struct setting *settings, size_t count, struct hspmd_error *err)
{
	for (const char *at = config + 1; *at == '"' || *at == ',';) {
		const char *name = at + (*at == ',') + 1, *end = strchr(name, '"');
		int letters = end ? (int)(end - name) : 0;
		const struct setting *s = end ? find_setting(settings, count, name, (size_t)letters) : NULL;
		char *after = NULL;
		double value = s ? strtod(end + 2, &after) : 0;
		if (!s)
			return failed(err, "model_config: there is no %.*s", letters, name);
		if (after == end + 2 || (s->whole && !(value >= (double)s->least && value <= 1e9 && value == (double)(int64_t)value)))
			return failed(err, "%s: expected a whole number of at least %d", s->name, s->whole ? (int)s->least : 0);
		if (s->real && !(value >= 0 && value < 1))
			return failed(err, "%s: expected a number from 0 to below 1", s->name);
		if (s->whole)
			*s->whole = (int64_t)value;
		else
			*s->real = value;
		at = after;
	}
	return 0;
}

/* ---- data files of equal records, one for each sample */

struct records {
	const void *how; /* of the net */
	uint64_t seed;
	int64_t length; /* positions of a sample */
	int64_t bytes, count;
	int file_count;
	struct {
		FILE *file;
		int64_t end; /* number of the first record after it */
	} files[];
};

static inline void close_records(void *records)
{
	struct records *r = records;
	for (int i = 0; i < r->file_count; i++)
		fclose(r->files[i].file);
	free(r);
}

/* Records of `bytes` each; what is left at the end of a file is not used. NULL and err. */
static inline struct records *open_records(const struct hspmd_model_data *data, const void *how, int64_t bytes, int64_t *count,
                                           struct hspmd_error *err)
{
	struct records *r = calloc(1, sizeof *r + (size_t)data->file_count * sizeof *r->files);
	if (!r) {
		failed(err, "out of memory");
		return NULL;
	}
	r->how = how;
	r->seed = data->seed;
	r->length = data->length;
	r->bytes = bytes;
	for (int i = 0; i < data->file_count; i++) {
		FILE *file = fopen(data->files[i], "rb");
		if (!file || fseek(file, 0, SEEK_END)) {
			failed(err, "%s: %s", data->files[i], strerror(errno));
			if (file)
				fclose(file);
			close_records(r);
			return NULL;
		}
		r->count += ftell(file) / bytes;
		r->files[i].file = file;
		r->files[i].end = r->count;
		r->file_count++;
	}
	*count = r->count;
	if (r->count)
		return r;
	failed(err, "expected files of at least %ld bytes, a sample", (long)bytes);
	close_records(r);
	return NULL;
}

/* The bytes of a record; the caller frees them. NULL and err. */
static inline unsigned char *read_record(const struct records *r, int64_t number, struct hspmd_error *err)
{
	unsigned char *to = malloc((size_t)r->bytes);
	int i = 0;
	while (number >= r->files[i].end)
		i++;
	int64_t first = i ? r->files[i - 1].end : 0;
	if (to && !fseek(r->files[i].file, (long)((number - first) * r->bytes), SEEK_SET) &&
	    fread(to, (size_t)r->bytes, 1, r->files[i].file) == 1)
		return to;
	failed(err, to ? "the file is shorter than when it was opened" : "out of memory");
	free(to);
	return NULL;
}

/* A random number: a function of its arguments (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators"). */
static inline uint64_t random_number(uint64_t seed, int64_t sample, int64_t which)
{
	uint64_t z = (seed * 0x9e3779b97f4a7c15u + (uint64_t)sample) * 0x9e3779b97f4a7c15u + (uint64_t)which * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* ---- images: a record is a byte, its label, and `size` x `size` bytes of each colour: the binary form of CIFAR-10 for size 32 */

/* First member of the sizes of a net that classifies images. */
struct images {
	int64_t size, classes;
};

static inline void *open_images(void *how, const struct hspmd_model_data *data, int64_t *count, struct hspmd_error *err)
{
	int64_t size = ((const struct images *)how)->size;
	if (data->length == 1)
		return open_records(data, how, 1 + 3 * size * size, count, err);
	failed(err, "seq_len: expected 1, got %ld: an image has one label", (long)data->length);
	return NULL;
}

/* Colours [start, start + length) of "image", or "label". */
static inline int read_image(void *samples, const char *input, int64_t sample, int64_t start, int64_t length, void *to,
                             struct hspmd_error *err)
{
	const struct records *r = samples;
	const struct images *how = r->how;
	unsigned char *record = read_record(r, sample, err);
	int label = record ? record[0] : 0;
	if (!record)
		return -1;
	int64_t colour = how->size * how->size;
	if (!strcmp(input, "label"))
		*(int32_t *)to = label;
	else
		for (int64_t i = 0; i < length * colour; i++)
			((float *)to)[i] = (float)record[1 + start * colour + i] / 64 - 2;
	free(record);
	return label < how->classes ? 0 : failed(err, "label %d, but there are %ld classes", label, (long)how->classes);
}

/* ---- tokens of 1, 2 or 4 bytes: text, or the .bin that hspmd data prepare writes */

static inline int check_token_bytes(int64_t bytes, struct hspmd_error *err)
{
	return bytes == 1 || bytes == 2 || bytes == 4 ? 0 : failed(err, "token_bytes: expected 1, 2 or 4, got %ld", (long)bytes);
}

/* The tokens of a record; the caller frees them. NULL and err. */
static inline int64_t *read_tokens(const struct records *r, int64_t number, int64_t token_bytes, int64_t below, struct hspmd_error *err)
{
	int64_t count = r->bytes / token_bytes, *tokens = malloc((size_t)count * sizeof *tokens);
	unsigned char *record = tokens ? read_record(r, number, err) : NULL;
	int64_t wrong = tokens ? -1 : failed(err, "out of memory");
	for (int64_t i = 0; record && i < count; i++) {
		tokens[i] = 0;
		for (int64_t b = token_bytes - 1; b >= 0; b--)
			tokens[i] = tokens[i] << 8 | record[i * token_bytes + b];
		if (tokens[i] >= below)
			wrong = tokens[i];
	}
	if (wrong >= 0)
		failed(err, "token %ld, but there are %ld words (token_bytes says how many bytes a token has)", (long)wrong, (long)below);
	if (record && wrong < 0) {
		free(record);
		return tokens;
	}
	free(record);
	free(tokens);
	return NULL;
}

#endif
