/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/state/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/json.h"
#include "runtime/state/state_internal.h"

#define SET_DIGITS_MAX (1u << 20)

const char *const hspmd_state_kind_names[] = { "param", "adam_m", "adam_v", "other", NULL };

/* ---- names */

const char *hspmd_checkpoint_name(int64_t step, int64_t generation, char *buf, size_t size)
{
	snprintf(buf, size, "step-%010" PRId64 "-g%" PRId64, step, generation);
	return buf;
}

const char *hspmd_shard_name(const char *address, char *buf, size_t size)
{
	snprintf(buf, size, "%s.safetensors", address);
	for (char *colon = buf; (colon = strchr(colon, ':'));)
		*colon = '-';
	return buf;
}

bool hspmd_checkpoint_parse(const char *name, int64_t *step, int64_t *generation)
{
	int used = 0;
	int64_t s, g;
	char again[64];
	if (sscanf(name, "step-%" SCNd64 "-g%" SCNd64 "%n", &s, &g, &used) != 2 || name[used] || s < 0 || g < 0)
		return false;
	if (strcmp(hspmd_checkpoint_name(s, g, again, sizeof again), name))
		return false;
	*step = s;
	*generation = g;
	return true;
}

/* ---- reading */

static int read_lengths(struct hspmd_json *obj, const char *key, int64_t min, int64_t *out, int *rank)
{
	struct hspmd_json list = hspmd_json_array(obj, key, 0, HSPMD_MAX_RANK);
	*rank = (int)hspmd_json_length(&list);
	for (int d = 0; d < *rank; d++) {
		struct hspmd_json at = hspmd_json_at(&list, (size_t)d);
		out[d] = hspmd_json_int_value(&at, min, INT64_C(1) << 40);
	}
	return hspmd_json_failed(obj) ? -1 : 0;
}

static int read_sum(struct hspmd_json *obj, const char *key, uint64_t *out)
{
	const char *text = hspmd_json_string(obj, key);
	if (!text)
		return -1;
	if (hspmd_checksum_parse(text, out) != 16 || text[16]) {
		struct hspmd_json at = hspmd_json_any(obj, key);
		return hspmd_json_fail(&at, "expected 16 hexadecimal digits, got \"%s\"", text);
	}
	return 0;
}

int hspmd_extent_read_part(struct hspmd_json *at, struct hspmd_extent *e)
{
	int lo_rank = 0, hi_rank = 0;
	const char *tensor;
	if (!hspmd_json_expect_object(at) || !(tensor = hspmd_json_string(at, "tensor")))
		return -1;
	e->tensor = strdup(tensor);
	if (!e->tensor)
		return hspmd_json_fail_memory(at);
	int kind = hspmd_json_enum(at, "kind", hspmd_state_kind_names), rank;
	read_lengths(at, "shape", 1, e->shape.dim, &e->shape.rank);
	read_lengths(at, "lo", 0, e->box.lo, &lo_rank);
	read_lengths(at, "hi", 0, e->box.hi, &hi_rank);
	if (hspmd_json_failed(at))
		return -1;
	rank = e->box.rank = e->shape.rank;
	e->kind = (enum hspmd_state_kind)kind;
	if (lo_rank != rank || hi_rank != rank)
		return hspmd_json_fail(at, "shape, lo and hi differ in length");
	uint64_t elements = 1;
	for (int d = 0; d < rank; d++) {
		if (e->box.lo[d] >= e->box.hi[d] || e->box.hi[d] > e->shape.dim[d])
			return hspmd_json_fail(at, "the part [lo, hi) is empty or outside of the shape");
		elements *= (uint64_t)(e->box.hi[d] - e->box.lo[d]);
		if (elements > UINT64_C(1) << 48)
			return hspmd_json_fail(at, "the part has too many elements");
	}
	return 0;
}

static int read_extent(struct hspmd_json *at, struct hspmd_extent *e, uint64_t file_bytes)
{
	if (hspmd_extent_read_part(at, e))
		return -1;
	int dtype = hspmd_json_enum(at, "dtype", hspmd_dtype_names);
	e->offset = (uint64_t)hspmd_json_int(at, "offset", 0, INT64_C(1) << 52);
	e->bytes = (uint64_t)hspmd_json_int(at, "bytes", 1, INT64_C(1) << 52);
	read_sum(at, "xxh3", &e->xxh3);
	if (hspmd_json_check_keys(at))
		return -1;
	e->dtype = (enum hspmd_dtype)dtype;
	uint64_t fits = (uint64_t)hspmd_box_elements(&e->box) * hspmd_dtype_bytes(e->dtype);
	if (e->bytes != fits)
		return hspmd_json_fail(at, "expected %" PRIu64 " bytes, got %" PRIu64, fits, e->bytes);
	if (e->offset > file_bytes || e->bytes > file_bytes - e->offset)
		return hspmd_json_fail(at, "lies outside of the file's %" PRIu64 " bytes", file_bytes);
	return 0;
}

static int by_offset(const void *a, const void *b)
{
	const struct hspmd_extent *const *x = a, *const *y = b;
	return (*x)->offset < (*y)->offset ? -1 : (*x)->offset > (*y)->offset;
}

/* Check that no byte of a file belongs to two extents. */
static int check_apart(const struct hspmd_json *at, const struct hspmd_extent *e, int count)
{
	const struct hspmd_extent **order = hspmd_calloc((size_t)count, sizeof *order);
	if (!order)
		return hspmd_json_fail_memory(at);
	for (int i = 0; i < count; i++)
		order[i] = &e[i];
	qsort(order, (size_t)count, sizeof *order, by_offset);
	int rv = 0;
	for (int i = 1; i < count && !rv; i++)
		if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset)
			rv = hspmd_json_fail(at, "two extents at offsets %" PRIu64 " and %" PRIu64 " overlap", order[i - 1]->offset,
			                     order[i]->offset);
	free(order);
	return rv;
}

static bool plain_name(const char *name)
{
	return *name && *name != '.' && !strchr(name, '/') && strlen(name) < HSPMD_SHARD_NAME_MAX;
}

static int read_nodes(struct hspmd_json *at, struct hspmd_shard *s)
{
	struct hspmd_json nodes = hspmd_json_array(at, "nodes", 0, 1 << 20);
	s->nodes = hspmd_calloc(hspmd_json_length(&nodes), sizeof *s->nodes);
	if (!s->nodes)
		return hspmd_json_fail_memory(at);
	for (size_t i = 0; i < hspmd_json_length(&nodes); i++) {
		struct hspmd_json node = hspmd_json_at(&nodes, i);
		const char *name = hspmd_json_string_value(&node);
		s->nodes[i] = name ? strdup(name) : NULL;
		if (!s->nodes[i])
			return name ? hspmd_json_fail_memory(at) : -1;
		s->node_count++;
	}
	return 0;
}

/* The extents of a shard in the first format. */
static int read_extents(struct hspmd_json *at, struct hspmd_shard *s, int shard, struct extent_list *extents)
{
	struct hspmd_json list = hspmd_json_array(at, "extents", 0, 1 << 24);
	s->first_extent = (int)extents->count;
	for (size_t i = 0; i < hspmd_json_length(&list); i++) {
		struct hspmd_json one = hspmd_json_at(&list, i);
		if (extents->count >= 1u << 28 ||
		    hspmd_array_grow(&extents->items, &extents->capacity, extents->count, sizeof *extents->items))
			return hspmd_json_fail_memory(&one);
		struct hspmd_extent *e = &extents->items[extents->count++];
		e->shard = shard;
		if (read_extent(&one, e, s->bytes))
			return -1;
		s->extent_count++;
	}
	if (hspmd_json_check_keys(at))
		return -1;
	return check_apart(at, extents->items + s->first_extent, s->extent_count);
}

static int read_shard(struct hspmd_json *at, struct hspmd_manifest *m, struct extent_list *extents)
{
	const char *file;
	struct hspmd_shard *s = &m->shards[m->shard_count];
	if (!hspmd_json_expect_object(at) || !(file = hspmd_json_string(at, "file")))
		return -1;
	if (!plain_name(file) || !strcmp(file, HSPMD_MANIFEST_FILE))
		return hspmd_json_fail(at, "\"%s\" is not the name of a shard", file);
	s->file = strdup(file);
	m->shard_count++;
	if (!s->file)
		return hspmd_json_fail_memory(at);
	s->bytes = (uint64_t)hspmd_json_int(at, "bytes", 1, INT64_C(1) << 52);
	if (read_nodes(at, s))
		return -1;
	if (!m->root)
		return read_extents(at, s, m->shard_count - 1, extents);
	if (read_sum(at, "list", &s->list))
		return -1;
	s->set = (int)hspmd_json_int(at, "set", 0, m->set_count - 1);
	return hspmd_json_check_keys(at);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_files_differ(const struct hspmd_json *root, const struct hspmd_manifest *m)
{
	const char **names = hspmd_calloc((size_t)m->shard_count, sizeof *names);
	int rv = names ? 0 : hspmd_json_fail_memory(root);
	for (int i = 0; names && i < m->shard_count; i++)
		names[i] = m->shards[i].file;
	if (names)
		qsort(names, (size_t)m->shard_count, sizeof *names, by_name);
	for (int i = 1; !rv && i < m->shard_count; i++)
		if (!strcmp(names[i - 1], names[i]))
			rv = hspmd_json_fail(root, "file %s is there twice", names[i]);
	free(names);
	return rv;
}

static int read_sets(struct hspmd_json *root, struct hspmd_manifest *m)
{
	struct hspmd_json sets = hspmd_json_array(root, "sets", 1, 1 << 20);
	m->sets = hspmd_calloc(hspmd_json_length(&sets), sizeof *m->sets);
	if (!m->sets)
		return hspmd_json_fail_memory(root);
	for (size_t i = 0; i < hspmd_json_length(&sets); i++) {
		struct hspmd_json at = hspmd_json_at(&sets, i);
		const char *text = hspmd_json_string_value(&at);
		if (!text)
			return -1;
		size_t digits = strspn(text, "0123456789abcdef");
		if (text[digits] || digits > SET_DIGITS_MAX || (i && (int)digits != m->set_digits))
			return hspmd_json_fail(&at, "expected hexadecimal digits, as many as in the other sets");
		m->set_digits = (int)digits;
		m->sets[i] = strdup(text);
		if (!m->sets[i])
			return hspmd_json_fail_memory(&at);
		m->set_count++;
	}
	return 0;
}

static int read_manifest(struct hspmd_json *root, struct hspmd_manifest *m)
{
	static const char *const formats[] = { HSPMD_CHECKPOINT_FORMAT, HSPMD_CHECKPOINT_ROOT_FORMAT, NULL };
	struct extent_list extents = { 0 };
	if (!hspmd_json_expect_object(root))
		return -1;
	m->root = hspmd_json_enum(root, "format", formats) == 1;
	if (m->root && read_sets(root, m))
		return -1;
	m->step = hspmd_json_int(root, "step", 0, INT64_C(1) << 52);
	m->generation = hspmd_json_int(root, "generation", 0, INT64_C(1) << 52);
	m->time = hspmd_json_number_or(root, "time", 0, 1e12, 0);
	struct hspmd_json job = hspmd_json_object(root, "job"), shards = hspmd_json_array(root, "shards", 1, 1 << 20);
	if (hspmd_json_check_keys(root))
		return -1;
	m->job = json_incref(job.value);
	m->shards = hspmd_calloc(hspmd_json_length(&shards), sizeof *m->shards);
	int rv = m->shards ? 0 : hspmd_json_fail_memory(root);
	for (size_t i = 0; i < hspmd_json_length(&shards) && !rv; i++) {
		struct hspmd_json at = hspmd_json_at(&shards, i);
		rv = read_shard(&at, m, &extents);
	}
	m->extents = extents.items;
	m->extent_count = (int)extents.count;
	return rv ? rv : check_files_differ(root, m);
}

static struct hspmd_manifest *from_doc(struct hspmd_json_doc *doc)
{
	struct hspmd_json root = hspmd_json_root(doc);
	struct hspmd_manifest *m = hspmd_calloc(1, sizeof *m);
	if (!m) {
		hspmd_json_fail_memory(&root);
		return NULL;
	}
	if (read_manifest(&root, m)) {
		hspmd_manifest_destroy(m);
		return NULL;
	}
	return m;
}

struct hspmd_manifest *hspmd_manifest_from_json(const json_t *value, const char *name, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	if (hspmd_json_wrap(&doc, name, (json_t *)(uintptr_t)value, err))
		return NULL;
	struct hspmd_manifest *m = from_doc(&doc);
	hspmd_json_close(&doc);
	return m;
}

struct hspmd_manifest *hspmd_manifest_read(const char *path, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	if (hspmd_json_open(&doc, path, err))
		return NULL;
	struct hspmd_manifest *m = from_doc(&doc);
	hspmd_json_close(&doc);
	return m;
}

void hspmd_manifest_destroy(struct hspmd_manifest *m)
{
	if (!m)
		return;
	for (int s = 0; s < m->shard_count; s++) {
		for (int n = 0; n < m->shards[s].node_count; n++)
			free(m->shards[s].nodes[n]);
		free(m->shards[s].nodes);
		free(m->shards[s].file);
	}
	for (int e = 0; e < m->extent_count; e++)
		free(m->extents[e].tensor);
	for (int i = 0; i < m->set_count; i++)
		free(m->sets[i]);
	free(m->sets);
	free(m->shards);
	free(m->extents);
	json_decref(m->job);
	free(m);
}

bool hspmd_manifest_set_has(const struct hspmd_manifest *m, int set, int parameter)
{
	if (parameter < 0 || parameter / 4 >= m->set_digits)
		return false;
	char digit = m->sets[set][parameter / 4];
	return (digit <= '9' ? digit - '0' : digit - 'a' + 10) >> parameter % 4 & 1;
}

char *hspmd_manifest_set_text(const bool *has, int count)
{
	int digits = (count + 3) / 4;
	char *text = hspmd_calloc((size_t)digits + 1, 1);
	for (int i = 0; text && i < digits; i++) {
		int digit = 0;
		for (int k = 0; k < 4 && 4 * i + k < count; k++)
			digit |= has[4 * i + k] << k;
		text[i] = "0123456789abcdef"[digit];
	}
	return text;
}

/* ---- writing */

static json_t *lengths(const int64_t *values, int count)
{
	json_t *a = json_array();
	int bad = !a;
	for (int i = 0; i < count; i++)
		bad |= json_array_append_new(a, json_integer(values[i]));
	return hspmd_json_unless_failed(bad, a);
}

json_t *hspmd_extent_part_json(const struct hspmd_extent *e)
{
	json_t *o = json_object();
	int bad = !o;
	bad |= json_object_set_new(o, "tensor", json_string(e->tensor));
	bad |= json_object_set_new(o, "kind", json_string(hspmd_state_kind_names[e->kind]));
	bad |= json_object_set_new(o, "shape", lengths(e->shape.dim, e->shape.rank));
	bad |= json_object_set_new(o, "lo", lengths(e->box.lo, e->box.rank));
	bad |= json_object_set_new(o, "hi", lengths(e->box.hi, e->box.rank));
	return hspmd_json_unless_failed(bad, o);
}

static json_t *extent_json(const struct hspmd_extent *e)
{
	char sum[17];
	json_t *o = hspmd_extent_part_json(e);
	int bad = !o;
	bad |= json_object_set_new(o, "dtype", json_string(hspmd_dtype_names[e->dtype]));
	bad |= json_object_set_new(o, "offset", json_integer((json_int_t)e->offset));
	bad |= json_object_set_new(o, "bytes", json_integer((json_int_t)e->bytes));
	bad |= json_object_set_new(o, "xxh3", json_string(hspmd_checksum_text(e->xxh3, sum)));
	return hspmd_json_unless_failed(bad, o);
}

static json_t *file_json(const char *file, uint64_t bytes, char *const *nodes, int node_count)
{
	json_t *names = json_array(), *o = json_object();
	int bad = !names || !o;
	for (int i = 0; i < node_count; i++)
		bad |= json_array_append_new(names, json_string(nodes[i]));
	bad |= json_object_set_new(o, "file", json_string(file));
	bad |= json_object_set_new(o, "bytes", json_integer((json_int_t)bytes));
	bad |= json_object_set(o, "nodes", names);
	json_decref(names);
	return hspmd_json_unless_failed(bad, o);
}

json_t *hspmd_shard_json(const char *file, uint64_t bytes, char *const *nodes, int node_count, const struct hspmd_extent *extents,
                         int count)
{
	json_t *list = json_array(), *o = file_json(file, bytes, nodes, node_count);
	int bad = !list || !o;
	for (int i = 0; i < count; i++)
		bad |= json_array_append_new(list, extent_json(&extents[i]));
	bad |= json_object_set(o, "extents", list);
	json_decref(list);
	return hspmd_json_unless_failed(bad, o);
}

/* Takes over `set`. */
static json_t *with_list(json_t *file, uint64_t list, json_t *set)
{
	char sum[17];
	int bad = !file;
	bad |= json_object_set_new(file, "list", json_string(hspmd_checksum_text(list, sum)));
	bad |= json_object_set_new(file, "set", set);
	return hspmd_json_unless_failed(bad, file);
}

json_t *hspmd_root_shard_json(const char *file, uint64_t bytes, const char *node, uint64_t list, const char *set)
{
	char *name = (char *)(uintptr_t)node;
	json_t *o = with_list(file_json(file, bytes, &name, node != NULL), list, set ? json_string(set) : json_null());
	if (o && !set)
		json_object_del(o, "set");
	return o;
}

static json_t *sets_json(const struct hspmd_manifest *m)
{
	json_t *sets = json_array();
	int bad = !sets;
	for (int i = 0; i < m->set_count; i++)
		bad |= json_array_append_new(sets, json_string(m->sets[i]));
	return hspmd_json_unless_failed(bad, sets);
}

json_t *hspmd_manifest_to_json(const struct hspmd_manifest *m)
{
	json_t *shards = json_array(), *o = json_object();
	int bad = !shards || !o;
	for (int i = 0; i < m->shard_count; i++) {
		const struct hspmd_shard *s = &m->shards[i];
		bad |= json_array_append_new(
		        shards, m->root ? with_list(file_json(s->file, s->bytes, s->nodes, s->node_count), s->list, json_integer(s->set))
		                        : hspmd_shard_json(s->file, s->bytes, s->nodes, s->node_count, m->extents + s->first_extent,
		                                           s->extent_count));
	}
	bad |= json_object_set_new(o, "format", json_string(m->root ? HSPMD_CHECKPOINT_ROOT_FORMAT : HSPMD_CHECKPOINT_FORMAT));
	if (m->root)
		bad |= json_object_set_new(o, "sets", sets_json(m));
	bad |= json_object_set_new(o, "step", json_integer(m->step));
	bad |= json_object_set_new(o, "generation", json_integer(m->generation));
	bad |= json_object_set_new(o, "time", hspmd_json_real(m->time));
	bad |= json_object_set(o, "job", m->job);
	bad |= json_object_set(o, "shards", shards);
	json_decref(shards);
	return hspmd_json_unless_failed(bad, o);
}
