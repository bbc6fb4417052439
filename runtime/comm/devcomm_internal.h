/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of direct communication share. Private to runtime/comm. */
#ifndef HSPMD_COMM_DEVCOMM_INTERNAL_H
#define HSPMD_COMM_DEVCOMM_INTERNAL_H

#include "runtime/comm/comm_internal.h"
#include "runtime/comm/devcomm.h"

/* ---- groups that were made (communicator_cache.c) */

struct cached_communicator {
	struct cached_communicator *next;
	uint64_t key, origin; /* who is in it; what it was made of: differs between two of the same members */
	const struct hspmd_communicator_ops *ops;
	struct hspmd_communicator *group; /* NULL: it was abandoned */
	int users;
};

/* `origin` of the group with this key, 0: there is none. */
uint64_t hspmd_communicator_cached_origin(struct hspmd_communicator_cache *c, uint64_t key);
/* One more user of it; NULL: it is gone. */
struct cached_communicator *hspmd_communicator_acquire(struct hspmd_communicator_cache *c, uint64_t key, uint64_t origin);
struct cached_communicator *hspmd_communicator_create(struct hspmd_communicator_cache *c, struct hspmd_device *dev, uint64_t key,
                                                      const unsigned char *id, int rank, int size, struct hspmd_error *err);
/* used: its calls may be under way. Broken, nobody has it any more; else it ends with its last user. */
void hspmd_communicator_release(struct hspmd_communicator_cache *c, struct cached_communicator *k, bool used, bool broken);
uint64_t hspmd_communicator_id_hash(const unsigned char *id); /* never 0 */

/* ---- what this device takes part in */

struct devcomm_group {
	uint64_t key, order; /* who; hash of the tags of all its calls in a step, in their order */
	bool pair;
	int count, *ranks;                             /* of a collective: ascending; of a pair: from, to */
	int self;                                      /* own place in it */
	unsigned char id[HSPMD_COMMUNICATOR_ID_BYTES]; /* to make it of, where this one is to say; else zeros */
	struct cached_communicator *made;              /* NULL: it is not direct */
};

/* How members of unequal parts gather or scatter. */
enum devcomm_algorithm { DEVCOMM_EVEN, DEVCOMM_PADDED, DEVCOMM_GROUPED };

/* A collective step of the program. */
struct devcomm_step {
	const struct hspmd_comm_step *step;
	int group; /* number */
	enum devcomm_algorithm algorithm;
};

/* A piece of the device's memory; what reads or writes it beside the device's own order is call `ticket` of a group. */
struct devcomm_buffer {
	struct devcomm_buffer *next;
	char *data;
	size_t size;
	bool used;
	struct cached_communicator *group; /* NULL: nobody does */
	uint64_t ticket;
};

/* The user's memory that a call reads or writes. */
struct devcomm_span {
	const char *data;
	size_t bytes;
	struct cached_communicator *group;
	uint64_t ticket;
};

struct hspmd_devcomm {
	struct hspmd_devcomm_options o;
	char kind[HSPMD_COMMUNICATOR_KIND_BYTES];
	uint64_t device_id; /* of two members that have the same one NCCL takes only one */
	struct devcomm_group *groups;
	size_t group_count, group_capacity;
	struct devcomm_step *steps; /* ascending by pointer */
	size_t step_count, step_capacity;
	struct devcomm_buffer *buffers;
	struct devcomm_span *spans;
	size_t span_count, span_capacity;
	bool met, watched;
};

/* ---- running (devcomm_collectives.c, devcomm_p2p.c) */

struct devcomm_buffer *hspmd_devcomm_buffer(struct hspmd_devcomm *d, size_t bytes, struct hspmd_error *err);
/* It may be used again: after that call of the group; group NULL: in the device's own order. NULL buffer is fine. */
void hspmd_devcomm_buffer_release(struct devcomm_buffer *b, struct cached_communicator *group, uint64_t ticket);

/* That a call uses this memory, until it is joined. */
int hspmd_devcomm_note_use(struct hspmd_devcomm *d, struct cached_communicator *group, const void *data, size_t bytes, uint64_t ticket,
                           struct hspmd_error *err);
/* The device goes on only after the calls that use [data, data + bytes); NULL: all. */
int hspmd_devcomm_stream_wait(struct hspmd_devcomm *d, const void *data, size_t bytes, struct hspmd_error *err);

/* Is there a group for a collective step? */
bool hspmd_devcomm_has_step(const struct hspmd_devcomm *d, const struct hspmd_comm_step *step);
/* A collective step: 1 enqueued (see hspmd_devcomm_stream_wait), 0 it is not direct, -1 and err. */
int hspmd_devcomm_collective(struct hspmd_devcomm *d, const struct hspmd_comm_step *step, int self, const struct hspmd_local_buffer *in,
                             const struct hspmd_local_buffer *out, struct hspmd_error *err);
/* Is what one device sends to another direct? NULL: no. */
struct devcomm_group *hspmd_devcomm_pair(const struct hspmd_devcomm *d, int from, int to);
/* The moves between a pair that add, or do not, as one message. */
int hspmd_devcomm_send(struct hspmd_devcomm *d, struct devcomm_group *g, const struct hspmd_move *moves, size_t count, int from, int to,
                       bool add, const struct hspmd_local_buffer *in, struct hspmd_error *err);
/* Let it come: to where it belongs (out->data known, one contiguous box, no addition), else into a buffer. */
int hspmd_devcomm_receive(struct hspmd_devcomm *d, struct devcomm_group *g, const struct hspmd_move *moves, size_t count, int from, int to,
                          bool add, bool early, const struct hspmd_local_buffer *out, struct devcomm_buffer **buffer, uint64_t *ticket,
                          struct hspmd_error *err);
/* It is needed now; gives the buffer back. */
int hspmd_devcomm_unpack(struct hspmd_devcomm *d, struct devcomm_group *g, const struct hspmd_move *moves, size_t count, int from, int to,
                         bool add, const struct hspmd_local_buffer *out, struct devcomm_buffer *buffer, uint64_t ticket,
                         struct hspmd_error *err);

#endif
