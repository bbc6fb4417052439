/* SPDX-License-Identifier: Apache-2.0 */
/* What is in a checkpoint, for users of the library. */
#include "common/error.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/lib/stored_tensor.h"
#include "runtime/state/checkpoint_index.h"

struct hspmd_checkpoint {
	struct hspmd_checkpoint_index index;
	const struct hspmd_checkpoint_group *group;
	int count;
	const struct hspmd_extent **parameters; /* one extent of each, in the order of the manifest */
};

static const struct hspmd_extent *find(const struct hspmd_checkpoint *c, const char *name)
{
	for (int i = 0; i < c->count; i++)
		if (!strcmp(c->parameters[i]->tensor, name))
			return c->parameters[i];
	return NULL;
}

static int by_name(const void *a, const void *b)
{
	return strcmp((*(const struct hspmd_extent *const *)a)->tensor, (*(const struct hspmd_extent *const *)b)->tensor);
}

static int list_parameters(struct hspmd_checkpoint *c, struct hspmd_error *err)
{
	const struct hspmd_manifest *m = c->group->manifest;
	int all = 0;
	if (!(c->parameters = hspmd_calloc((size_t)m->extent_count, sizeof *c->parameters)))
		return hspmd_fail_memory(err, "reading a checkpoint");
	for (int i = 0; i < m->extent_count; i++)
		if (m->extents[i].kind == HSPMD_STATE_PARAM)
			c->parameters[all++] = &m->extents[i];
	if (all)
		qsort(c->parameters, (size_t)all, sizeof *c->parameters, by_name);
	for (int i = 0; i < all; i++)
		if (!i || by_name(&c->parameters[i], &c->parameters[c->count - 1]))
			c->parameters[c->count++] = c->parameters[i];
	return 0;
}

struct hspmd_checkpoint *hspmd_checkpoint_open(const char *folder, struct hspmd_error *err)
{
	struct hspmd_checkpoint *c = calloc(1, sizeof *c);
	if (!c) {
		hspmd_fail_memory(err, "reading a checkpoint");
		return NULL;
	}
	if (!hspmd_checkpoint_index_open(&c->index, folder, err) &&
	    (c->group = hspmd_checkpoint_index_choose(&c->index, -1, folder, err)) && !list_parameters(c, err))
		return c;
	hspmd_checkpoint_close(c);
	return NULL;
}

void hspmd_checkpoint_close(struct hspmd_checkpoint *c)
{
	if (!c)
		return;
	hspmd_checkpoint_index_close(&c->index);
	free(c->parameters);
	free(c);
}

int64_t hspmd_checkpoint_step(const struct hspmd_checkpoint *c)
{
	return c->group->step;
}

const char *hspmd_checkpoint_parameter(const struct hspmd_checkpoint *c, int index, int *rank, int64_t *dims)
{
	if (index < 0 || index >= c->count)
		return NULL;
	const struct hspmd_shape *shape = &c->parameters[index]->shape;
	*rank = shape->rank;
	memcpy(dims, shape->dim, (size_t)shape->rank * sizeof *dims);
	return c->parameters[index]->tensor;
}

int hspmd_checkpoint_read(struct hspmd_checkpoint *c, const char *name, float *to, int64_t count, struct hspmd_error *err)
{
	const struct hspmd_extent *e = find(c, name);
	if (!e)
		return hspmd_fail(err, "there is no parameter %s", name);
	if (hspmd_shape_elements(&e->shape) != count)
		return hspmd_fail(err, "parameter %s has %lld elements, not %lld", name, (long long)hspmd_shape_elements(&e->shape),
		                  (long long)count);
	struct hspmd_state_need need = { e->tensor, HSPMD_STATE_PARAM, e->dtype, hspmd_box_full(&e->shape), to };
	if (e->dtype != HSPMD_F32)
		return hspmd_fail(err, "%s is %s in the checkpoint, not F32", name, hspmd_dtype_names[e->dtype]);
	return hspmd_reader_load(c->group->reader, &need, 1, NULL, NULL, NULL, err);
}

const char *hspmd_checkpoint_note(const struct hspmd_checkpoint *c)
{
	return json_string_value(json_object_get(c->group->manifest->job, "note"));
}

int hspmd_checkpoint_fill(struct hspmd_checkpoint *c, const struct hspmd_stored_tensor *tensors, int count, struct hspmd_error *err)
{
	struct hspmd_state_need *needs = hspmd_calloc((size_t)count, sizeof *needs);
	int rv = needs ? 0 : hspmd_fail_memory(err, "reading a checkpoint");
	for (int i = 0; i < count && !rv; i++) {
		struct hspmd_state_slice s;
		rv = hspmd_stored_slice(&tensors[i], &s, err);
		if (!rv)
			needs[i] = (struct hspmd_state_need){ s.tensor, s.kind, s.dtype, s.box, tensors[i].data };
	}
	if (!rv)
		rv = hspmd_reader_load(c->group->reader, needs, (size_t)count, NULL, NULL, NULL, err);
	free(needs);
	return rv;
}
