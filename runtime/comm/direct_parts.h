/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of direct communication share. Private to runtime/comm. */
#ifndef HSPMD_COMM_DIRECT_PARTS_H
#define HSPMD_COMM_DIRECT_PARTS_H

#include "runtime/comm/comm_parts.h"
#include "runtime/comm/direct.h"

/* ---- groups that were made (direct_cache.c) */

struct kept_group {
	struct kept_group *next;
	uint64_t key, made_of; /* who is in it; what it was made of: differs between two of the same members */
	const struct hspmd_group_ops *ops;
	struct hspmd_group *group; /* NULL: it was abandoned */
	int users;
};

/* `made_of` of the group with this key, 0: there is none. */
uint64_t hspmd_direct_held(struct hspmd_direct_cache *c, uint64_t key);
/* One more user of it; NULL: it is gone. */
struct kept_group *hspmd_direct_take(struct hspmd_direct_cache *c, uint64_t key, uint64_t made_of);
struct kept_group *hspmd_direct_make(struct hspmd_direct_cache *c, struct hspmd_device *dev, uint64_t key, const unsigned char *id, int rank, int size,
				     struct hspmd_error *err);
/* used: its calls may be under way. Broken, nobody has it any more; else it ends with its last user. */
void hspmd_direct_give(struct hspmd_direct_cache *c, struct kept_group *k, bool used, bool broken);
uint64_t hspmd_direct_id_hash(const unsigned char *id); /* never 0 */

/* ---- what this device takes part in */

struct direct_group {
	uint64_t key, order; /* who; hash of the tags of all its calls in a step, in their order */
	bool pair;
	int count, *ranks;   /* of a collective: ascending; of a pair: from, to */
	int self;            /* own place in it */
	unsigned char id[HSPMD_GROUP_ID_BYTES]; /* to make it of, where this one is to say; else zeros */
	struct kept_group *made;                /* NULL: it is not direct */
};

/* How members of unequal parts gather or scatter. */
enum direct_way { DIRECT_EVEN, DIRECT_PADDED, DIRECT_GROUPED };

/* A collective step of the program. */
struct direct_step {
	const struct hspmd_comm_step *step;
	int group; /* number */
	enum direct_way way;
};

/* A piece of the device's memory; what reads or writes it beside the device's own order is call `ticket` of a group. */
struct direct_buffer {
	struct direct_buffer *next;
	char *data;
	size_t size;
	bool used;
	struct kept_group *group; /* NULL: nobody does */
	uint64_t ticket;
};

/* The user's memory that a call reads or writes. */
struct direct_span {
	const char *data;
	size_t bytes;
	struct kept_group *group;
	uint64_t ticket;
};

struct hspmd_direct {
	struct hspmd_direct_options o;
	char kind[HSPMD_GROUP_KIND_BYTES];
	uint64_t place; /* of two members that have the same one NCCL takes only one */
	struct direct_group *groups;
	size_t group_count, group_capacity;
	struct direct_step *steps; /* ascending by pointer */
	size_t step_count, step_capacity;
	struct direct_buffer *buffers;
	struct direct_span *spans;
	size_t span_count, span_capacity;
	bool met, watched;
};

/* ---- running (direct_run.c, direct_pair.c) */

struct direct_buffer *hspmd_direct_buffer(struct hspmd_direct *d, size_t bytes, struct hspmd_error *err);
/* It may be used again: after that call of the group; group NULL: in the device's own order. NULL buffer is fine. */
void hspmd_direct_buffer_give(struct direct_buffer *b, struct kept_group *group, uint64_t ticket);

/* That a call uses this memory, until it is joined. */
int hspmd_direct_note(struct hspmd_direct *d, struct kept_group *group, const void *data, size_t bytes, uint64_t ticket, struct hspmd_error *err);
/* The device goes on only after the calls that use [data, data + bytes); NULL: all. */
int hspmd_direct_join(struct hspmd_direct *d, const void *data, size_t bytes, struct hspmd_error *err);

/* Is there a group for a collective step? */
bool hspmd_direct_takes(const struct hspmd_direct *d, const struct hspmd_comm_step *step);
/* A collective step: 1 enqueued (see hspmd_direct_join), 0 it is not direct, -1 and err. */
int hspmd_direct_collective(struct hspmd_direct *d, const struct hspmd_comm_step *step, int self, const struct hspmd_part *in, const struct hspmd_part *out,
			    struct hspmd_error *err);
/* Is what one device sends to another direct? NULL: no. */
struct direct_group *hspmd_direct_pair(const struct hspmd_direct *d, int from, int to);
/* The moves between a pair that add, or do not, as one message. */
int hspmd_direct_send(struct hspmd_direct *d, struct direct_group *g, const struct hspmd_move *moves, size_t count, int from, int to, bool add,
		      const struct hspmd_part *in, struct hspmd_error *err);
/* Let it come: to where it belongs (out->data known, one contiguous box, no addition), else into a buffer. */
int hspmd_direct_receive(struct hspmd_direct *d, struct direct_group *g, const struct hspmd_move *moves, size_t count, int from, int to, bool add, bool early,
			 const struct hspmd_part *out, struct direct_buffer **buffer, uint64_t *ticket, struct hspmd_error *err);
/* It is needed now; gives the buffer back. */
int hspmd_direct_unpack(struct hspmd_direct *d, struct direct_group *g, const struct hspmd_move *moves, size_t count, int from, int to, bool add,
			const struct hspmd_part *out, struct direct_buffer *buffer, uint64_t ticket, struct hspmd_error *err);

#endif
