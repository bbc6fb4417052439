/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint's parameters as a Hugging Face model folder, and back. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/durable.h"
#include "common/half.h"
#include "common/json.h"
#include "common/progress.h"
#include "runtime/state/export.h"
#include "runtime/state/state_internal.h"
#include "runtime/weights/safetensors.h"

#define FILE_MAX UINT64_C(5000000000)

/* A part of one of our tensors that a tensor of the files consists of. */
struct source {
	char *tensor; /* in the checkpoint */
	struct hspmd_file_piece piece;
};

/* A tensor of the files. */
struct item {
	char *name;
	struct hspmd_shape shape;
	enum hspmd_dtype dtype;
	size_t source_count, source_capacity;
	struct source *sources;
	int file;
};

struct export
{
	struct hspmd_reader *r;
	const struct hspmd_export_options *how;
	struct item *items;
	size_t count, capacity;
	int files;
	uint64_t total;
};

/* Only F32 is converted. */
static enum hspmd_dtype written_dtype(const struct export *x, const struct item *i)
{
	return x->how->bf16 && i->dtype == HSPMD_F32 ? HSPMD_BF16 : i->dtype;
}

static uint64_t item_bytes(const struct export *x, const struct item *i)
{
	return (uint64_t)hspmd_shape_elements(&i->shape) * hspmd_dtype_bytes(written_dtype(x, i));
}

static struct item *find_item(struct export *x, const char *name)
{
	for (size_t i = x->count; i-- > 0;) /* most tensors are among the last */
		if (!strcmp(x->items[i].name, name))
			return &x->items[i];
	return NULL;
}

static struct item *add_item(struct export *x, const char *as, const struct hspmd_shape *shape, enum hspmd_dtype dtype)
{
	char *name = strdup(as);
	if (!name || hspmd_array_grow(&x->items, &x->capacity, x->count, sizeof *x->items)) {
		free(name);
		return NULL;
	}
	x->items[x->count] = (struct item){ .name = name, .shape = *shape, .dtype = dtype };
	return &x->items[x->count++];
}

static int add_piece(struct export *x, const char *tensor, const struct hspmd_file_piece *piece, struct hspmd_error *err)
{
	struct item *i = find_item(x, piece->name);
	char *name = strdup(tensor);
	if (!i)
		i = add_item(x, piece->name, &piece->shape, HSPMD_F32);
	if (!i || !name || hspmd_array_grow(&i->sources, &i->source_capacity, i->source_count, sizeof *i->sources)) {
		free(name);
		return hspmd_fail_memory(err, "exporting");
	}
	i->sources[i->source_count++] = (struct source){ name, *piece };
	return 0;
}

static int add_tensor(struct export *x, const struct hspmd_extent *e, struct hspmd_error *err)
{
	struct hspmd_file_piece piece;
	if (!x->how->map)
		return add_item(x, e->tensor, &e->shape, e->dtype) ? 0 : hspmd_fail_memory(err, "exporting");
	for (int64_t i = 0; hspmd_file_map_piece(x->how->map, e->tensor, &e->shape, i, &piece); i++)
		if (add_piece(x, e->tensor, &piece, err))
			return -1;
	return 0;
}

static void free_items(struct export *x)
{
	for (size_t i = 0; i < x->count; i++) {
		for (size_t s = 0; s < x->items[i].source_count; s++)
			free(x->items[i].sources[s].tensor);
		free(x->items[i].sources);
		free(x->items[i].name);
	}
	free(x->items);
}

static int by_tensor(const void *a, const void *b)
{
	return strcmp((*(const struct hspmd_extent *const *)a)->tensor, (*(const struct hspmd_extent *const *)b)->tensor);
}

static int list_items(struct export *x, struct hspmd_error *err)
{
	const struct hspmd_extent *extents;
	int count = hspmd_reader_extents(x->r, &extents);
	const struct hspmd_extent **params = hspmd_calloc((size_t)count, sizeof *params);
	size_t n = 0;
	int rv = params ? 0 : hspmd_fail_memory(err, "exporting");
	for (int i = 0; params && i < count; i++)
		if (extents[i].kind == HSPMD_STATE_PARAM)
			params[n++] = &extents[i];
	if (n)
		qsort(params, n, sizeof *params, by_tensor);
	for (size_t i = 0; i < n && !rv; i++) {
		if (x->how->map && params[i]->dtype != HSPMD_F32)
			rv = hspmd_fail(err, "%s is %s in the checkpoint, not F32", params[i]->tensor, hspmd_dtype_names[params[i]->dtype]);
		else if (!i || by_tensor(&params[i - 1], &params[i]))
			rv = add_tensor(x, params[i], err);
	}
	free(params);
	uint64_t most = x->how->max_bytes ? x->how->max_bytes : FILE_MAX, filled = 0;
	for (size_t i = 0; i < x->count; i++) {
		uint64_t bytes = item_bytes(x, &x->items[i]);
		if (!x->files || filled + bytes > most) {
			x->files++;
			filled = 0;
		}
		filled += bytes;
		x->total += bytes;
		x->items[i].file = x->files - 1;
	}
	return rv || x->count ? rv : hspmd_fail(err, "there are no parameters in the checkpoint");
}

static char *file_name(const struct export *x, int file)
{
	return x->files == 1 ? strdup("model.safetensors") : hspmd_asprintf("model-%05d-of-%05d.safetensors", file + 1, x->files);
}

/* Write the header at the beginning of a file. */
static int write_head(const struct export *x, int fd, int file, const char *path, struct hspmd_error *err)
{
	struct hspmd_safetensor *t = hspmd_calloc(x->count, sizeof *t);
	json_t *metadata = json_pack("{s:s}", "format", "pt");
	size_t n = 0, bytes;
	uint64_t at = 0;
	for (size_t i = 0; t && i < x->count; i++) {
		if (x->items[i].file != file)
			continue;
		t[n].name = x->items[i].name;
		snprintf(t[n].dtype, sizeof t[n].dtype, "%s", hspmd_dtype_names[written_dtype(x, &x->items[i])]);
		t[n].shape = x->items[i].shape;
		t[n].offset = at;
		t[n].bytes = item_bytes(x, &x->items[i]);
		at += t[n++].bytes;
	}
	char *head = t && metadata ? hspmd_safetensors_header(t, n, metadata, 8, &bytes, err) : NULL;
	int rv = head ? 0 : t && metadata ? -1 : hspmd_fail_memory(err, "exporting");
	if (head && hspmd_write_all(fd, head, bytes))
		rv = hspmd_fail_errno(err, "%s", path);
	free(head);
	free(t);
	json_decref(metadata);
	return rv;
}

static int64_t row_of(const struct hspmd_file_piece *p, int64_t row)
{
	return row / p->block * p->block_stride + row % p->block * p->stride[0];
}

/* Puts elements of a part of one of our tensors, one after another in `from`, into the file's tensor. */
static void scatter(const struct hspmd_file_piece *p, const float *from, float *to)
{
	int64_t at[HSPMD_MAX_RANK] = { 0 }, count = hspmd_box_elements(&p->box);
	int last = p->box.rank - 1;
	int64_t run = last > 0 ? p->box.hi[last] - p->box.lo[last] : 1;
	for (int64_t done = 0; done < count; done += run) {
		int64_t first = p->first + (last >= 0 ? row_of(p, at[0]) : 0);
		for (int d = 1; d < last; d++)
			first += at[d] * p->stride[d];
		for (int64_t i = 0; i < run; i++)
			to[first + (last > 0 ? i * p->stride[last] : 0)] = *from++;
		for (int d = last > 0 ? last - 1 : last; d >= 0 && ++at[d] == p->box.hi[d] - p->box.lo[d]; d--)
			at[d] = 0;
	}
}

static int load_source(const struct export *x, const struct source *s, float *data, struct hspmd_error *err)
{
	float *part = hspmd_calloc((size_t)hspmd_box_elements(&s->piece.box), sizeof *part);
	if (!part)
		return hspmd_fail_memory(err, "exporting");
	struct hspmd_state_need need = { s->tensor, HSPMD_STATE_PARAM, HSPMD_F32, s->piece.box, part };
	int rv = hspmd_reader_load(x->r, &need, 1, NULL, NULL, NULL, err);
	if (!rv)
		scatter(&s->piece, part, data);
	free(part);
	return rv;
}

static int write_item(const struct export *x, const struct item *i, int fd, const char *path, struct hspmd_error *err)
{
	size_t n = (size_t)hspmd_shape_elements(&i->shape);
	float *data = hspmd_calloc(n, hspmd_dtype_bytes(i->dtype));
	struct hspmd_state_need plain = { i->name, HSPMD_STATE_PARAM, i->dtype, hspmd_box_full(&i->shape), data };
	int rv = data ? 0 : hspmd_fail_memory(err, "exporting");
	if (!rv && !x->how->map)
		rv = hspmd_reader_load(x->r, &plain, 1, NULL, NULL, NULL, err);
	for (size_t s = 0; s < i->source_count && !rv; s++)
		rv = load_source(x, &i->sources[s], data, err);
	/* In place, from the front: element k of the result ends before element k of the source. */
	for (size_t k = 0; !rv && written_dtype(x, i) != i->dtype && k < n; k++) {
		uint16_t half = hspmd_bf16_from_float(data[k]);
		memcpy((char *)data + k * sizeof half, &half, sizeof half);
	}
	if (!rv && hspmd_write_all(fd, data, item_bytes(x, i)))
		rv = hspmd_fail_errno(err, "%s", path);
	free(data);
	return rv;
}

static int write_file(const struct export *x, int file, struct hspmd_error *err)
{
	char *name = file_name(x, file), *path = name ? hspmd_asprintf("%s/%s", x->how->folder, name) : NULL;
	char *temporary = path ? hspmd_asprintf("%s.new", path) : NULL;
	int rv = temporary ? 0 : hspmd_fail_memory(err, "exporting");
	int fd = rv ? -1 : open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (!rv && fd < 0)
		rv = hspmd_fail_errno(err, "%s", temporary);
	if (!rv)
		rv = write_head(x, fd, file, temporary, err);
	for (size_t i = 0; i < x->count && !rv; i++)
		if (x->items[i].file == file) {
			rv = write_item(x, &x->items[i], fd, temporary, err);
			hspmd_progress((double)(i + 1), (double)x->count); /* items are in the order of files */
		}
	if (!rv && fsync(fd))
		rv = hspmd_fail_errno(err, "%s", temporary);
	if (fd >= 0 && close(fd) && !rv)
		rv = hspmd_fail_errno(err, "%s", temporary);
	if (!rv && rename(temporary, path))
		rv = hspmd_fail_errno(err, "%s", path);
	if (rv && fd >= 0)
		unlink(temporary);
	free(name);
	free(path);
	free(temporary);
	return rv;
}

static int save_json(const json_t *value, const char *folder, const char *name, struct hspmd_error *err)
{
	char *path = hspmd_asprintf("%s/%s", folder, name);
	int rv = path && value ? hspmd_json_save(value, path, err) : hspmd_fail_memory(err, "exporting");
	free(path);
	return rv;
}

static int write_index(const struct export *x, struct hspmd_error *err)
{
	json_t *map = json_object(), *index = json_object();
	int bad = !map || !index;
	for (size_t i = 0; i < x->count && !bad; i++) {
		char *name = file_name(x, x->items[i].file);
		bad |= json_object_set_new(map, x->items[i].name, name ? json_string(name) : NULL);
		free(name);
	}
	bad |= json_object_set_new(index, "metadata", json_pack("{s:I}", "total_size", (json_int_t)x->total));
	bad |= json_object_set(index, "weight_map", map);
	json_decref(map);
	index = hspmd_json_unless_failed(bad, index);
	int rv = save_json(index, x->how->folder, "model.safetensors.index.json", err);
	json_decref(index);
	return rv;
}

int hspmd_weights_export(struct hspmd_reader *r, const struct hspmd_export_options *how, struct hspmd_error *err)
{
	struct export x = { .r = r, .how = how };
	int rv = list_items(&x, err);
	if (!rv)
		rv = hspmd_durable_mkdir(how->folder, 0777, err);
	for (int f = 0; f < x.files && !rv; f++)
		rv = write_file(&x, f, err);
	if (!rv && x.files > 1)
		rv = write_index(&x, err);
	if (!rv && how->config)
		rv = save_json(how->config, how->folder, "config.json", err);
	if (!rv)
		rv = hspmd_durable_sync(how->folder, err);
	free_items(&x);
	return rv;
}

/* ---- import */

/* Write tensors [first, end) with their moments as one shard. */
static int import_shard(struct hspmd_weights *w, const struct hspmd_file_map *map, const struct hspmd_import_tensor *tensors, size_t first,
                        size_t end, const char *location, size_t number, json_t **shard, struct hspmd_error *err)
{
	struct hspmd_image im = { 0 };
	struct hspmd_state_slice *slices = hspmd_calloc(HSPMD_STATE_KIND_COUNT * (end - first), sizeof *slices);
	size_t n = 0;
	char file[64];
	int rv = slices ? 0 : hspmd_fail_memory(err, "importing");
	for (size_t i = first; slices && i < end; i++)
		for (int k = 0; k < HSPMD_STATE_KIND_COUNT; k++)
			slices[n++] = (struct hspmd_state_slice){ .tensor = tensors[i].name,
				                                  .kind = (enum hspmd_state_kind)k,
				                                  .dtype = HSPMD_F32,
				                                  .shape = tensors[i].shape,
				                                  .box = hspmd_box_full(&tensors[i].shape) };
	if (!rv)
		rv = hspmd_image_layout(&im, slices, n, err);
	for (size_t i = 0; i < n && !rv; i++) {
		void *to = im.data + im.extents[i].offset;
		if (slices[i].kind == HSPMD_STATE_PARAM)
			rv = hspmd_weights_read(w, map, slices[i].tensor, &slices[i].shape, &slices[i].box, to, err);
		else
			memset(to, 0, im.extents[i].bytes);
	}
	if (!rv)
		rv = hspmd_image_seal(&im, err);
	snprintf(file, sizeof file, "import-%zu.safetensors", number);
	if (!rv)
		rv = hspmd_shard_store(location, "import", 0, 0, file, im.data, im.bytes, shard, err);
	hspmd_image_free(&im);
	free(slices);
	return rv;
}

int hspmd_weights_import(struct hspmd_weights *w, const struct hspmd_file_map *map, const struct hspmd_import_tensor *tensors, size_t count,
                         json_t *job, const char *location, struct hspmd_error *err)
{
	json_t **shards = hspmd_calloc(count, sizeof *shards);
	size_t n = 0;
	int rv = shards ? 0 : hspmd_fail_memory(err, "importing");
	for (size_t first = 0, end; first < count && !rv; first = end) {
		uint64_t bytes = 0;
		for (end = first; end < count; end++) {
			bytes += (uint64_t)hspmd_shape_elements(&tensors[end].shape) * sizeof(float) * HSPMD_STATE_KIND_COUNT;
			if (end > first && bytes > FILE_MAX)
				break;
		}
		rv = import_shard(w, map, tensors, first, end, location, n, &shards[n], err);
		hspmd_progress((double)end, (double)count);
		n += !rv;
	}
	struct hspmd_manifest *m = rv ? NULL : hspmd_manifest_assemble(0, 0, job, shards, n, err);
	rv = m ? hspmd_checkpoint_commit(location, m, err) : -1;
	hspmd_manifest_destroy(m);
	for (size_t i = 0; i < n; i++)
		json_decref(shards[i]);
	free(shards);
	return rv;
}
