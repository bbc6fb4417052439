/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/half.h"
#include "common/json.h"
#include "runtime/state/hf_names.h"
#include "runtime/state/safetensors.h"

#define INDEX "model.safetensors.index.json"
#define SINGLE "model.safetensors"

/* Number of elements converted at a time. */
#define CHUNK ((size_t)1 << 20)

struct weight_file {
	char *path;
	int fd;
	struct hspmd_safetensors *s;
};

struct hspmd_weights {
	char *path; /* as passed by the caller */
	size_t file_count, file_capacity;
	struct weight_file *files;
	char *raw; /* CHUNK bytes */
};

/* ---- opening */

static int open_file(struct hspmd_weights *w, const char *path, struct hspmd_error *err)
{
	if (hspmd_array_grow(&w->files, &w->file_capacity, w->file_count, sizeof *w->files))
		return hspmd_fail_memory(err, "opening weights");
	struct weight_file *f = &w->files[w->file_count];
	f->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (f->fd < 0)
		return hspmd_fail_errno(err, "%s", path);
	w->file_count++;
	f->path = strdup(path);
	if (!f->path)
		return hspmd_fail_memory(err, "opening weights");
	f->s = hspmd_safetensors_read(f->fd, path, err);
	return f->s ? 0 : -1;
}

/* Open the files that an index names, each once. */
static int open_index(struct hspmd_weights *w, const char *folder, const char *index, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	if (hspmd_json_open(&doc, index, err))
		return -1;
	struct hspmd_json root = hspmd_json_root(&doc), map = hspmd_json_object(&root, "weight_map"), member;
	const char *key;
	int rv = hspmd_json_failed(&root) ? -1 : 0;
	for (size_t i = 0; !rv && hspmd_json_member(&map, i, &key, &member); i++) {
		const char *name = hspmd_json_string_value(&member);
		bool known = false;
		if (!name || strchr(name, '/')) {
			rv = name ? hspmd_json_fail(&member, "\"%s\" is not a file beside the index", name) : -1;
			break;
		}
		char *path = hspmd_asprintf("%s/%s", folder, name);
		for (size_t f = 0; path && f < w->file_count; f++)
			known |= !strcmp(w->files[f].path, path);
		if (!path)
			rv = hspmd_fail_memory(err, "opening weights");
		else if (!known)
			rv = open_file(w, path, err);
		free(path);
	}
	hspmd_json_close(&doc);
	return rv;
}

static int open_folder(struct hspmd_weights *w, const char *folder, struct hspmd_error *err)
{
	char *index = hspmd_asprintf("%s/" INDEX, folder), *single = hspmd_asprintf("%s/" SINGLE, folder);
	int rv;
	if (!index || !single)
		rv = hspmd_fail_memory(err, "opening weights");
	else if (!access(index, F_OK))
		rv = open_index(w, folder, index, err);
	else if (!access(single, F_OK))
		rv = open_file(w, single, err);
	else
		rv = hspmd_fail(err, "%s: neither " SINGLE " nor " INDEX " is there", folder);
	free(index);
	free(single);
	return rv;
}

struct hspmd_weights *hspmd_weights_open(const char *path, struct hspmd_error *err)
{
	struct stat st;
	struct hspmd_weights *w = hspmd_calloc(1, sizeof *w);
	if (w) {
		w->path = strdup(path);
		w->raw = malloc(CHUNK);
	}
	int rv;
	if (!w || !w->path || !w->raw)
		rv = hspmd_fail_memory(err, "opening weights");
	else if (stat(path, &st))
		rv = hspmd_fail_errno(err, "%s", path);
	else
		rv = S_ISDIR(st.st_mode) ? open_folder(w, path, err) : open_file(w, path, err);
	if (rv) {
		hspmd_weights_destroy(w);
		return NULL;
	}
	return w;
}

void hspmd_weights_destroy(struct hspmd_weights *w)
{
	if (!w)
		return;
	for (size_t i = 0; i < w->file_count; i++) {
		if (w->files[i].fd >= 0)
			close(w->files[i].fd);
		hspmd_safetensors_destroy(w->files[i].s);
		free(w->files[i].path);
	}
	free(w->files);
	free(w->path);
	free(w->raw);
	free(w);
}

/* ---- reading */

static const struct hspmd_safetensor *find_exactly(const struct hspmd_weights *w, const char *name, const struct weight_file **file)
{
	for (size_t i = 0; i < w->file_count; i++) {
		const struct hspmd_safetensor *t = hspmd_safetensors_find(w->files[i].s, name);
		if (t) {
			*file = &w->files[i];
			return t;
		}
	}
	return NULL;
}

/* Find a tensor with its prefix or without. */
static const struct hspmd_safetensor *find(const struct hspmd_weights *w, const char *name, const struct weight_file **file)
{
	static const char *const prefixes[] = { "transformer.", "model.", NULL };
	const struct hspmd_safetensor *t = find_exactly(w, name, file);
	for (int i = 0; prefixes[i] && !t; i++) {
		size_t length = strlen(prefixes[i]);
		if (!strncmp(name, prefixes[i], length)) {
			t = find_exactly(w, name + length, file);
		} else {
			char *longer = hspmd_asprintf("%s%s", prefixes[i], name);
			t = longer ? find_exactly(w, longer, file) : NULL;
			free(longer);
		}
	}
	return t;
}

static int convert(const char *dtype, const char *raw, float *data, size_t count)
{
	if (!strcmp(dtype, "F32")) {
		memcpy(data, raw, count * sizeof *data);
		return 0;
	}
	bool bf16 = !strcmp(dtype, "BF16"), f16 = !strcmp(dtype, "F16"), f64 = !strcmp(dtype, "F64");
	for (size_t i = 0; i < count; i++) {
		uint16_t half;
		double wide;
		if (f64) {
			memcpy(&wide, raw + i * sizeof wide, sizeof wide);
			data[i] = (float)wide;
			continue;
		}
		memcpy(&half, raw + i * sizeof half, sizeof half);
		data[i] = bf16 ? hspmd_bf16_to_float(half) : hspmd_f16_to_float(half);
	}
	return bf16 || f16 || f64 ? 0 : -1;
}

/* Read `count` elements of a tensor from element `first` on. */
static int read_elements(struct hspmd_weights *w, const struct weight_file *f, const struct hspmd_safetensor *t, uint64_t first,
                         size_t count, float *data, struct hspmd_error *err)
{
	size_t element = hspmd_safetensors_element(t->dtype), most = CHUNK / element;
	while (count) {
		size_t n = count < most ? count : most;
		for (size_t got = 0; got < n * element;) {
			ssize_t r = pread(f->fd, w->raw + got, n * element - got, (off_t)(t->offset + first * element + got));
			if (r < 0 && errno == EINTR)
				continue;
			if (r <= 0)
				return r ? hspmd_fail_errno(err, "%s", f->path) : hspmd_fail(err, "%s: ends early", f->path);
			got += (size_t)r;
		}
		if (convert(t->dtype, w->raw, data, n))
			return hspmd_fail(err, "%s: %s is of type %s, which is no type for weights", f->path, t->name, t->dtype);
		data += n;
		first += n;
		count -= n;
	}
	return 0;
}

static bool same_shape(const struct hspmd_shape *a, const struct hspmd_shape *b)
{
	bool same = a->rank == b->rank;
	for (int d = 0; same && d < a->rank; d++)
		same = a->dim[d] == b->dim[d];
	return same;
}

static const char *shape_text(const struct hspmd_shape *s, char *buf, size_t size)
{
	size_t n = (size_t)snprintf(buf, size, "[");
	for (int d = 0; d < s->rank && n < size; d++)
		n += (size_t)snprintf(buf + n, size - n, "%s%lld", d ? ", " : "", (long long)s->dim[d]);
	if (n < size)
		snprintf(buf + n, size - n, "]");
	return buf;
}

static int read_tensor(struct hspmd_weights *w, const struct weight_file *f, const struct hspmd_safetensor *t,
                       const struct hspmd_shape *shape, const struct hspmd_box *box, float *data, struct hspmd_error *err)
{
	char is[128], wanted[128];
	struct hspmd_shape there = hspmd_hf_shape(t->name, shape);
	if (!same_shape(&t->shape, &there))
		return hspmd_fail(err, "%s: %s has shape %s, the model's is %s", f->path, t->name, shape_text(&t->shape, is, sizeof is),
		                  shape_text(&there, wanted, sizeof wanted));
	struct hspmd_box whole = hspmd_box_full(shape);
	int64_t run, runs, at[HSPMD_MAX_RANK], covered = 1;
	int inner = box->rank;
	hspmd_box_runs(&whole, box, &run, &runs);
	memcpy(at, box->lo, sizeof at);
	while (inner > 0 && covered < run) {
		inner--;
		covered *= box->hi[inner] - box->lo[inner];
	}
	for (int64_t i = 0; i < runs; i++) {
		uint64_t first = 0;
		for (int d = 0; d < shape->rank; d++)
			first = first * (uint64_t)shape->dim[d] + (uint64_t)at[d];
		if (read_elements(w, f, t, first, (size_t)run, data + i * run, err))
			return -1;
		for (int d = inner - 1; d >= 0; d--) {
			if (++at[d] < box->hi[d])
				break;
			at[d] = box->lo[d];
		}
	}
	return 0;
}

/* Each row of a stack is a separate tensor. */
static int read_stack(struct hspmd_weights *w, const char *name, const struct hspmd_shape *shape, const struct hspmd_box *box, float *data,
                      struct hspmd_error *err)
{
	struct hspmd_shape one = { .rank = shape->rank - 1 };
	struct hspmd_box part = { .rank = box->rank - 1 };
	for (int d = 0; d < one.rank; d++) {
		one.dim[d] = shape->dim[d + 1];
		part.lo[d] = box->lo[d + 1];
		part.hi[d] = box->hi[d + 1];
	}
	for (int64_t e = box->lo[0]; e < box->hi[0]; e++) {
		const struct weight_file *f;
		char *member = hspmd_hf_expert_name(name, e);
		const struct hspmd_safetensor *t = member ? find(w, member, &f) : NULL;
		int rv = t ? read_tensor(w, f, t, &one, &part, data, err)
		           : hspmd_fail(err, "%s: %s is not there", w->path, member ? member : name);
		free(member);
		if (rv)
			return -1;
		data += hspmd_box_elements(&part);
	}
	return 0;
}

int hspmd_weights_read(struct hspmd_weights *w, const char *name, const struct hspmd_shape *shape, const struct hspmd_box *box, float *data,
                       struct hspmd_error *err)
{
	const struct weight_file *f;
	const struct hspmd_safetensor *t = find(w, name, &f);
	if (t)
		return read_tensor(w, f, t, shape, box, data, err);
	if (hspmd_hf_is_expert_stack(name) && shape->rank > 1)
		return read_stack(w, name, shape, box, data, err);
	return hspmd_fail(err, "%s: %s is not there", w->path, name);
}
