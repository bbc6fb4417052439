/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/input/length_index.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "runtime/weights/safetensors.h"

#define ALIGN 4096
#define RUN_BYTES sizeof(struct hspmd_token_run)

/* ---- writing: runs come in the order of the documents, and are sorted by bucket when all are known */

struct spilled {
	int32_t length, set;
	struct hspmd_token_run run;
};

struct hspmd_length_index_writer {
	char *path, *made, *spill; /* made: the new file, before it has its name */
	FILE *runs;
};

static void writer_free(struct hspmd_length_index_writer *w)
{
	if (w->runs)
		fclose(w->runs);
	if (w->spill)
		unlink(w->spill);
	if (w->made)
		unlink(w->made);
	free(w->path);
	free(w->made);
	free(w->spill);
	free(w);
}

struct hspmd_length_index_writer *hspmd_length_index_begin(const char *path, struct hspmd_error *err)
{
	struct hspmd_length_index_writer *w = calloc(1, sizeof *w);
	if (!w || !(w->path = strdup(path)) || !(w->made = hspmd_asprintf("%s.new", path)) || !(w->spill = hspmd_asprintf("%s.runs", path)))
		hspmd_fail_memory(err, "indexing documents");
	else if (!(w->runs = fopen(w->spill, "w+e")))
		hspmd_fail_errno(err, "%s", w->spill);
	else
		return w;
	if (w)
		writer_free(w);
	return NULL;
}

int hspmd_length_index_add(void *context, int length, int set, const struct hspmd_token_run *run, struct hspmd_error *err)
{
	struct hspmd_length_index_writer *w = context;
	const struct spilled s = { length, set, *run };
	return fwrite(&s, sizeof s, 1, w->runs) == 1 ? 0 : hspmd_fail_errno(err, "%s", w->spill);
}

/* The tensors of all buckets, by length and set; their names are the caller's to free. */
struct tensors {
	int lengths, sets;
	struct hspmd_safetensor *of; /* [length][set] */
};

static void tensors_free(struct tensors *t)
{
	for (int i = 0; t->of && i < t->lengths * t->sets; i++)
		free(t->of[i].name);
	free(t->of);
}

static int list_tensors(const struct hspmd_length_buckets *g, struct tensors *t, struct hspmd_error *err)
{
	int64_t length, tokens;
	uint64_t at = 0;
	size_t runs;
	*t = (struct tensors){ 0 };
	while (hspmd_length_buckets_bucket(g, t->lengths, 0, &length, &tokens, &runs))
		t->lengths++;
	while (hspmd_length_buckets_bucket(g, 0, t->sets, &length, &tokens, &runs))
		t->sets++;
	if (!(t->of = hspmd_calloc((size_t)t->lengths * (size_t)t->sets, sizeof *t->of)))
		return hspmd_fail_memory(err, "indexing documents");
	for (int i = 0; i < t->lengths * t->sets; i++) {
		struct hspmd_safetensor *one = &t->of[i];
		hspmd_length_buckets_bucket(g, i / t->sets, i % t->sets, &length, &tokens, &runs);
		*one = (struct hspmd_safetensor){ .name = hspmd_asprintf("%" PRId64 "/%d", length, i % t->sets),
			                          .dtype = "I64",
			                          .shape = { .rank = 2, .dim = { (int64_t)runs, 2 } },
			                          .offset = at,
			                          .bytes = runs * RUN_BYTES };
		if (!one->name)
			return hspmd_fail_memory(err, "indexing documents");
		at += one->bytes;
	}
	return 0;
}

/* The tokens of each bucket are not in its runs. */
static json_t *tokens_json(const struct hspmd_length_buckets *g, const struct tensors *t)
{
	json_t *all = json_object();
	for (int i = 0; all && i < t->lengths * t->sets; i++) {
		int64_t length, tokens;
		size_t runs;
		hspmd_length_buckets_bucket(g, i / t->sets, i % t->sets, &length, &tokens, &runs);
		if (json_object_set_new(all, t->of[i].name, json_integer(tokens))) {
			json_decref(all);
			return NULL;
		}
	}
	return all;
}

static char *make_head(const struct hspmd_length_buckets *g, const struct tensors *t, const json_t *of, size_t *bytes,
                       struct hspmd_error *err)
{
	json_t *tokens = tokens_json(g, t);
	char *of_text = json_dumps(of, JSON_COMPACT | JSON_SORT_KEYS), *tokens_text = tokens ? json_dumps(tokens, JSON_COMPACT) : NULL,
	     *head = NULL;
	json_t *metadata = of_text && tokens_text
	                           ? json_pack("{ss,ss,ss}", "format", HSPMD_LENGTH_INDEX_FORMAT, "of", of_text, "tokens", tokens_text)
	                           : NULL;
	if (metadata)
		head = hspmd_safetensors_header(t->of, (size_t)(t->lengths * t->sets), metadata, ALIGN, bytes, err);
	else
		hspmd_fail_memory(err, "indexing documents");
	json_decref(metadata);
	json_decref(tokens);
	free(of_text);
	free(tokens_text);
	return head;
}

/* Every run to its bucket's next free place; `data` is where the first tensor begins. */
static int sort_runs(struct hspmd_length_index_writer *w, const struct tensors *t, char *data, struct hspmd_error *err)
{
	uint64_t *next = hspmd_calloc((size_t)t->lengths * (size_t)t->sets, sizeof *next);
	struct spilled s;
	if (!next)
		return hspmd_fail_memory(err, "indexing documents");
	for (int i = 0; i < t->lengths * t->sets; i++)
		next[i] = t->of[i].offset;
	rewind(w->runs);
	while (fread(&s, sizeof s, 1, w->runs) == 1) {
		uint64_t *at = &next[s.length * t->sets + s.set];
		memcpy(data + *at, &s.run, RUN_BYTES);
		*at += RUN_BYTES;
	}
	free(next);
	return ferror(w->runs) ? hspmd_fail_errno(err, "%s", w->spill) : 0;
}

/* Space is taken before the file is mapped: a full disk must be an error here and no signal later. */
static int fill_file(struct hspmd_length_index_writer *w, const struct tensors *t, const char *head, size_t head_bytes,
                     struct hspmd_error *err)
{
	size_t size = head_bytes;
	for (int i = 0; i < t->lengths * t->sets; i++)
		size += t->of[i].bytes;
	int fd = open(w->made, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), failed = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)size);
	char *map = failed ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int status = 0;
	if (map == MAP_FAILED) {
		errno = failed ? failed : errno;
		status = hspmd_fail_errno(err, "%s", w->made);
	} else {
		memcpy(map, head, head_bytes);
		status = sort_runs(w, t, map + head_bytes, err);
		if (!status && msync(map, size, MS_SYNC))
			status = hspmd_fail_errno(err, "%s", w->made);
		munmap(map, size);
	}
	if (fd >= 0 && (fsync(fd) | close(fd)) && !status)
		status = hspmd_fail_errno(err, "%s", w->made);
	return status;
}

static int put_in_place(struct hspmd_length_index_writer *w, struct hspmd_error *err)
{
	if (rename(w->made, w->path))
		return hspmd_fail_errno(err, "%s", w->path);
	char *slash = strrchr(w->path, '/');
	if (slash)
		*slash = '\0';
	return hspmd_durable_sync(slash ? w->path : ".", err);
}

int hspmd_length_index_end(struct hspmd_length_index_writer *w, const struct hspmd_length_buckets *g, const json_t *of,
                           struct hspmd_error *err)
{
	struct tensors t = { 0 };
	size_t bytes;
	char *head = NULL;
	int status = g ? list_tensors(g, &t, err) : 0;
	if (g && !status && fflush(w->runs))
		status = hspmd_fail_errno(err, "%s", w->spill);
	if (g && !status && !(head = make_head(g, &t, of, &bytes, err)))
		status = -1;
	if (head)
		status = fill_file(w, &t, head, bytes, err) || put_in_place(w, err) ? -1 : 0;
	free(head);
	tensors_free(&t);
	writer_free(w);
	return status;
}

/* ---- reading */

struct hspmd_length_index {
	char *path;
	struct hspmd_safetensors *head;
	json_t *of, *tokens;
	const char *map;
	size_t size;
};

void hspmd_length_index_close(struct hspmd_length_index *x)
{
	if (!x)
		return;
	if (x->map)
		munmap((void *)(uintptr_t)x->map, x->size);
	hspmd_safetensors_destroy(x->head);
	json_decref(x->of);
	json_decref(x->tokens);
	free(x->path);
	free(x);
}

static json_t *parse_metadata(const struct hspmd_length_index *x, const char *key)
{
	const char *text = json_string_value(json_object_get(x->head->metadata, key));
	json_t *v = text ? json_loads(text, 0, NULL) : NULL;
	if (json_is_object(v))
		return v;
	json_decref(v);
	return NULL;
}

static int read_file(struct hspmd_length_index *x, int fd, struct hspmd_error *err)
{
	struct stat st;
	if (fd < 0 || fstat(fd, &st))
		return hspmd_fail_errno(err, "%s", x->path);
	if (!(x->head = hspmd_safetensors_read(fd, x->path, err)))
		return -1;
	const char *format = json_string_value(json_object_get(x->head->metadata, "format"));
	x->of = parse_metadata(x, "of");
	x->tokens = parse_metadata(x, "tokens");
	if (!format || strcmp(format, HSPMD_LENGTH_INDEX_FORMAT) || !x->of || !x->tokens)
		return hspmd_fail(err, "%s: not an index of documents by length", x->path);
	x->size = (size_t)st.st_size;
	void *map = mmap(NULL, x->size, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return hspmd_fail_errno(err, "%s: cannot be mapped", x->path);
	x->map = map;
	madvise(map, x->size, MADV_RANDOM);
	return 0;
}

struct hspmd_length_index *hspmd_length_index_open(const char *path, struct hspmd_error *err)
{
	struct hspmd_length_index *x = calloc(1, sizeof *x);
	int fd = open(path, O_RDONLY | O_CLOEXEC), saved = errno, status;
	if (!x || !(x->path = strdup(path)))
		status = hspmd_fail_memory(err, "opening data");
	else
		errno = saved, status = read_file(x, fd, err);
	if (fd >= 0)
		close(fd);
	if (!status)
		return x;
	hspmd_length_index_close(x);
	return NULL;
}

const json_t *hspmd_length_index_of(const struct hspmd_length_index *x)
{
	return x->of;
}

/* What lies between two runs is not read: a file that says what it was made of, and whose sizes fit, was written whole. */
int hspmd_length_index_fill(const struct hspmd_length_index *x, struct hspmd_length_buckets *g, struct hspmd_error *err)
{
	struct tensors t;
	int status = list_tensors(g, &t, err);
	for (int i = 0; !status && i < t.lengths * t.sets; i++) {
		const struct hspmd_safetensor *s = hspmd_safetensors_find(x->head, t.of[i].name);
		const json_t *tokens = json_object_get(x->tokens, t.of[i].name);
		if (!s || strcmp(s->dtype, "I64") || s->shape.rank != 2 || s->shape.dim[1] != 2 || s->offset % sizeof(int64_t) ||
		    !json_is_integer(tokens) || (json_integer_value(tokens) > 0) != (s->bytes > 0))
			status = hspmd_fail(err, "%s: it has no tensor %s of pairs, or does not say of how many tokens", x->path,
			                    t.of[i].name);
		else
			hspmd_length_buckets_lend(g, i / t.sets, i % t.sets,
			                          (const struct hspmd_token_run *)(const void *)(x->map + s->offset),
			                          (size_t)s->shape.dim[0], json_integer_value(tokens));
	}
	tensors_free(&t);
	return status;
}
