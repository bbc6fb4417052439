/* SPDX-License-Identifier: Apache-2.0 */
/* Assembles a manifest from workers' reports, and chooses the manifest to continue from. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/json.h"
#include "runtime/state/state_internal.h"

static int by_tensor(const void *a, const void *b)
{
	const struct hspmd_extent *x = *(const struct hspmd_extent *const *)a, *y = *(const struct hspmd_extent *const *)b;
	int names = strcmp(x->tensor, y->tensor);
	if (names || x->kind != y->kind)
		return names ? names : (int)x->kind - (int)y->kind;
	/* Sorts equal boxes next to each other. */
	int boxes = memcmp(x->box.lo, y->box.lo, sizeof x->box.lo);
	return boxes ? boxes : memcmp(x->box.hi, y->box.hi, sizeof x->box.hi);
}

/* The parts of a tensor that are not yet found, as disjoint boxes. */
struct rest {
	struct hspmd_box *boxes;
	size_t count, capacity;
};

int hspmd_boxes_subtract(struct hspmd_box **boxes, size_t *count, size_t *capacity, const struct hspmd_box *box)
{
	size_t before = *count, left = 0;
	for (size_t i = 0; i < before; i++) {
		struct hspmd_box pieces[2 * HSPMD_MAX_RANK], common, whole = (*boxes)[i];
		if (!hspmd_box_intersect(&whole, box, &common)) {
			(*boxes)[left++] = whole;
			continue;
		}
		int n = hspmd_box_subtract(&whole, box, pieces);
		for (int k = 0; k < n; k++) {
			if (hspmd_array_grow(boxes, capacity, *count, sizeof **boxes))
				return -1;
			(*boxes)[(*count)++] = pieces[k];
		}
	}
	memmove(*boxes + left, *boxes + before, (*count - before) * sizeof **boxes);
	*count -= before - left;
	return 0;
}

/* The file of an unreachable extent of the run that contains this box; NULL if there is none. */
static const char *file_of(const struct hspmd_manifest *m, const struct hspmd_extent **run, size_t count, const struct hspmd_box *box)
{
	struct hspmd_box common;
	for (size_t i = 0; i < count; i++)
		if (hspmd_box_intersect(&run[i]->box, box, &common))
			return m->shards[run[i]->shard].file;
	return NULL;
}

/* Check all extents of one tensor and kind. */
static int cover(const struct hspmd_manifest *m, const struct hspmd_extent **run, size_t count, const bool *there, struct rest *r,
                 struct hspmd_error *err)
{
	r->count = 0;
	if (hspmd_array_grow(&r->boxes, &r->capacity, 0, sizeof *r->boxes))
		return hspmd_fail_memory(err, "looking through a checkpoint");
	r->boxes[r->count++] = hspmd_box_full(&run[0]->shape);
	for (size_t i = 0; i < count && r->count; i++)
		if (there[run[i]->shard] && hspmd_boxes_subtract(&r->boxes, &r->count, &r->capacity, &run[i]->box))
			return hspmd_fail_memory(err, "looking through a checkpoint");
	if (!r->count)
		return 0;
	char text[256];
	const char *file = file_of(m, run, count, &r->boxes[0]);
	return hspmd_fail(err, "%s of %s %s is in %s%s", hspmd_state_kind_names[run[0]->kind], run[0]->tensor,
	                  hspmd_box_text(&r->boxes[0], text, sizeof text), file ? file : "no shard", file ? ", which cannot be read" : "");
}

static bool same_form(const struct hspmd_extent *a, const struct hspmd_extent *b)
{
	bool same = a->dtype == b->dtype && a->shape.rank == b->shape.rank;
	for (int d = 0; same && d < a->shape.rank; d++)
		same = a->shape.dim[d] == b->shape.dim[d];
	return same;
}

static int cover_all(const struct hspmd_manifest *m, const struct hspmd_extent **order, size_t count, const bool *there,
                     struct hspmd_error *err)
{
	struct rest r = { 0 };
	int rv = 0;
	for (size_t first = 0, end; first < count && !rv; first = end) {
		for (end = first + 1;
		     end < count && !strcmp(order[end]->tensor, order[first]->tensor) && order[end]->kind == order[first]->kind; end++)
			if (!same_form(order[end], order[first]))
				rv = hspmd_fail(err, "%s has different shapes or types", order[end]->tensor);
		if (!rv)
			rv = cover(m, order + first, end - first, there, &r, err);
	}
	free(r.boxes);
	return rv;
}

int hspmd_extents_covered(const struct hspmd_manifest *m, const struct hspmd_extent *extents, size_t count, const bool *there,
                          struct hspmd_error *err)
{
	if (!count)
		return hspmd_fail(err, "there is nothing in the checkpoint");
	const struct hspmd_extent **order = hspmd_calloc(count, sizeof *order);
	if (!order)
		return hspmd_fail_memory(err, "looking through a checkpoint");
	for (size_t i = 0; i < count; i++)
		order[i] = &extents[i];
	qsort(order, count, sizeof *order, by_tensor);
	int rv = cover_all(m, order, count, there, err);
	free(order);
	return rv;
}

int hspmd_manifest_covered(const struct hspmd_manifest *m, hspmd_reachable *reachable, void *context, const struct hspmd_root_check *check,
                           struct hspmd_error *err)
{
	bool *there = hspmd_calloc((size_t)m->shard_count, sizeof *there);
	int rv = there ? 0 : hspmd_fail_memory(err, "looking through a checkpoint"), missing = -1;
	for (int i = 0; !rv && i < m->shard_count; i++) {
		there[i] = !reachable || reachable(context, &m->shards[i]);
		missing = there[i] || missing >= 0 ? missing : i;
	}
	if (!rv && !m->root)
		rv = hspmd_extents_covered(m, m->extents, (size_t)m->extent_count, there, err);
	else if (!rv && missing >= 0) /* a root is committed only if all of its shards together have everything */
		rv = check ? check->covered(check->context, m, there, err)
		           : hspmd_fail(err, "shard %s cannot be read", m->shards[missing].file);
	free(there);
	return rv;
}

/* ---- assembling */

/* The same file from another node must have the same content; adds its nodes. */
static int join(json_t *have, json_t *more, struct hspmd_error *err)
{
	const char *file = json_string_value(json_object_get(more, "file"));
	const char *contents = json_object_get(have, "list") ? "list" : "extents";
	json_t *set = json_object_get(more, "set");
	if (!json_equal(json_object_get(have, contents), json_object_get(more, contents)) ||
	    !json_equal(json_object_get(have, "bytes"), json_object_get(more, "bytes")))
		return hspmd_fail(err, "shard %s is not the same on two nodes", file);
	if (set && json_object_set(have, "set", set))
		return hspmd_fail_memory(err, "putting a manifest together");
	json_t *names = json_object_get(have, "nodes"), *node;
	size_t i, k;
	json_array_foreach(json_object_get(more, "nodes"), i, node) {
		for (k = 0; k < json_array_size(names) && !json_equal(json_array_get(names, k), node); k++)
			;
		if (k == json_array_size(names) && json_array_append(names, node))
			return hspmd_fail_memory(err, "putting a manifest together");
	}
	return 0;
}

static int add_shard(json_t *list, json_t *by_file, json_t *shard, struct hspmd_error *err)
{
	const char *file = json_string_value(json_object_get(shard, "file"));
	if (!file)
		return hspmd_fail(err, "a worker reported a shard without a file");
	json_t *have = json_object_get(by_file, file);
	if (have)
		return join(have, shard, err);
	/* A copy, because its list of nodes may grow. */
	json_t *copy = json_copy(shard), *nodes = json_copy(json_object_get(shard, "nodes"));
	int bad = !copy || !nodes || json_object_set_new(copy, "nodes", nodes);
	bad |= json_array_append(list, copy);
	bad |= json_object_set(by_file, file, copy);
	json_decref(copy);
	return bad ? hspmd_fail_memory(err, "putting a manifest together") : 0;
}

/* One shard per file. New reference; NULL and err. */
static json_t *join_shards(json_t *const *shards, size_t count, struct hspmd_error *err)
{
	json_t *list = json_array(), *by_file = json_object();
	int rv = list && by_file ? 0 : hspmd_fail_memory(err, "putting a manifest together");
	for (size_t i = 0; i < count && !rv; i++)
		rv = add_shard(list, by_file, shards[i], err);
	json_decref(by_file);
	return hspmd_json_unless_failed(rv, list);
}

/* Takes over shards and sets. sets: of a root; else NULL. */
static struct hspmd_manifest *assemble(int64_t step, int64_t generation, json_t *job, json_t *shards, json_t *sets, struct hspmd_error *err)
{
	json_t *whole = json_pack("{s:s, s:I, s:I, s:f, s:O, s:o, s:o*}", "format",
	                          sets ? HSPMD_CHECKPOINT_ROOT_FORMAT : HSPMD_CHECKPOINT_FORMAT, "step", (json_int_t)step, "generation",
	                          (json_int_t)generation, "time", hspmd_unix_time(), "job", job, "shards", shards, "sets", sets);
	struct hspmd_manifest *m = whole ? hspmd_manifest_from_json(whole, "manifest", err) : NULL;
	if (!whole)
		hspmd_fail_memory(err, "putting a manifest together");
	json_decref(whole);
	return m;
}

/* A partial checkpoint is never committed. */
static struct hspmd_manifest *unless_partial(struct hspmd_manifest *m, int rv, struct hspmd_error *err)
{
	if (!rv)
		return m;
	hspmd_error_prefix(err, "step %" PRId64, m->step);
	hspmd_manifest_destroy(m);
	return NULL;
}

struct hspmd_manifest *hspmd_manifest_assemble(int64_t step, int64_t generation, json_t *job, json_t *const *shards, size_t count,
                                               struct hspmd_error *err)
{
	json_t *list = join_shards(shards, count, err);
	struct hspmd_manifest *m = list ? assemble(step, generation, job, list, NULL, err) : NULL;
	return m ? unless_partial(m, hspmd_manifest_covered(m, NULL, NULL, NULL, err), err) : NULL;
}

/* Replace a shard's set by its number; numbers: of the sets that are known. */
static int number_set(json_t *shard, json_t *sets, json_t *numbers, struct hspmd_error *err)
{
	const char *text = json_string_value(json_object_get(shard, "set"));
	if (!text)
		return hspmd_fail(err, "nobody reported what is in shard %s", json_string_value(json_object_get(shard, "file")));
	json_t *number = json_object_get(numbers, text);
	int bad = 0;
	if (!number) {
		number = json_integer((json_int_t)json_array_size(sets));
		bad |= json_array_append(sets, json_object_get(shard, "set"));
		bad |= json_object_set_new(numbers, text, number);
	}
	bad = bad || json_object_set(shard, "set", number);
	return bad ? hspmd_fail_memory(err, "putting a manifest together") : 0;
}

/* The shards that some node has, with numbers of sets. New reference; NULL and err. */
static json_t *present_shards(json_t *shards, json_t *sets, struct hspmd_error *err)
{
	json_t *list = json_array(), *numbers = json_object(), *shard;
	size_t i;
	int rv = list && numbers && sets ? 0 : hspmd_fail_memory(err, "putting a manifest together");
	json_array_foreach(shards, i, shard) {
		if (rv || !json_array_size(json_object_get(shard, "nodes")))
			continue;
		rv = number_set(shard, sets, numbers, err);
		if (!rv && json_array_append(list, shard))
			rv = hspmd_fail_memory(err, "putting a manifest together");
	}
	json_decref(numbers);
	if (!rv && !json_array_size(list))
		rv = hspmd_fail(err, "no shard was written");
	return hspmd_json_unless_failed(rv, list);
}

static int root_covered(const struct hspmd_manifest *m, const struct hspmd_root_check *check, struct hspmd_error *err)
{
	bool *there = hspmd_calloc((size_t)m->shard_count, sizeof *there);
	if (!there)
		return hspmd_fail_memory(err, "looking through a checkpoint");
	memset(there, true, (size_t)m->shard_count * sizeof *there);
	int rv = check->covered(check->context, m, there, err);
	free(there);
	return rv;
}

struct hspmd_manifest *hspmd_root_assemble(int64_t step, int64_t generation, json_t *job, json_t *const *shards, size_t count,
                                           const struct hspmd_root_check *check, struct hspmd_error *err)
{
	json_t *joined = join_shards(shards, count, err), *sets = json_array();
	json_t *list = joined ? present_shards(joined, sets, err) : NULL;
	struct hspmd_manifest *m = list ? assemble(step, generation, job, list, json_incref(sets), err) : NULL;
	json_decref(joined);
	json_decref(sets);
	return m ? unless_partial(m, root_covered(m, check, err), err) : NULL;
}
