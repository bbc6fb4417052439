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
	int count, all;
	const struct hspmd_extent **tensors; /* one extent of each: `count` parameters, then those of other trainers' other tensors */
};

static const struct hspmd_extent *find(const struct hspmd_checkpoint *c, const char *name)
{
	for (int i = 0; i < c->count; i++)
		if (!strcmp(c->tensors[i]->tensor, name))
			return c->tensors[i];
	return NULL;
}

/* The kind of parameters is the first. */
static int by_kind_and_name(const void *a, const void *b)
{
	const struct hspmd_extent *x = *(const struct hspmd_extent *const *)a, *y = *(const struct hspmd_extent *const *)b;
	return x->kind != y->kind ? (int)x->kind - (int)y->kind : strcmp(x->tensor, y->tensor);
}

static int list_tensors(struct hspmd_checkpoint *c, struct hspmd_error *err)
{
	const struct hspmd_extent *extents;
	int all = hspmd_reader_extents(c->group->reader, &extents), count = 0;
	if (!(c->tensors = hspmd_calloc((size_t)all, sizeof *c->tensors)))
		return hspmd_fail_memory(err, "reading a checkpoint");
	for (int i = 0; i < all; i++)
		if (extents[i].kind == HSPMD_STATE_PARAM || extents[i].kind == HSPMD_STATE_OTHER)
			c->tensors[count++] = &extents[i];
	if (count)
		qsort(c->tensors, (size_t)count, sizeof *c->tensors, by_kind_and_name);
	for (int i = 0; i < count; i++) {
		if (i && !by_kind_and_name(&c->tensors[i], &c->tensors[c->all - 1]))
			continue;
		c->tensors[c->all++] = c->tensors[i];
		c->count += c->tensors[i]->kind == HSPMD_STATE_PARAM;
	}
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
	    (c->group = hspmd_checkpoint_index_choose(&c->index, -1, folder, err)) && !list_tensors(c, err))
		return c;
	hspmd_checkpoint_close(c);
	return NULL;
}

void hspmd_checkpoint_close(struct hspmd_checkpoint *c)
{
	if (!c)
		return;
	hspmd_checkpoint_index_close(&c->index);
	free(c->tensors);
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
	const struct hspmd_shape *shape = &c->tensors[index]->shape;
	*rank = shape->rank;
	memcpy(dims, shape->dim, (size_t)shape->rank * sizeof *dims);
	return c->tensors[index]->tensor;
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

int hspmd_checkpoint_tensor(const struct hspmd_checkpoint *c, int index, struct hspmd_stored_tensor *tensor)
{
	if (index < 0 || index >= c->all)
		return 0;
	const struct hspmd_extent *e = c->tensors[index];
	*tensor = (struct hspmd_stored_tensor){ .name = e->tensor,
		                                .parameter = e->kind == HSPMD_STATE_PARAM,
		                                .type = hspmd_dtype_names[e->dtype],
		                                .rank = e->shape.rank,
		                                .shape = e->shape.dim };
	return 1;
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
