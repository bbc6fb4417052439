/* SPDX-License-Identifier: Apache-2.0 */
/* Communication of a group of devices of one kind that need no host memory for it: a table of functions which a device offers (struct
 * hspmd_device_ops). CUDA's is NCCL (nccl/).
 *
 * What a group does is enqueued: it begins after what its device was asked for before, and runs beside what the device is asked for
 * afterwards, until that is told to come later by join(). Calls of one group take place in one order, which must be the same for all
 * members; groups do not wait for one another. */
#ifndef HSPMD_DEVICE_COMMUNICATOR_H
#define HSPMD_DEVICE_COMMUNICATOR_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/device/device.h"

#define HSPMD_COMMUNICATOR_ID_BYTES 128
#define HSPMD_COMMUNICATOR_KIND_BYTES 32

struct hspmd_communicator;

/* What the host's waits for a device look at, so that a member that is gone makes none of them endless. */
struct hspmd_communicator_watch {
	const atomic_int *abort; /* non-zero: waiting is pointless; may be NULL */
	double timeout_s;        /* how long something that has begun may take; > 0 */
};

struct hspmd_communicator_ops {
	/* Can this device take part in groups? `kind` says of what sort: equal on all that understand one another ("nccl 2.27"). -1 and
	 * err: what is missing or too old. */
	int (*probe)(struct hspmd_device *dev, char kind[HSPMD_COMMUNICATOR_KIND_BYTES], struct hspmd_error *err);
	uint64_t (*device_id)(struct hspmd_device *dev); /* which of this process's devices it is: one of them is in a group only once */
	/* From now on; and no longer, unless another has taken the place of this one. */
	void (*watch)(struct hspmd_device *dev, const struct hspmd_communicator_watch *watch);
	void (*unwatch)(struct hspmd_device *dev, const atomic_int *abort);
	/* A name for a group that is to be made; one member makes it and gives it to the others. */
	int (*unique_id)(struct hspmd_device *dev, unsigned char id[HSPMD_COMMUNICATOR_ID_BYTES], struct hspmd_error *err);
	/* Begin to make a group; member `rank` of `size`. Does not wait for the others: ready() tells. */
	int (*init)(struct hspmd_device *dev, const unsigned char id[HSPMD_COMMUNICATOR_ID_BYTES], int rank, int size,
	            struct hspmd_communicator **g, struct hspmd_error *err);
	int (*init_poll)(struct hspmd_communicator *g, struct hspmd_error *err); /* 1; 0: not yet; -1: it will not be */
	/* End it with the others, who do the same, and with a deadline; abandon: at once, whatever is under way. NULL is fine. */
	void (*close)(struct hspmd_communicator *g, bool abort);

	/* What is called between begin and end happens at once. -1 is the end of the group. */
	int (*begin)(struct hspmd_communicator *g, struct hspmd_error *err);
	int (*send)(struct hspmd_communicator *g, int to, const void *data, size_t elements, enum hspmd_dtype dtype,
	            struct hspmd_error *err);
	int (*receive)(struct hspmd_communicator *g, int from, void *data, size_t elements, enum hspmd_dtype dtype,
	               struct hspmd_error *err);
	int (*broadcast)(struct hspmd_communicator *g, int root, const void *in, void *out, size_t elements, enum hspmd_dtype dtype,
	                 struct hspmd_error *err);
	int (*reduce)(struct hspmd_communicator *g, int root, const void *in, void *out, size_t elements, enum hspmd_dtype dtype,
	              struct hspmd_error *err);
	int (*all_reduce)(struct hspmd_communicator *g, const void *in, void *out, size_t elements, enum hspmd_dtype dtype,
	                  struct hspmd_error *err);
	/* elements: of each member's part. */
	int (*all_gather)(struct hspmd_communicator *g, const void *in, void *out, size_t elements, enum hspmd_dtype dtype,
	                  struct hspmd_error *err);
	int (*reduce_scatter)(struct hspmd_communicator *g, const void *in, void *out, size_t elements, enum hspmd_dtype dtype,
	                      struct hspmd_error *err);
	int (*end)(struct hspmd_communicator *g, uint64_t *ticket, struct hspmd_error *err);

	/* What the device is asked for from here on comes after that call. Does not wait. */
	int (*stream_wait)(struct hspmd_communicator *g, uint64_t ticket, struct hspmd_error *err);
};

#endif
