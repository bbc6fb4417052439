/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/lib/stored_tensor.h"

#include <string.h>

int hspmd_stored_slice(const struct hspmd_stored_tensor *t, struct hspmd_state_slice *slice, struct hspmd_error *err)
{
	int type = 0;
	if (!t->name || !*t->name)
		return hspmd_fail(err, "a tensor without a name");
	while (hspmd_dtype_names[type] && (!t->type || strcmp(hspmd_dtype_names[type], t->type)))
		type++;
	if (!hspmd_dtype_names[type])
		return hspmd_fail(err, "%s: there is no type \"%s\"", t->name, t->type ? t->type : "");
	if (t->rank < 0 || t->rank > HSPMD_MAX_RANK)
		return hspmd_fail(err, "%s has %d dimensions: more than %d cannot be stored", t->name, t->rank, HSPMD_MAX_RANK);
	*slice = (struct hspmd_state_slice){ .tensor = t->name,
		                             .kind = t->parameter ? HSPMD_STATE_PARAM : HSPMD_STATE_OTHER,
		                             .dtype = (enum hspmd_dtype)type,
		                             .shape.rank = t->rank,
		                             .box.rank = t->rank,
		                             .data = t->data };
	for (int d = 0; d < t->rank; d++) {
		slice->shape.dim[d] = t->shape[d];
		slice->box.lo[d] = t->low ? t->low[d] : 0;
		slice->box.hi[d] = t->high ? t->high[d] : t->shape[d];
		if (slice->box.lo[d] < 0 || slice->box.hi[d] > t->shape[d] || slice->box.lo[d] >= slice->box.hi[d])
			return hspmd_fail(err, "%s: the part [%lld, %lld) of dimension %d is empty, or outside of %lld", t->name,
			                  (long long)slice->box.lo[d], (long long)slice->box.hi[d], d, (long long)t->shape[d]);
	}
	return t->data ? 0 : hspmd_fail(err, "%s has no data", t->name);
}
