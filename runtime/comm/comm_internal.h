/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files that execute communication steps. Private to runtime/comm.
 *
 * A box that is sent from one device to another is cut into pieces, consecutive pieces are joined to messages, and both sides compute
 * the same cuts from the same boxes. A piece that is contiguous in the memory of a device that computes in host memory is sent and
 * received in place; all others pass through scratch buffers in host memory. While one message is packed, summed or unpacked, the
 * following ones are in transit. */
#ifndef HSPMD_COMM_COMM_INTERNAL_H
#define HSPMD_COMM_COMM_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>

#include "runtime/comm/comm.h"

/* Bytes of one message of a longer stream: large enough to hide the cost per message, small enough to stay in a core's cache while it is
 * summed. */
#define HSPMD_COMM_MESSAGE (1u << 20)

#define HSPMD_COMM_FEW_MEMBERS 16 /* up to so many send to each other: four messages from each of fifteen others are held at most */
/* Up to so many bytes among more members, all get everything by one logarithmic all-gather, which saves rounds. */
#define HSPMD_COMM_SMALL_OF_MANY (4u << 20)

/* ---- buffers in host memory (scratch.c) */

struct hspmd_scratch {
	struct hspmd_deferred_free deferred;
	struct hspmd_scratch *next;
	size_t size;
	int users; /* messages in transit and calls that use it */
	char *data;
};

struct exchange;

struct pending_send {
	struct hspmd_request *request;
	struct hspmd_scratch *scratch; /* NULL: sent in place */
	const char *data;              /* the caller's memory that is sent; NULL: scratch is sent */
	size_t bytes;
};

struct hspmd_comm {
	struct hspmd_device *dev;
	struct hspmd_transport *transport;
	int *rank_of, count, self;
	struct hspmd_scratch *pool;
	struct pending_send *pending;
	size_t pending_count, pending_capacity;
	struct exchange *early;        /* receives that were posted before their step ran */
	struct hspmd_devcomm *devcomm; /* NULL: everything uses the transport */
	atomic_uint_least64_t sent_bytes;
	void *device_scratch;          /* packed boxes on their way to or from the host, for devices with their own memory */
	size_t device_scratch_bytes;
};

/* A buffer with one user; NULL and err if memory is short. */
struct hspmd_scratch *hspmd_comm_scratch_acquire(struct hspmd_comm *c, size_t bytes, struct hspmd_error *err);
void hspmd_comm_scratch_release(struct hspmd_scratch *s);
size_t hspmd_comm_scratch_size(size_t bytes); /* size of the buffer that a request for `bytes` gets */

/* Start a send that may outlive this call. scratch (may be NULL) gets one more user until the send is done; `data` is in scratch, or is
 * the caller's. */
int hspmd_comm_send(struct hspmd_comm *c, int device, uint64_t tag, const void *data, size_t bytes, struct hspmd_scratch *scratch,
                    struct hspmd_error *err);
/* The same, from memory that the caller keeps until *r is done. */
int hspmd_comm_send_tracked(struct hspmd_comm *c, int device, uint64_t tag, const void *data, size_t bytes, struct hspmd_request **r,
                            struct hspmd_error *err);
int hspmd_comm_receive(struct hspmd_comm *c, int device, uint64_t tag, void *data, size_t bytes, struct hspmd_request **r,
                       struct hspmd_error *err);

/* ---- a tensor's local part and its pieces (messages.c) */

/* A packed buffer that holds `box` of a tensor; on_host: the CPU may read and write it. */
struct hspmd_local_buffer {
	char *data;
	struct hspmd_box box;
	size_t element_bytes;
	enum hspmd_dtype dtype;
	bool on_host;
};

/* Address of `box` if it is contiguous in the part, otherwise NULL. */
char *hspmd_local_buffer_contiguous(const struct hspmd_local_buffer *part, const struct hspmd_box *box);
/* Copy a box between a part and a packed host buffer. */
int hspmd_local_buffer_pack(struct hspmd_comm *c, const struct hspmd_local_buffer *part, const struct hspmd_box *box, void *host,
                            struct hspmd_error *err);
int hspmd_local_buffer_unpack(struct hspmd_comm *c, const struct hspmd_local_buffer *part, const struct hspmd_box *box, const void *host,
                              bool add, struct hspmd_error *err);

/* A box of part number `part` of an array of parts, which are of one tensor each. */
struct hspmd_piece {
	struct hspmd_box box;
	int part;
};

/* Pieces of some boxes, in order, joined to messages: message m consists of pieces [first[m], first[m + 1]), bytes[m] bytes in all. The
 * functions that take a `part` and pieces take the array of parts. */
struct hspmd_pieces {
	size_t count, capacity;
	struct hspmd_piece *piece;
	size_t message_count, first_capacity, bytes_capacity;
	size_t *first; /* message_count + 1 entries after hspmd_pieces_close */
	size_t *bytes;
};
int hspmd_pieces_add(struct hspmd_pieces *p, const struct hspmd_box *box, int part, size_t element_bytes, struct hspmd_error *err);
int hspmd_pieces_close(struct hspmd_pieces *p, size_t element_bytes, struct hspmd_error *err);
int hspmd_pieces_of(struct hspmd_pieces *p, const struct hspmd_box *box, size_t element_bytes,
                    struct hspmd_error *err); /* add one of part 0 and close */
void hspmd_pieces_free(struct hspmd_pieces *p);

/* Address of message m in `part` if it is one contiguous piece of host memory, otherwise NULL. */
char *hspmd_pieces_in_place(const struct hspmd_pieces *p, size_t m, const struct hspmd_local_buffer *part);
/* Copy message m between a part and a packed host buffer. */
int hspmd_pieces_pack(struct hspmd_comm *c, const struct hspmd_pieces *p, size_t m, const struct hspmd_local_buffer *part, void *host,
                      struct hspmd_error *err);
int hspmd_pieces_unpack(struct hspmd_comm *c, const struct hspmd_pieces *p, size_t m, const struct hspmd_local_buffer *part,
                        const void *host, bool add, struct hspmd_error *err);
/* Make c->device_scratch at least this large. */
int hspmd_comm_need_device_scratch(struct hspmd_comm *c, size_t bytes, struct hspmd_error *err);
/* Start to send all messages to `device`, in place or packed. */
int hspmd_comm_send_pieces(struct hspmd_comm *c, const struct hspmd_pieces *p, const struct hspmd_local_buffer *part, int device,
                           uint64_t tag, struct hspmd_error *err);

/* ---- patterns */

/* A step of one tensor, or of several whose messages are joined: the same kind of step among the same members in the same order. */
struct hspmd_joint {
	int count;
	const struct hspmd_comm_step *const *step; /* per tensor */
	const struct hspmd_local_buffer *in, *out; /* per tensor */
	int self;                                  /* this device's index among the members */
};

/* Moves of one or several tensors, those of one pair of devices one after the other. */
struct hspmd_move_list {
	const struct hspmd_move *move;
	size_t count;
	const int *part; /* per move: the tensor's number; NULL: all are of number 0 */
};
static inline int hspmd_move_part(const struct hspmd_move_list *l, size_t at)
{
	return l->part ? l->part[at] : 0;
}

/* Execute the moves that this device sends or receives, in the order of the list (exchange.c). in, out: the tensors' parts. The data of in
 * or out may be NULL if no move reads or writes it. */
int hspmd_comm_exchange(struct hspmd_comm *c, const struct hspmd_move_list *moves, const struct hspmd_local_buffer *in,
                        const struct hspmd_local_buffer *out, uint64_t tag, struct hspmd_error *err);
/* Post the receives among these moves into buffers; a later hspmd_comm_exchange with this tag takes them over. out: its data may still
 * be unknown. */
int hspmd_comm_exchange_early(struct hspmd_comm *c, const struct hspmd_move_list *moves, const struct hspmd_local_buffer *out, uint64_t tag,
                              struct hspmd_error *err);
void hspmd_comm_drop_early(struct hspmd_comm *c);
/* Bytes of scratch buffers that such an exchange, or such a sum, uses at once (hspmd_comm_scratch_bytes). -1 and err: memory. */
int64_t hspmd_comm_exchange_scratch(const struct hspmd_move_list *moves, const struct hspmd_local_buffer *in,
                                    const struct hspmd_local_buffer *out, int self, bool early, struct hspmd_error *err);
int64_t hspmd_comm_sum_scratch(const struct hspmd_joint *j, struct hspmd_error *err);
/* All-gather and all-to-all of many members (ring.c), and the bytes of scratch buffers that they use at once. Nothing is in transit on
 * return. */
int hspmd_comm_ring_gather(struct hspmd_comm *c, const struct hspmd_joint *j, uint64_t tag, struct hspmd_error *err);
int hspmd_comm_pairwise(struct hspmd_comm *c, const struct hspmd_joint *j, uint64_t tag, struct hspmd_error *err);
int64_t hspmd_comm_ring_scratch(const struct hspmd_joint *j, struct hspmd_error *err);
/* Execute a dispatch or combine (rows.c). self: this device's index among the members of `step`. */
int hspmd_comm_exchange_rows(struct hspmd_comm *c, const struct hspmd_transfer *transfer, const struct hspmd_comm_step *step, int self,
                             const struct hspmd_local_buffer *in, const struct hspmd_local_buffer *out,
                             const struct hspmd_row_choice *choice, uint64_t tag, struct hspmd_error *err);
/* The most bytes of scratch buffers that it uses at once, whatever is chosen. -1 and err: memory. */
int64_t hspmd_comm_rows_scratch(const struct hspmd_transfer *transfer, const struct hspmd_comm_step *step, int self,
                                struct hspmd_error *err);
/* Sums in member order (reduce.c). */
int hspmd_comm_reduce_scatter(struct hspmd_comm *c, const struct hspmd_joint *j, uint64_t tag, struct hspmd_error *err);
int hspmd_comm_all_reduce(struct hspmd_comm *c, const struct hspmd_joint *j, uint64_t tag, struct hspmd_error *err);
/* Such a sum by passing partial sums along the members (chain.c). ranges: the pieces of each range, which this frees; one range, whose
 * total all members get in `out`, both parts being rows in host memory, or one per member, which gets its total. members: devices. */
struct hspmd_chain_members {
	const int *member;
	int count, self;
};
int hspmd_comm_chain(struct hspmd_comm *c, const struct hspmd_chain_members *members, const struct hspmd_local_buffer *in,
                     const struct hspmd_local_buffer *out, struct hspmd_pieces *ranges, int range_count, uint64_t tag,
                     struct hspmd_error *err);
/* Bytes of scratch buffers for the sums of a chain whose longest range has so many bytes, without those of the totals that come back. */
int64_t hspmd_comm_chain_scratch(size_t element_bytes, size_t bytes);
/* Sums that are made in several places, with the bits of hspmd_comm_add: `sum` has elements of sum_bytes, which is more than those of the
 * values if these are summed in a wider type (reduce_kernel.c). */
size_t hspmd_comm_sum_bytes(size_t element_bytes);
void hspmd_comm_sum_begin(enum hspmd_dtype dtype, void *sum, const void *values, size_t elements, size_t element_bytes);
void hspmd_comm_sum_add(enum hspmd_dtype dtype, void *sum, const void *values, size_t elements);
void hspmd_comm_sum_end(enum hspmd_dtype dtype, void *values, const void *sum, size_t elements, size_t element_bytes);
/* dst[i] = src[0][i] + src[1][i] + ... from left to right, in F32 for BF16; dst may be one of the sources (reduce_kernel.c). */
void hspmd_comm_add(enum hspmd_dtype dtype, void *dst, const void *const *src, int sources, size_t elements);

#endif
