/* SPDX-License-Identifier: Apache-2.0 */
/* Communication within a group of devices of one kind without host memory: a table of functions that a device offers (struct
 * hspmd_device_ops). CUDA's is NCCL (cuda/nccl/).
 *
 * Operations of a group are enqueued: an operation begins after the work that was enqueued on its device before, and runs concurrently with
 * the work enqueued afterwards, until stream_wait() orders later work after it. All members must call one group's operations in the same
 * order; groups do not wait for one another. */
#ifndef HSPMD_DEVICE_COMMUNICATOR_H
#define HSPMD_DEVICE_COMMUNICATOR_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/device/device.h"

#define HSPMD_COMMUNICATOR_ID_BYTES 128
#define HSPMD_COMMUNICATOR_KIND_BYTES 32

struct hspmd_communicator;

/* Limits of the host's waits for a device, so that a failed member makes no wait endless. */
struct hspmd_communicator_watch {
	const atomic_int *abort; /* non-zero: waiting is pointless; may be NULL */
	double timeout_s;        /* limit of the time that an operation takes once it has begun; > 0 */
};

struct hspmd_communicator_ops {
	/* Checks whether this device can take part in groups. `kind` receives the kind: equal on all devices that can form a group ("nccl
	 * 2.27"). -1 and err: what is missing or too old. */
	int (*probe)(struct hspmd_device *dev, char kind[HSPMD_COMMUNICATOR_KIND_BYTES], struct hspmd_error *err);
	/* Number of the device within this process: a device can be in a group only once. */
	uint64_t (*device_id)(struct hspmd_device *dev);
	/* Use these limits from now on; unwatch() ends it, unless another watch has replaced this one. */
	void (*watch)(struct hspmd_device *dev, const struct hspmd_communicator_watch *watch);
	void (*unwatch)(struct hspmd_device *dev, const atomic_int *abort);
	/* Makes a name for a new group; one member makes it and sends it to the others. */
	int (*unique_id)(struct hspmd_device *dev, unsigned char id[HSPMD_COMMUNICATOR_ID_BYTES], struct hspmd_error *err);
	/* Begins to make a group, as member `rank` of `size`. Does not wait for the others; init_poll() reports completion. */
	int (*init)(struct hspmd_device *dev, const unsigned char id[HSPMD_COMMUNICATOR_ID_BYTES], int rank, int size,
	            struct hspmd_communicator **g, struct hspmd_error *err);
	int (*init_poll)(struct hspmd_communicator *g, struct hspmd_error *err); /* 1: done; 0: not yet; -1: failed */
	/* Ends the group together with the others, who do the same, with a deadline; abort: at once, whatever is running. NULL is fine. */
	void (*close)(struct hspmd_communicator *g, bool abort);

	/* Operations called between begin and end form one batch. After -1 the group cannot be used any more. */
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

	/* Copies a box from memory that the latest batch has filled, as copy_box of device.h. It becomes part of that batch by
	 * copies_end(), which must follow before anything waits for the batch's ticket. 0 or -1 and err. */
	int (*copy_box)(struct hspmd_communicator *g, void *dst, const struct hspmd_box *dst_box, const void *src,
	                const struct hspmd_box *src_box, const struct hspmd_box *part, enum hspmd_dtype dtype, struct hspmd_error *err);
	int (*copies_end)(struct hspmd_communicator *g, struct hspmd_error *err);

	/* Orders the device's later work after the batch of that ticket. Does not block. */
	int (*stream_wait)(struct hspmd_communicator *g, uint64_t ticket, struct hspmd_error *err);
};

#endif
