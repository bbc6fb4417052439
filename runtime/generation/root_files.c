/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/generation/root_files.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/tensor/fp8.h"

static int out_of_memory(struct hspmd_error *err)
{
	return hspmd_fail_memory(err, "looking through a checkpoint");
}

struct named_shard {
	const char *file;
	int number;
};

static int by_file(const void *a, const void *b)
{
	return strcmp(((const struct named_shard *)a)->file, ((const struct named_shard *)b)->file);
}

/* Find each device's shard by its name. */
static int find_shards(struct hspmd_root_files *f, struct hspmd_error *err)
{
	const struct hspmd_manifest *m = f->root;
	const struct hspmd_cluster *c = f->under->cluster;
	struct named_shard *named = hspmd_calloc((size_t)m->shard_count, sizeof *named), *found;
	if (!named)
		return out_of_memory(err);
	for (int i = 0; i < m->shard_count; i++)
		named[i] = (struct named_shard){ m->shards[i].file, i };
	qsort(named, (size_t)m->shard_count, sizeof *named, by_file);
	for (int d = 0; d < c->device_count; d++) {
		char address[HSPMD_SHARD_NAME_MAX], file[HSPMD_SHARD_NAME_MAX];
		hspmd_cluster_device_address(c, d, address, sizeof address);
		struct named_shard wanted = { hspmd_shard_name(address, file, sizeof file), 0 };
		found = bsearch(&wanted, named, (size_t)m->shard_count, sizeof *named, by_file);
		f->shard_of[d] = found ? found->number : -1;
	}
	free(named);
	return 0;
}

/* Experts were multiplied in BF16 before they had amax histories. */
static bool is_history_of_experts(const struct hspmd_parameter_layout *l)
{
	size_t length = strlen(l->name), end = strlen(HSPMD_AMAX_HISTORY);
	return l->shape.dim[0] == HSPMD_EXPERTS_OPERANDS && length > end && !strcmp(l->name + length - end, HSPMD_AMAX_HISTORY);
}

static bool is_in_some_set(const struct hspmd_manifest *root, int number)
{
	bool found = false;
	for (int s = 0; s < root->set_count && !found; s++)
		found = hspmd_manifest_set_has(root, s, number);
	return found;
}

/* Returns the number of parameters of a root, the last of which is in some set. */
static int count_parameters(const struct hspmd_manifest *root)
{
	int p = 4 * root->set_digits;
	while (p > 0 && !is_in_some_set(root, p - 1))
		p--;
	return p;
}

static int digits_for(int parameters)
{
	return (parameters + 3) / 4;
}

/* without: the root has no amax histories of experts. */
static void number_parameters(struct hspmd_root_files *f, bool without)
{
	const struct hspmd_parameter_layouts *all = f->under->layouts;
	int number = 0;
	for (int p = 0; p < all->parameter_count; p++)
		f->bit_of[p] = without && is_history_of_experts(&all->parameters[p]) ? -1 : number++;
}

/* Returns true if no file is said to contain a parameter of which its device has no part. */
static bool numbers_fit(const struct hspmd_root_files *f)
{
	const struct hspmd_parameter_layouts *all = f->under->layouts;
	int devices = f->under->cluster->device_count;
	for (int p = 0; p < all->parameter_count; p++) {
		const struct hspmd_parameter_layout *l = &all->parameters[p];
		int count = hspmd_annotation_local_shards(l->state, &l->shape, f->device, f->local);
		for (int d = 0; d < devices; d++) {
			bool is_part = !hspmd_root_files_has(f, d, p);
			for (int i = 0; i < count && !is_part; i++)
				is_part = f->device[i] == d;
			if (!is_part)
				return false;
		}
	}
	return true;
}

/* An old root has as many parameters less as there are amax histories of experts. So has one that lacks its last parameters, whose sets may
 * be as long: it is one of these if its files then had what they cannot have. Otherwise only names in files can tell (load_state.c). */
static int find_numbers(struct hspmd_root_files *f, struct hspmd_error *err)
{
	const struct hspmd_parameter_layouts *all = f->under->layouts;
	int count = all->parameter_count, later = 0, digits = f->root->set_digits;
	for (int p = 0; p < count; p++)
		later += is_history_of_experts(&all->parameters[p]);
	bool is_new = digits == digits_for(count);
	bool is_old = later && digits == digits_for(count - later) && count_parameters(f->root) == count - later;
	if (!is_new && !is_old)
		return hspmd_fail(err,
		                  "the checkpoint's model has another number of parameters than this one: its sets have %d digits, not %d",
		                  digits, digits_for(count));
	number_parameters(f, is_old);
	if (is_new && is_old && !numbers_fit(f))
		number_parameters(f, false);
	for (int p = 0; p < count; p++)
		if (f->bit_of[p] >= 0 && !is_in_some_set(f->root, f->bit_of[p]))
			return hspmd_fail(err, "the checkpoint has no tensor %s, which is in the model", all->parameters[p].name);
	return 0;
}

int hspmd_root_files_find(const struct hspmd_manifest *root, const struct hspmd_old_plan *under, struct hspmd_root_files *f,
                          struct hspmd_error *err)
{
	size_t devices = (size_t)under->cluster->device_count;
	*f = (struct hspmd_root_files){ .root = root, .under = under };
	f->bit_of = hspmd_calloc((size_t)under->layouts->parameter_count, sizeof *f->bit_of);
	f->shard_of = hspmd_calloc(devices, sizeof *f->shard_of);
	f->device = hspmd_calloc(devices, sizeof *f->device);
	f->local = hspmd_calloc(devices, sizeof *f->local);
	if (!f->bit_of || !f->shard_of || !f->device || !f->local)
		return out_of_memory(err);
	return find_shards(f, err) || find_numbers(f, err) ? -1 : 0;
}

void hspmd_root_files_clear(struct hspmd_root_files *f)
{
	free(f->bit_of);
	free(f->shard_of);
	free(f->device);
	free(f->local);
	*f = (struct hspmd_root_files){ 0 };
}

bool hspmd_root_files_has(const struct hspmd_root_files *f, int device, int parameter)
{
	int shard = f->shard_of[device];
	return shard >= 0 && f->bit_of[parameter] >= 0 && hspmd_manifest_set_has(f->root, f->root->shards[shard].set, f->bit_of[parameter]);
}

/* ---- completeness */

/* The parts of a parameter that are not yet found. */
struct rest {
	struct hspmd_box *boxes;
	size_t count, capacity;
};

static int missing(const struct hspmd_root_files *f, int parameter, int count, const struct hspmd_box *part, struct hspmd_error *err)
{
	const struct hspmd_parameter_layout *l = &f->under->layouts->parameters[parameter];
	char text[256];
	struct hspmd_box common;
	const char *file = NULL;
	for (int i = 0; i < count && !file; i++)
		if (hspmd_root_files_has(f, f->device[i], parameter) && hspmd_box_intersect(&f->local[i].box, part, &common))
			file = f->root->shards[f->shard_of[f->device[i]]].file;
	return hspmd_fail(err, "the state of %s %s is in %s%s", l->name, hspmd_box_text(part, text, sizeof text), file ? file : "no shard",
	                  file ? ", which cannot be read" : "");
}

static bool is_there(const struct hspmd_root_files *f, int at, int parameter, const bool *there)
{
	return hspmd_root_files_has(f, f->device[at], parameter) && there[f->shard_of[f->device[at]]];
}

/* Look at all parts. */
static int search(const struct hspmd_root_files *f, int parameter, int count, const bool *there, struct rest *r, struct hspmd_error *err)
{
	r->count = 0;
	if (hspmd_array_grow(&r->boxes, &r->capacity, 0, sizeof *r->boxes))
		return out_of_memory(err);
	r->boxes[r->count++] = hspmd_box_full(&f->under->layouts->parameters[parameter].shape);
	for (int i = 0; i < count && r->count; i++)
		if (is_there(f, i, parameter, there) && hspmd_boxes_subtract(&r->boxes, &r->count, &r->capacity, &f->local[i].box))
			return out_of_memory(err);
	return r->count ? missing(f, parameter, count, &r->boxes[0], err) : 0;
}

int hspmd_root_files_covered(const struct hspmd_root_files *f, const bool *there, struct hspmd_error *err)
{
	const struct hspmd_parameter_layouts *all = f->under->layouts;
	struct rest r = { 0 };
	const struct hspmd_parameter_layout *last = NULL;
	int rv = 0, count = 0;
	for (int p = 0; !rv && p < all->parameter_count; p++) {
		const struct hspmd_parameter_layout *l = &all->parameters[p];
		bool whole = true;
		if (f->bit_of[p] < 0)
			continue;
		/* The blocks of a stage are alike. */
		if (!last || last->state != l->state || memcmp(&last->shape, &l->shape, sizeof l->shape))
			count = hspmd_annotation_local_shards(l->state, &l->shape, f->device, f->local);
		/* The first copies are the whole parameter, each part once; mostly these are written. */
		for (int i = 0; i < count && whole; i++)
			whole = f->local[i].replica || is_there(f, i, p, there);
		if (!whole)
			rv = search(f, p, count, there, &r, err);
		last = l;
	}
	free(r.boxes);
	return rv;
}

/* ---- for many roots */

void hspmd_root_checker_clear(struct hspmd_root_checker *c)
{
	json_decref(c->cluster);
	json_decref(c->plan);
	hspmd_old_plan_clear(&c->under);
	c->cluster = c->plan = NULL;
}

static int remember(struct hspmd_root_checker *c, const struct hspmd_manifest *root, struct hspmd_error *err)
{
	json_t *cluster = json_object_get(root->job, "cluster"), *plan = json_object_get(root->job, "plan");
	if (c->plan && json_equal(cluster, c->cluster) && json_equal(plan, c->plan))
		return 0;
	hspmd_root_checker_clear(c);
	if (hspmd_old_plan_read(c->source, NULL, NULL, cluster, plan, "manifest.job", &c->under, err)) {
		hspmd_old_plan_clear(&c->under);
		return -1;
	}
	c->cluster = json_incref(cluster);
	c->plan = json_incref(plan);
	return 0;
}

int hspmd_root_checker_covered(void *checker, const struct hspmd_manifest *root, const bool *there, struct hspmd_error *err)
{
	struct hspmd_root_checker *c = checker;
	struct hspmd_root_files f = { 0 };
	int rv = remember(c, root, err) || hspmd_root_files_find(root, &c->under, &f, err) || hspmd_root_files_covered(&f, there, err) ? -1
	                                                                                                                               : 0;
	hspmd_root_files_clear(&f);
	return rv;
}
