/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a checkpoint is of a given model. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/state/manifest.h"

int hspmd_extent_check(const struct hspmd_extent *e, const struct hspmd_shape *shape, struct hspmd_error *err)
{
	if (e->kind == HSPMD_STATE_OTHER)
		return hspmd_fail(err, "the checkpoint is another trainer's: it has %s", e->tensor);
	if (!shape)
		return hspmd_fail(err, "the checkpoint has a tensor %s that is not in the model", e->tensor);
	if (e->shape.rank != shape->rank || memcmp(e->shape.dim, shape->dim, (size_t)shape->rank * sizeof *shape->dim))
		return hspmd_fail(err, "the checkpoint's tensor %s has another shape than the model's", e->tensor);
	return 0;
}

int hspmd_manifest_check_kinds(const struct hspmd_manifest *m, enum hspmd_optimizer optimizer, struct hspmd_error *err)
{
	bool has[HSPMD_STATE_OTHER + 1] = { false };
	for (int x = 0; x < m->extent_count; x++)
		has[m->extents[x].kind] = true;
	for (int k = 0; k <= hspmd_optimizer_types[optimizer]->moments; k++)
		if (!has[k])
			return hspmd_fail(err, "the checkpoint has no %s, which optimizer %s needs", hspmd_state_kind_names[k],
			                  hspmd_optimizer_names[optimizer]);
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct hspmd_state_parameter *)a)->name, ((const struct hspmd_state_parameter *)b)->name);
}

/* parameters: sorted by name. seen: by parameter. */
static int check_extents(const struct hspmd_manifest *m, const struct hspmd_state_parameter *parameters, size_t count, bool *seen,
                         struct hspmd_error *err)
{
	for (int x = 0; x < m->extent_count; x++) {
		const struct hspmd_extent *e = &m->extents[x];
		const struct hspmd_state_parameter wanted = { .name = e->tensor },
		                                   *found = bsearch(&wanted, parameters, count, sizeof *parameters, by_name);
		if (hspmd_extent_check(e, found ? found->shape : NULL, err))
			return -1;
		seen[found - parameters] = true;
	}
	for (size_t i = 0; i < count; i++)
		if (!seen[i] && !parameters[i].history)
			return hspmd_fail(err, "the checkpoint has no tensor %s, which is in the model", parameters[i].name);
	return 0;
}

int hspmd_manifest_check_model(const struct hspmd_manifest *m, struct hspmd_state_parameter *parameters, size_t count,
                               struct hspmd_error *err)
{
	bool *seen = hspmd_calloc(count, sizeof *seen);
	if (!seen)
		return hspmd_fail_memory(err, "comparing a checkpoint with the model");
	qsort(parameters, count, sizeof *parameters, by_name);
	int status = check_extents(m, parameters, count, seen, err);
	free(seen);
	return status;
}
