/* SPDX-License-Identifier: Apache-2.0 */
/* From what resolution decided, in dense device numbers and arena memory, to the transfer its caller owns. Internal to runtime/graph. */
#ifndef HSPMD_RESHARDING_TRANSFER_INTERNAL_H
#define HSPMD_RESHARDING_TRANSFER_INTERNAL_H

#include "runtime/resharding/resolve_internal.h"

#define TRANSFER_LAST (-1) /* the destination, while the number of values is not known yet */

struct transfer_plan {
	size_t step_count, step_capacity;
	struct hspmd_comm_step *step; /* input and output set: 0, 1 + index into between, TRANSFER_LAST */
	size_t between_count, between_capacity;
	const struct placement **between;
	double *network_busy; /* as of a hop, for all steps */
	double seconds;
};

/* Append a route's steps and the values between them. 0 or -1 (memory). */
int hspmd_transfer_append(struct resolver *r, struct transfer_plan *plan, const struct route *route);
/* Source and destination layouts come from the annotations. NULL: memory. */
struct hspmd_transfer *hspmd_transfer_create(const struct resolver *r, const struct transfer_plan *plan,
                                             const struct hspmd_annotation *source, const struct hspmd_annotation *destination,
                                             const char *why);

/* ---- resolve_cache.c */
/* What was asked, as bytes. */
struct resolve_key {
	size_t count, capacity;
	int64_t *value;
};
/* 0 or -1 (memory). free(key->value) after. */
int hspmd_resolve_key(struct resolve_key *key, const struct hspmd_shape *shape, size_t element_bytes, const struct hspmd_annotation *source,
                      const struct hspmd_annotation *destination);
/* A further sharer of the answer kept for this, NULL: none is. */
struct hspmd_transfer *hspmd_resolve_cache_find(const struct hspmd_resolve_cache *c, const struct resolve_key *key);
/* Keep an answer; the cache becomes one of its sharers and takes the key's bytes. When memory is short nothing is kept. */
void hspmd_resolve_cache_keep(struct hspmd_resolve_cache *c, struct resolve_key *key, struct hspmd_transfer *t);

#endif
