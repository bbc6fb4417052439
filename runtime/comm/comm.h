/* SPDX-License-Identifier: Apache-2.0 */
/* Executing resolved communication steps on a transport. */
#ifndef HSPMD_COMM_COMM_H
#define HSPMD_COMM_COMM_H

#include "runtime/comm/transport.h"
#include "runtime/device/device.h"
#include "runtime/graph/resolve.h"

/* Who runs it: a device and a transport of one generation; scratch buffers are kept between calls. */
struct hspmd_comm;
/* rank_of[device number] = rank in the transport, -1: not a member; copied (count entries). self: own device number. Borrows dev and transport. */
struct hspmd_comm *hspmd_comm_create(struct hspmd_device *dev, struct hspmd_transport *transport, const int *rank_of, int count, int self,
				     struct hspmd_error *err);
void hspmd_comm_destroy(struct hspmd_comm *c);

/* Run this device's part of one step. in, out: packed buffers with what `transfer->layout` says this device holds of the step's input and output
 * value (NULL where it holds nothing). tag: unique to (step, micro-batch) in the generation, the same on all members; the low 8 bits are free for use inside.
 * Sends may still be under way on return: `in` must stay untouched until hspmd_comm_flush or the next call that says so (receives are complete on return). Collectives give
 * every member the same bits and sum in member order. dtype: of the elements (sums in F32 for BF16). */
int hspmd_comm_run(struct hspmd_comm *c, const struct hspmd_transfer *transfer, const struct hspmd_comm_step *step, enum hspmd_dtype dtype,
		   const void *in, void *out, uint64_t tag, struct hspmd_error *err);
/* Wait for every send under way that reads from [data, data + bytes); data NULL: all. */
int hspmd_comm_flush(struct hspmd_comm *c, const void *data, size_t bytes, struct hspmd_error *err);

#endif
