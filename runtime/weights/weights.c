/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/weights/weights.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "common/half.h"
#include "common/json.h"
#include "runtime/weights/safetensors.h"

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

/* Find a tensor by its name, with another prefix of the list in place of its own, or without any. */
static const struct hspmd_safetensor *find(const struct hspmd_weights *w, const char *const *prefixes, const char *name,
                                           const struct weight_file **file)
{
	const struct hspmd_safetensor *t = find_exactly(w, name, file);
	size_t own = 0;
	for (int i = 0; prefixes && prefixes[i] && !own; i++)
		own = strncmp(name, prefixes[i], strlen(prefixes[i])) == 0 ? strlen(prefixes[i]) : 0;
	if (!t && own)
		t = find_exactly(w, name + own, file);
	for (int i = 0; prefixes && prefixes[i] && !t; i++) {
		char *other = hspmd_asprintf("%s%s", prefixes[i], name + own);
		t = other ? find_exactly(w, other, file) : NULL;
		free(other);
	}
	return t;
}

/* count 0: only says whether a type is one of weights. 0 or -1. */
static int convert(const char *dtype, const char *raw, float *data, size_t count)
{
	if (!strcmp(dtype, "F32")) {
		if (count)
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
		if (hspmd_read_at(f->fd, w->raw, n * element, t->offset + first * element))
			return hspmd_fail_errno(err, "%s", f->path);
		(void)convert(t->dtype, w->raw, data, n);
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

/* The dimensions of a part of a piece, the one with the largest step in the file first. */
struct walk {
	int count;
	int64_t size[HSPMD_MAX_RANK + 1], from[HSPMD_MAX_RANK + 1], to[HSPMD_MAX_RANK + 1]; /* elements, and steps in file and buffer */
};

static void add_dim(struct walk *k, int64_t size, int64_t from, int64_t to)
{
	int i = k->count;
	if (size == 1)
		return;
	for (; i > 0 && k->from[i - 1] < from; i--) {
		k->size[i] = k->size[i - 1];
		k->from[i] = k->from[i - 1];
		k->to[i] = k->to[i - 1];
	}
	k->size[i] = size;
	k->from[i] = from;
	k->to[i] = to;
	k->count++;
}

/* Joins neighbours that are one run both in the file and in the buffer. */
static void join_dims(struct walk *k)
{
	for (int i = k->count - 2; i >= 0; i--) {
		if (k->from[i] != k->from[i + 1] * k->size[i + 1] || k->to[i] != k->to[i + 1] * k->size[i + 1])
			continue;
		k->size[i] *= k->size[i + 1];
		k->from[i] = k->from[i + 1];
		k->to[i] = k->to[i + 1];
		k->count--;
		memmove(k->size + i + 1, k->size + i + 2, (size_t)(k->count - i - 1) * sizeof *k->size);
		memmove(k->from + i + 1, k->from + i + 2, (size_t)(k->count - i - 1) * sizeof *k->from);
		memmove(k->to + i + 1, k->to + i + 2, (size_t)(k->count - i - 1) * sizeof *k->to);
	}
}

/* Reads `count` elements that are `step` apart in the file to elements that are `to` apart. */
static int read_run(struct hspmd_weights *w, const struct weight_file *f, const struct hspmd_safetensor *t, int64_t first, int64_t count,
                    int64_t step, float *data, int64_t to, struct hspmd_error *err)
{
	if (step == 1 && to == 1)
		return read_elements(w, f, t, (uint64_t)first, (size_t)count, data, err);
	int64_t most = (int64_t)(CHUNK / sizeof(float)) / step + 1;
	float *span = malloc((size_t)((most - 1) * step + 1) * sizeof *span);
	int rv = span ? 0 : hspmd_fail_memory(err, "reading weights");
	for (int64_t done = 0; !rv && done < count; done += most) {
		int64_t n = count - done < most ? count - done : most;
		rv = read_elements(w, f, t, (uint64_t)(first + done * step), (size_t)((n - 1) * step + 1), span, err);
		for (int64_t i = 0; !rv && i < n; i++)
			data[(done + i) * to] = span[i * step];
	}
	free(span);
	return rv;
}

static int read_walk(struct hspmd_weights *w, const struct weight_file *f, const struct hspmd_safetensor *t, const struct walk *k, int dim,
                     int64_t first, float *data, struct hspmd_error *err)
{
	if (dim == k->count)
		return read_run(w, f, t, first, 1, 1, data, 1, err);
	if (dim == k->count - 1)
		return read_run(w, f, t, first, k->size[dim], k->from[dim], data, k->to[dim], err);
	for (int64_t i = 0; i < k->size[dim]; i++)
		if (read_walk(w, f, t, k, dim + 1, first + i * k->from[dim], data + i * k->to[dim], err))
			return -1;
	return 0;
}

/* Reads rows [lo, hi) of the first dimension of `part`, which are in one block of the piece. data: of the whole buffer. */
static int read_rows(struct hspmd_weights *w, const struct weight_file *f, const struct hspmd_safetensor *t,
                     const struct hspmd_file_piece *piece, const struct hspmd_box *part, const struct hspmd_box *box, int64_t lo,
                     int64_t hi, float *data, struct hspmd_error *err)
{
	struct walk k = { 0 };
	int64_t first = piece->first, at = 0, step = 1, row = lo - piece->box.lo[0];
	for (int d = part->rank - 1; d >= 0; d--) {
		int64_t from = d ? part->lo[d] : lo, size = d ? part->hi[d] - part->lo[d] : hi - lo;
		add_dim(&k, size, piece->stride[d], step);
		at += (from - box->lo[d]) * step;
		first += d ? (from - piece->box.lo[d]) * piece->stride[d]
		           : row / piece->block * piece->block_stride + row % piece->block * piece->stride[0];
		step *= box->hi[d] - box->lo[d];
	}
	join_dims(&k);
	return read_walk(w, f, t, &k, 0, first, data + at, err);
}

/* The file's tensor that a piece is of. NULL and err if there is none, or one of another shape or an unfit type. */
static const struct hspmd_safetensor *tensor_of(const struct hspmd_weights *w, const char *const *prefixes,
                                                const struct hspmd_file_piece *piece, const struct weight_file **f, struct hspmd_error *err)
{
	char is[128], wanted[128];
	const struct hspmd_safetensor *t = find(w, prefixes, piece->name, f);
	if (!t)
		hspmd_fail(err, "%s: %s is not there", w->path, piece->name);
	else if (!same_shape(&t->shape, &piece->shape))
		hspmd_fail(err, "%s: %s has shape %s, the model's is %s", (*f)->path, t->name, shape_text(&t->shape, is, sizeof is),
		           shape_text(&piece->shape, wanted, sizeof wanted));
	else if (convert(t->dtype, NULL, NULL, 0))
		hspmd_fail(err, "%s: %s is of type %s, which is no type for weights", (*f)->path, t->name, t->dtype);
	else
		return t;
	return NULL;
}

/* Reads what `box` has of a piece. */
static int read_piece(struct hspmd_weights *w, const char *const *prefixes, const struct hspmd_file_piece *piece,
                      const struct hspmd_box *box, float *data, struct hspmd_error *err)
{
	const struct weight_file *f;
	struct hspmd_box part = *box;
	const struct hspmd_safetensor *t = tensor_of(w, prefixes, piece, &f, err);
	if (!t)
		return -1;
	if (!box->rank)
		return read_run(w, f, t, 0, 1, 1, data, 1, err);
	if (!hspmd_box_intersect(&piece->box, box, &part))
		return 0;
	int64_t lo = part.lo[0] - piece->box.lo[0], end = part.hi[0] - piece->box.lo[0], rows;
	for (; lo < end; lo += rows) {
		rows = end - lo < piece->block - lo % piece->block ? end - lo : piece->block - lo % piece->block;
		if (read_rows(w, f, t, piece, &part, box, piece->box.lo[0] + lo, piece->box.lo[0] + lo + rows, data, err))
			return -1;
	}
	return 0;
}

bool hspmd_file_map_piece(const struct hspmd_file_map *map, const char *name, const struct hspmd_shape *shape, int64_t index,
                          struct hspmd_file_piece *piece)
{
	if (map && map->piece)
		return map->piece(map->context, name, shape, index, piece);
	*piece = (struct hspmd_file_piece){ .shape = *shape, .box = hspmd_box_full(shape), .block = INT64_MAX };
	snprintf(piece->name, sizeof piece->name, "%s", name);
	for (int64_t d = shape->rank - 1, step = 1; d >= 0; step *= shape->dim[d--])
		piece->stride[d] = step;
	return index == 0;
}

int hspmd_weights_read(struct hspmd_weights *w, const struct hspmd_file_map *map, const char *name, const struct hspmd_shape *shape,
                       const struct hspmd_box *box, float *data, struct hspmd_error *err)
{
	struct hspmd_file_piece piece;
	struct hspmd_box part;
	for (int64_t i = 0; hspmd_file_map_piece(map, name, shape, i, &piece); i++)
		if ((!box->rank || hspmd_box_intersect(&piece.box, box, &part)) &&
		    read_piece(w, map ? map->prefixes : NULL, &piece, box, data, err))
			return -1;
	return 0;
}

int hspmd_weights_check(const struct hspmd_weights *w, const struct hspmd_file_map *map, const char *name, const struct hspmd_shape *shape,
                        struct hspmd_error *err)
{
	struct hspmd_file_piece piece;
	const struct weight_file *f;
	for (int64_t i = 0; hspmd_file_map_piece(map, name, shape, i, &piece); i++)
		if (!tensor_of(w, map ? map->prefixes : NULL, &piece, &f, err))
			return -1;
	return 0;
}
