/* SPDX-License-Identifier: Apache-2.0 */
/* Executing resolved communication steps on a transport. */
#ifndef HSPMD_COMM_COMM_H
#define HSPMD_COMM_COMM_H

#include "runtime/comm/devcomm.h"
#include "runtime/comm/transport.h"
#include "runtime/device/device.h"
#include "runtime/resharding/resolve.h"

/* Who runs it: a device and a transport of one generation; scratch buffers are kept between calls. */
struct hspmd_comm;
/* rank_of[device number] = rank in the transport, -1: not a member; copied (count entries). self: own device number. Borrows dev and
 * transport. */
struct hspmd_comm *hspmd_comm_create(struct hspmd_device *dev, struct hspmd_transport *transport, const int *rank_of, int count, int self,
                                     struct hspmd_error *err);
/* From now on what can go straight from device to device does: it is enqueued, and complete for what the device is asked for after
 * hspmd_comm_stream_wait of its memory. Sums are then made in the order and precision of the group's library, still the same bits on all
 * members. Borrowed until destroyed; NULL: nothing. */
void hspmd_comm_use_devcomm(struct hspmd_comm *c, struct hspmd_devcomm *devcomm);
/* Before the transport is closed: buffers of messages that were given up go over to it. */
void hspmd_comm_destroy(struct hspmd_comm *c);

/* Run this device's part of one step. in, out: packed buffers with what `transfer->layout` says this device holds of the step's input and
 * output value (NULL where it holds nothing). tag: unique to (step, micro-batch) in the generation, the same on all members; the low 8 bits
 * are free for use inside. Sends may still be under way on return: `in` must stay untouched until hspmd_comm_flush (receives are complete
 * on return, and of an all-reduce the sends too). Collectives give every member the same bits and sum in member order whatever the sizes.
 * dtype: of the elements (sums of a collective in F32 for BF16; a batched move that adds rounds each time). in and out must not overlap,
 * but an all-reduce may have out == in when both hold the same box. After a failure in and out stay in use until the transport is
 * closed. */
int hspmd_comm_run(struct hspmd_comm *c, const struct hspmd_transfer *transfer, const struct hspmd_comm_step *step, enum hspmd_dtype dtype,
                   const void *in, void *out, uint64_t tag, struct hspmd_error *err);
/* Let what a step will bring from others come now, into buffers, while something else is computed: a large message does not start before
 * its receive is there. To be followed by hspmd_comm_run with the same step and tag. 1; 0: this step brings nothing, or is a collective in
 * which all meet anyway; -1 and err. */
int hspmd_comm_post_receives(struct hspmd_comm *c, const struct hspmd_transfer *transfer, const struct hspmd_comm_step *step,
                             enum hspmd_dtype dtype, uint64_t tag, struct hspmd_error *err);
/* Make progress. 1 while messages are under way, *sending when sends are among them; 0; -1 and err: a send failed. */
int hspmd_comm_poll(struct hspmd_comm *c, bool *sending, struct hspmd_error *err);
/* Bytes of host memory in which a device that computes in host memory has messages of its part of a step; those that were let come early
 * count whole. -1 and err: memory. */
int64_t hspmd_comm_scratch_bytes(const struct hspmd_transfer *transfer, const struct hspmd_comm_step *step, int device,
                                 struct hspmd_error *err);
/* Does all of this device's part of the step go straight? Then running it only enqueues it. */
bool hspmd_comm_step_uses_devcomm(const struct hspmd_comm *c, const struct hspmd_comm_step *step);
/* What the device is asked for next comes after all that goes straight from or to [data, data + bytes); NULL: anywhere. Does not wait. */
int hspmd_comm_stream_wait(struct hspmd_comm *c, const void *data, size_t bytes, struct hspmd_error *err);
/* Wait for every send under way that reads from [data, data + bytes); data NULL: all. */
int hspmd_comm_flush(struct hspmd_comm *c, const void *data, size_t bytes, struct hspmd_error *err);

#endif
