/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers of several tensors whose messages are joined (hspmd_comm_run_joined): under ZeRO, where each gradient is summed to parts of it
 * (arXiv 1910.02054, section 5), and where pipelines divide tensors differently. Gradients that all devices sum alike need none of this:
 * they are neighbours in memory, and one row (bucket.c). With HSPMD_UNJOINED in the environment every step has messages of its own, for
 * measurements and comparisons. */
#ifndef HSPMD_PROGRAM_JOINED_H
#define HSPMD_PROGRAM_JOINED_H

#include "runtime/program/program.h"

struct hspmd_bound_transfer {
	const struct hspmd_transfer *transfer;
	struct hspmd_transfer_binding route;
	int number; /* the caller's */
};

/* Add the instructions of several transfers. Steps that can be joined are, up to HSPMD_PROGRAM_BUCKET bytes on a device. Devices that have
 * some of these transfers in common must come to them with the same list; what is joined does not depend on the device. after: called with
 * each one after those that are joined with it were added; NULL: no. 0, or -1 and err. */
typedef int hspmd_after_transfer(void *context, const struct hspmd_bound_transfer *one);
int hspmd_program_add_transfers(struct hspmd_program *p, const struct hspmd_bound_transfer *all, int count, hspmd_after_transfer *after,
                                void *context, struct hspmd_error *err);

/* The most bytes that a device has of the transfer's source or destination. */
int64_t hspmd_transfer_device_bytes(const struct hspmd_transfer *t);

/* Bytes on a device. */
struct hspmd_joined_bytes {
	int64_t own;   /* of a transfer */
	int64_t total; /* of all that travel with it, itself included */
};

/* Costs of links for tensors that travel with others, whose latency is shared. */
struct hspmd_joined_costs {
	const struct hspmd_link_cost *base; /* of a tensor alone; borrowed */
	struct hspmd_resolve_cache *likely;
	struct hspmd_transfer **kept; /* hspmd_joined_keep */
	size_t kept_count, kept_capacity;
	struct {
		int64_t bytes; /* of all tensors of a message */
		struct hspmd_resolve_cache *cache;
	} * list;
	size_t count, capacity;
};
/* 0, or -1 and err. Clear also after a failure. For one thread. */
int hspmd_joined_costs_init(struct hspmd_joined_costs *all, const struct hspmd_link_cost *base, struct hspmd_error *err);
void hspmd_joined_costs_clear(struct hspmd_joined_costs *all);
/* To find out which transfers can be joined before it is known what travels: as if all links were equal and all tensors of one size. */
struct hspmd_link_cost hspmd_joined_likely(const struct hspmd_joined_costs *all, const struct hspmd_shape *shape, size_t element_bytes);
/* Keeps a transfer that was resolved for that until hspmd_joined_forget, and destroys it on failure: with thousands of devices, hundreds of
 * them would fill the memory if the program kept them. 0, or -1 and err. */
int hspmd_joined_keep(struct hspmd_joined_costs *all, struct hspmd_transfer *likely, struct hspmd_error *err);
/* It is known what travels together. */
void hspmd_joined_forget(struct hspmd_joined_costs *all);
/* *cost: for a tensor that travels with others; valid until hspmd_joined_costs_clear. 0, or -1 and err. */
int hspmd_joined_cost(struct hspmd_joined_costs *all, const struct hspmd_joined_bytes *bytes, struct hspmd_link_cost *cost,
                      struct hspmd_error *err);
/* bytes[i]: of the transfer likely[i] (NULL: there is none, and 0 bytes), and of all of its group that can be joined with it, up to
 * HSPMD_PROGRAM_BUCKET. 0, or -1 and err. */
int hspmd_joined_totals(const struct hspmd_transfer *const *likely, const int *group, int count, struct hspmd_joined_bytes *bytes,
                        struct hspmd_error *err);

#endif
