/* SPDX-License-Identifier: Apache-2.0 */
/* Executes resolved communication steps on a transport. */
#ifndef HSPMD_COMM_COMM_H
#define HSPMD_COMM_COMM_H

#include "runtime/comm/devcomm.h"
#include "runtime/comm/transport.h"
#include "runtime/device/device.h"
#include "runtime/resharding/resolve.h"

/* The context of execution: a device and a transport of one generation. Keeps scratch buffers between calls. */
struct hspmd_comm;
/* rank_of[device number] = rank in the transport, -1: not a member; copied (count entries). self: own device number. Borrows dev and
 * transport. NULL and err on failure. */
struct hspmd_comm *hspmd_comm_create(struct hspmd_device *dev, struct hspmd_transport *transport, const int *rank_of, int count, int self,
                                     struct hspmd_error *err);
/* From now on use device-to-device communication wherever it is possible: such a step is only enqueued, and is complete for device work
 * that is enqueued after hspmd_comm_stream_wait of its memory. Sums are then made in the order and precision of the communicator's
 * library, still with the same bits on all members. Borrowed until `c` is destroyed; NULL: use the transport for everything. */
void hspmd_comm_use_devcomm(struct hspmd_comm *c, struct hspmd_devcomm *devcomm);
/* Bytes that this device has sent so far, to the host of other devices or to the devices themselves; of collectives of a communicator's
 * library, what a ring would send. From any thread. */
uint64_t hspmd_comm_sent_bytes(const struct hspmd_comm *c);
/* To be called before the transport is closed: it takes over the buffers of abandoned messages. */
void hspmd_comm_destroy(struct hspmd_comm *c);

/* Run this device's part of one step. in, out: packed buffers with the parts that `transfer->layout` gives this device of the step's
 * input and output value (NULL if it has none). tag: of the step and micro-batch, and the same on all members; its low 8 bits must be 0
 * and are used inside. A step may run again with the same tag if all its members run both in the same order. dtype: of the elements.
 *
 * On return receives are complete, and for an all-reduce, and an all-gather or all-to-all of many members, also the sends. Other sends
 * may still be in transit: `in` must not change until hspmd_comm_flush. Collectives give all members the same bits and sum in member order,
 * independent of sizes; for BF16 they sum in F32, while a batched move that adds rounds each time. in and out must not overlap, except that
 * an all-reduce may have out == in if both are the same box. After a failure in and out stay in use until the transport is closed. */
int hspmd_comm_run(struct hspmd_comm *c, const struct hspmd_transfer *transfer, const struct hspmd_comm_step *step, enum hspmd_dtype dtype,
                   const void *in, void *out, uint64_t tag, struct hspmd_error *err);
/* One tensor of several whose messages are joined: a step of its transfer, and the buffers of hspmd_comm_run. */
struct hspmd_comm_part {
	const struct hspmd_transfer *transfer;
	const struct hspmd_comm_step *step;
	const void *in;
	void *out;
};
/* The same for steps of several tensors at once (the buckets of Li et al., "PyTorch Distributed", arXiv 2006.15704, section 3.2.3, for any
 * step): between two devices one stream of messages carries the boxes of all of them, packed one behind the other. The steps are of one
 * kind among the same members in the same order, their moves between the same pairs of devices; no dispatch or combine. Results have the
 * bits of single steps. On a communicator's library up to 16 MB of them are one launch. All members join the same tensors in one order. */
int hspmd_comm_run_joined(struct hspmd_comm *c, const struct hspmd_comm_part *parts, int count, enum hspmd_dtype dtype, uint64_t tag,
                          struct hspmd_error *err);
/* The experts that rows chose, as this device holds them: packed [.., per token], whose leading dimensions are those of the rows. */
struct hspmd_row_choice {
	const int32_t *data;
	struct hspmd_box box;
};
/* The same for a dispatch or combine, which hspmd_comm_run refuses. All sends are from buffers of its own, so that `in` and the choice may
 * change. */
int hspmd_comm_run_rows(struct hspmd_comm *c, const struct hspmd_transfer *transfer, const struct hspmd_comm_step *step,
                        enum hspmd_dtype dtype, const void *in, void *out, const struct hspmd_row_choice *choice, uint64_t tag,
                        struct hspmd_error *err);
/* Returns true if a step is a dispatch or combine. */
static inline bool hspmd_comm_chooses_rows(const struct hspmd_comm_step *step)
{
	return step->kind == HSPMD_COMM_DISPATCH || step->kind == HSPMD_COMM_COMBINE;
}
/* Start to receive a step's messages into buffers, to overlap with computation: a large message is sent after its receive is posted.
 * hspmd_comm_run must follow with the same step and tag; of equal tags in the order posted. 1; 0: the step receives nothing, or is a
 * collective, in which all members wait for each other anyway; -1 and err. */
int hspmd_comm_post_receives(struct hspmd_comm *c, const struct hspmd_transfer *transfer, const struct hspmd_comm_step *step,
                             enum hspmd_dtype dtype, uint64_t tag, struct hspmd_error *err);
/* Make progress. 1 while messages are in transit, *sending: sends are among them; 0; -1 and err: a send failed. */
int hspmd_comm_poll(struct hspmd_comm *c, bool *sending, struct hspmd_error *err);
/* Bytes of host memory for the messages of a device's part of a step, if the device computes in host memory. Messages that may be
 * received early count in full. -1 and err: memory. */
int64_t hspmd_comm_scratch_bytes(const struct hspmd_transfer *transfer, const struct hspmd_comm_step *step, int device,
                                 struct hspmd_error *err);
/* The same for joined steps, none of whose messages are received early; buffers are not read. */
int64_t hspmd_comm_joined_scratch_bytes(const struct hspmd_comm_part *parts, int count, int device, struct hspmd_error *err);
/* Returns true if all of this device's part of the step uses device-to-device communication, so that running it only enqueues it. */
bool hspmd_comm_step_uses_devcomm(const struct hspmd_comm *c, const struct hspmd_comm_step *step);
/* Order later device work after every device-to-device transfer that reads or writes [data, data + bytes); NULL: any. Does not block. */
int hspmd_comm_stream_wait(struct hspmd_comm *c, const void *data, size_t bytes, struct hspmd_error *err);
/* Wait for all sends in transit that read from [data, data + bytes); data NULL: all. */
int hspmd_comm_flush(struct hspmd_comm *c, const void *data, size_t bytes, struct hspmd_error *err);

#endif
