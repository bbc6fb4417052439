/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/tensor/box.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct hspmd_box hspmd_box_full(const struct hspmd_shape *shape)
{
	struct hspmd_box box = { .rank = shape->rank };
	for (int d = 0; d < shape->rank; d++)
		box.hi[d] = shape->dim[d];
	return box;
}

int64_t hspmd_shape_elements(const struct hspmd_shape *shape)
{
	int64_t n = 1;
	for (int d = 0; d < shape->rank; d++)
		n *= shape->dim[d];
	return n;
}

int64_t hspmd_box_elements(const struct hspmd_box *box)
{
	int64_t n = 1;
	for (int d = 0; d < box->rank; d++)
		n *= box->hi[d] > box->lo[d] ? box->hi[d] - box->lo[d] : 0;
	return n;
}

bool hspmd_box_empty(const struct hspmd_box *box)
{
	for (int d = 0; d < box->rank; d++)
		if (box->hi[d] <= box->lo[d])
			return true;
	return false;
}

bool hspmd_box_equal(const struct hspmd_box *a, const struct hspmd_box *b)
{
	if (a->rank != b->rank)
		return false;
	for (int d = 0; d < a->rank; d++)
		if (a->lo[d] != b->lo[d] || a->hi[d] != b->hi[d])
			return false;
	return true;
}

bool hspmd_box_contains(const struct hspmd_box *outer, const struct hspmd_box *inner)
{
	for (int d = 0; d < outer->rank; d++)
		if (inner->lo[d] < outer->lo[d] || inner->hi[d] > outer->hi[d])
			return false;
	return outer->rank == inner->rank;
}

bool hspmd_box_intersect(const struct hspmd_box *a, const struct hspmd_box *b, struct hspmd_box *out)
{
	struct hspmd_box r = { .rank = a->rank };
	for (int d = 0; d < a->rank; d++) {
		r.lo[d] = a->lo[d] > b->lo[d] ? a->lo[d] : b->lo[d];
		r.hi[d] = a->hi[d] < b->hi[d] ? a->hi[d] : b->hi[d];
		if (r.lo[d] >= r.hi[d])
			return false;
	}
	*out = r;
	return true;
}

int hspmd_box_subtract(const struct hspmd_box *a, const struct hspmd_box *b, struct hspmd_box *out)
{
	struct hspmd_box common;
	if (!hspmd_box_intersect(a, b, &common)) {
		out[0] = *a;
		return !hspmd_box_empty(a);
	}
	struct hspmd_box rest = *a; /* shrinks towards `common`, one face at a time */
	int n = 0;
	for (int d = 0; d < a->rank; d++) {
		if (rest.lo[d] < common.lo[d]) {
			out[n] = rest;
			out[n++].hi[d] = common.lo[d];
		}
		if (common.hi[d] < rest.hi[d]) {
			out[n] = rest;
			out[n++].lo[d] = common.hi[d];
		}
		rest.lo[d] = common.lo[d];
		rest.hi[d] = common.hi[d];
	}
	return n;
}

void hspmd_box_runs(const struct hspmd_box *whole, const struct hspmd_box *part, int64_t *run, int64_t *runs)
{
	int64_t total = hspmd_box_elements(part);
	*run = 1;
	for (int d = part->rank - 1; d >= 0; d--) {
		*run *= part->hi[d] - part->lo[d];
		if (part->lo[d] != whole->lo[d] || part->hi[d] != whole->hi[d])
			break;
	}
	*runs = *run > 0 ? total / *run : 0;
}

/* Element offset of index `at` in a packed buffer that holds `box`. */
static int64_t offset(const struct hspmd_box *box, const int64_t *at)
{
	int64_t o = 0;
	for (int d = 0; d < box->rank; d++)
		o = o * (box->hi[d] - box->lo[d]) + (at[d] - box->lo[d]);
	return o;
}

void *hspmd_box_contiguous(void *data, const struct hspmd_box *whole, const struct hspmd_box *part, size_t element_bytes)
{
	int64_t run, runs;
	hspmd_box_runs(whole, part, &run, &runs);
	return runs == 1 ? (char *)data + (size_t)offset(whole, part->lo) * element_bytes : NULL;
}

void hspmd_box_copy(void *dst, const struct hspmd_box *dst_box, const void *src, const struct hspmd_box *src_box,
                    const struct hspmd_box *part, size_t element_bytes)
{
	if (hspmd_box_empty(part))
		return;
	int64_t run, runs, other_run, other_runs;
	hspmd_box_runs(dst_box, part, &run, &runs);
	hspmd_box_runs(src_box, part, &other_run, &other_runs);
	if (other_run < run) {
		run = other_run;
		runs = other_runs;
	}
	int64_t at[HSPMD_MAX_RANK];
	memcpy(at, part->lo, sizeof at);
	int64_t covered = 1; /* elements of the innermost dimensions that one run spans */
	int inner = part->rank;
	while (inner > 0 && covered < run)
		covered *= part->hi[inner - 1] - part->lo[inner - 1], inner--;
	for (int64_t i = 0; i < runs; i++) {
		memcpy((char *)dst + (size_t)offset(dst_box, at) * element_bytes,
		       (const char *)src + (size_t)offset(src_box, at) * element_bytes, (size_t)run * element_bytes);
		for (int d = inner - 1; d >= 0; d--) {
			if (++at[d] < part->hi[d])
				break;
			at[d] = part->lo[d];
		}
	}
}

const char *hspmd_box_text(const struct hspmd_box *box, char *buf, size_t size)
{
	size_t n = 0;
	for (int d = 0; d < box->rank && n < size; d++)
		n += (size_t)snprintf(buf + n, size - n, "%s%" PRId64 ":%" PRId64, d ? ", " : "[", box->lo[d], box->hi[d]);
	if (n < size)
		snprintf(buf + n, size - n, box->rank ? "]" : "[]");
	return buf;
}

int64_t hspmd_common_divisor(int64_t a, int64_t b)
{
	while (b) {
		int64_t rest = a % b;
		a = b;
		b = rest;
	}
	return a;
}
