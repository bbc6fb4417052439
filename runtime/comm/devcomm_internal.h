/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of device-to-device communication. Private to runtime/comm. */
#ifndef HSPMD_COMM_DEVCOMM_INTERNAL_H
#define HSPMD_COMM_DEVCOMM_INTERNAL_H

#include "runtime/comm/comm_internal.h"
#include "runtime/comm/devcomm.h"

/* ---- created communicators (communicator_cache.c) */

struct cached_communicator {
	struct cached_communicator *next;
	uint64_t key, origin; /* key: hash of the members; origin: hash of the unique id, which differs between two communicators of the
	                         same members */
	const struct hspmd_communicator_ops *ops;
	struct hspmd_communicator *group; /* NULL: aborted */
	int users;
};

/* The `origin` of the communicator with this key; 0: there is none. */
uint64_t hspmd_communicator_cached_origin(struct hspmd_communicator_cache *c, uint64_t key);
/* Add a user; NULL: it no longer exists. */
struct cached_communicator *hspmd_communicator_acquire(struct hspmd_communicator_cache *c, uint64_t key, uint64_t origin);
struct cached_communicator *hspmd_communicator_create(struct hspmd_communicator_cache *c, struct hspmd_device *dev, uint64_t key,
                                                      const unsigned char *id, int rank, int size, struct hspmd_error *err);
/* used: its calls may still be running. broken: it is aborted and nobody gets it any more; otherwise it is freed with its last user. */
void hspmd_communicator_release(struct hspmd_communicator_cache *c, struct cached_communicator *k, bool used, bool broken);
uint64_t hspmd_communicator_id_hash(const unsigned char *id); /* never 0 */

/* ---- the groups that this device is in */

struct devcomm_group {
	uint64_t key, order; /* key: hash of the members; order: hash of the tags of all its calls in a step, in their order */
	bool pair;
	int count, *ranks;                             /* of a collective: ascending; of a pair: sender, receiver */
	int self;                                      /* index of this device among the ranks */
	unsigned char id[HSPMD_COMMUNICATOR_ID_BYTES]; /* unique id from which the communicator is created, if this member provides it;
	                                                  otherwise zeros */
	struct cached_communicator *made;              /* NULL: the group uses the transport */
};

/* A collective step of the program. */
struct devcomm_step {
	const struct hspmd_comm_step *step;
	int group; /* number of its group */
	enum hspmd_collective_form form; /* how a group with unequal parts gathers or scatters */
};

/* A piece of device memory. If a call reads or writes it outside the device's own order, that is call `ticket` of `group`. */
struct devcomm_buffer {
	struct devcomm_buffer *next;
	char *data;
	size_t size;
	bool used;
	struct cached_communicator *group; /* NULL: no such call */
	uint64_t ticket;
};

/* Memory of the caller that a call reads or writes. */
struct devcomm_span {
	const char *data;
	size_t bytes;
	struct cached_communicator *group;
	uint64_t ticket;
};

struct hspmd_devcomm {
	struct hspmd_devcomm_options o;
	char kind[HSPMD_COMMUNICATOR_KIND_BYTES];
	uint64_t device_id; /* NCCL accepts only one of two members with the same device id */
	struct devcomm_group *groups;
	size_t group_count, group_capacity;
	struct devcomm_step *steps; /* ascending by pointer */
	size_t step_count, step_capacity;
	struct devcomm_buffer *buffers;
	struct devcomm_span *spans;
	size_t span_count, span_capacity;
	bool met, watched;
	atomic_uint_least64_t sent_bytes;
};

/* ---- memory (devcomm_memory.c) */

/* writer: the group whose next call writes the buffer first, in whose order it may have been used before; NULL: the device. */
struct devcomm_buffer *hspmd_devcomm_buffer(struct hspmd_devcomm *d, size_t bytes, const struct cached_communicator *writer,
                                            struct hspmd_error *err);
/* Make the buffer available for reuse after call `ticket` of the group; group NULL: in the device's own order. NULL buffer is fine. */
void hspmd_devcomm_buffer_release(struct devcomm_buffer *b, struct cached_communicator *group, uint64_t ticket);

/* Note that a call uses this memory until hspmd_devcomm_stream_wait. */
int hspmd_devcomm_note_use(struct hspmd_devcomm *d, struct cached_communicator *group, const void *data, size_t bytes, uint64_t ticket,
                           struct hspmd_error *err);
/* Order later device work after the calls that use [data, data + bytes); NULL: all calls. */
int hspmd_devcomm_stream_wait(struct hspmd_devcomm *d, const void *data, size_t bytes, struct hspmd_error *err);

/* ---- communication (devcomm_collectives.c, devcomm_p2p.c) */

/* Returns true if a group runs this collective step. */
bool hspmd_devcomm_has_step(const struct hspmd_devcomm *d, const struct hspmd_comm_step *step);
/* Run a collective step, of several tensors as few launches; the first tensor's step is the one that was announced. 1 enqueued (see
 * hspmd_devcomm_stream_wait), 0 no group runs it, -1 and err. */
int hspmd_devcomm_collective(struct hspmd_devcomm *d, const struct hspmd_joint *j, struct hspmd_error *err);
/* Exchange rows of `row` elements between the members of a step: send[m] of them to member m, which begin behind those to the members
 * before it, and come[m] from it likewise; not of this device to itself. Later device work is ordered after it. 1, or 0: no group can, or
 * -1 and err. */
int hspmd_devcomm_exchange(struct hspmd_devcomm *d, const struct hspmd_comm_step *step, const void *from, const int64_t *send, void *to,
                           const int64_t *come, size_t row, enum hspmd_dtype dtype, struct hspmd_error *err);
/* The group for messages from one device to another; NULL: these use the transport. */
struct devcomm_group *hspmd_devcomm_pair(const struct hspmd_devcomm *d, int from, int to);
/* Send the moves between a pair that add, or those that do not, as one message. */
int hspmd_devcomm_send(struct hspmd_devcomm *d, struct devcomm_group *g, const struct hspmd_move_list *moves, int from, int to, bool add,
                       const struct hspmd_local_buffer *in, struct hspmd_error *err);
/* Receive such a message: directly to its destination (if out->data is known, and it is one contiguous box without addition), otherwise
 * into a buffer. */
int hspmd_devcomm_receive(struct hspmd_devcomm *d, struct devcomm_group *g, const struct hspmd_move_list *moves, int from, int to, bool add,
                          bool early, const struct hspmd_local_buffer *out, struct devcomm_buffer **buffer, uint64_t *ticket,
                          struct hspmd_error *err);
/* Complete the receive: order later work after it, unpack and release the buffer. */
int hspmd_devcomm_unpack(struct hspmd_devcomm *d, struct devcomm_group *g, const struct hspmd_move_list *moves, int from, int to, bool add,
                         const struct hspmd_local_buffer *out, struct devcomm_buffer *buffer, uint64_t ticket, struct hspmd_error *err);

#endif
