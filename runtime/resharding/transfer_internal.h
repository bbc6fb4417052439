/* SPDX-License-Identifier: Apache-2.0 */
/* From the result of resolution, in dense device numbers and arena memory, to the transfer that the caller owns. Internal to
 * runtime/resharding. */
#ifndef HSPMD_RESHARDING_TRANSFER_INTERNAL_H
#define HSPMD_RESHARDING_TRANSFER_INTERNAL_H

#include "runtime/resharding/resolve_internal.h"

#define TRANSFER_LAST (-1) /* the destination, while the number of values is not known yet */

struct transfer_plan {
	size_t step_count, step_capacity;
	struct hspmd_comm_step *step; /* input and output: 0, 1 + index into between, or TRANSFER_LAST */
	size_t between_count, between_capacity;
	const struct placement **between;
	double *network_busy; /* as in struct hop, for all steps */
	double seconds;
};

/* Appends a route's steps and the values between them. 0 or -1 (memory). */
int hspmd_transfer_append(struct resolver *r, struct transfer_plan *plan, const struct route *route);
/* Source and destination layouts come from the annotations. NULL: memory. */
struct hspmd_transfer *hspmd_transfer_create(const struct resolver *r, const struct transfer_plan *plan,
                                             const struct hspmd_annotation *source, const struct hspmd_annotation *destination,
                                             const char *why);

/* ---- resolve_cache.c */
/* The arguments of a resolution, as numbers. */
struct resolve_key {
	size_t count, capacity;
	int64_t *value;
};
/* 0 or -1 (memory). The caller frees key->value. */
int hspmd_resolve_key(struct resolve_key *key, const struct hspmd_shape *shape, size_t element_bytes, const struct hspmd_annotation *source,
                      const struct hspmd_annotation *destination);
/* The transfer kept for this key, with one more reference; NULL: none is kept. */
struct hspmd_transfer *hspmd_resolve_cache_find(const struct hspmd_resolve_cache *c, const struct resolve_key *key);
/* Keeps a transfer: the cache becomes one of its owners and takes ownership of the key's array. If memory is short nothing is kept. */
void hspmd_resolve_cache_keep(struct hspmd_resolve_cache *c, struct resolve_key *key, struct hspmd_transfer *t);

#endif
