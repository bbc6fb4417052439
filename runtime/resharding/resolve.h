/* SPDX-License-Identifier: Apache-2.0 */
/* Resolution: from a tensor's layout (source annotation) to the layout it must get (destination annotation), as communication
 * (HSPMD, arXiv 2504.20490, section 5).
 *
 * Total: every legal pair has an answer. A partial source is reduced first; for a partial destination, one addend gets the value and the
 * others zero. Among the answers, the cheapest by the given link costs is taken. All duplicates of a destination element are bit-identical:
 * an element is summed in one place (or in the same order everywhere) and then distributed.
 *
 * A transfer is a list of steps over numbered values. Value 0 is the source, value value_count - 1 the destination (they are the same value
 * if nothing has to be done: value_count 1, step_count 0); the values between are temporaries. `layout[v]` lists what every device holds of
 * value v. Steps run in order; steps that write the same value have disjoint devices or disjoint boxes. A device takes part in the steps
 * that have it as a member.
 *
 * If only the rows of a device's experts count in an annotation (annotation.h), it may be cheaper to send these alone: to the devices that
 * have their experts (dispatch), and sums of results back (combine). Which they are is decided while the program runs, by the choice that
 * sender and receiver both know: of all rows that a device holds on the side of the experts it also holds the choice. That is so only if
 * both sides of each message do; else all rows are sent, as are those of devices whose programs cannot choose. Both sides count the rows,
 * and messages have just their length. A program's memory is that for all rows. */
#ifndef HSPMD_RESHARDING_RESOLVE_H
#define HSPMD_RESHARDING_RESOLVE_H

#include "common/format/collective_cost.h"
#include "runtime/annotation/annotation.h"

enum hspmd_comm_kind {
	HSPMD_COMM_COPY,           /* every member copies its box (in equals out) from input to output value; no peer */
	HSPMD_COMM_ZERO,           /* every member's output box is filled with zeros (addends of a partial destination) */
	HSPMD_COMM_SEND_RECEIVE,   /* member 0 -> member 1: in[0] is out[1]; in[1] and out[0] are empty */
	HSPMD_COMM_ALL_REDUCE,     /* every member has the same box and gets the sum over all members */
	HSPMD_COMM_REDUCE_SCATTER, /* every member has the same input box and gets its output box (any, or none) of the sum; disjoint */
	HSPMD_COMM_ALL_GATHER,     /* output box = union of the members' input boxes (any, or none); disjoint */
	HSPMD_COMM_ALL_TO_ALL,     /* member i sends to member j the intersection of i's input and j's output box */
	HSPMD_COMM_BATCHED,        /* the listed moves */
	HSPMD_COMM_DISPATCH, /* the listed moves, of those rows only that chose an expert of the receiver; others are left as they are */
	HSPMD_COMM_COMBINE,  /* the listed moves, of those rows only that chose an expert of the sender; every element of the outputs
	                              becomes the sum of what comes, in the order of the senders */
	HSPMD_COMM_KIND_COUNT
};
extern const char *const hspmd_comm_kind_names[]; /* "copy", "zero", "send-receive", "all-reduce", ... */

struct hspmd_move {
	int from, to; /* devices; equal: a local copy */
	struct hspmd_box box;
	int add; /* 1: the receiver adds to its contents, after all moves with add 0, in the order of the list */
};

/* Experts [lo, hi). */
struct hspmd_expert_range {
	int64_t lo, hi;
};

struct hspmd_comm_step {
	enum hspmd_comm_kind kind;
	int input, output; /* values */
	int member_count;
	int *members;          /* devices; for lists of moves all that send or receive */
	struct hspmd_box *in;  /* per member, for collectives: the part of the input that takes part */
	struct hspmd_box *out; /* per member */
	int move_count;
	struct hspmd_move *moves; /* BATCHED: ordered by (from, to); one message per pair of devices carries all its moves. The addends of
	                             one element are in the same order on every device that sums them. DISPATCH, COMBINE: ordered by (from,
	                             to) and place; of whole rows */
	struct hspmd_expert_range *experts; /* DISPATCH, COMBINE: per member; NULL for others */
	int64_t expert_count;               /* of all members and others */
	int per_token;                      /* experts that each row chooses */
	double seconds;           /* predicted; for --explain */
	enum hspmd_collective_form form; /* of all-reduce, reduce-scatter and all-gather: the one that `seconds` is of */
};

struct hspmd_layout {
	int device_count;
	int *devices;          /* ascending */
	struct hspmd_box *box; /* per device: the part of the value that it holds */
};

struct hspmd_transfer {
	struct hspmd_shape shape;
	size_t element_bytes;
	int value_count;
	struct hspmd_layout *layout; /* per value */
	int step_count;
	struct hspmd_comm_step *steps;
	double seconds; /* predicted */
	char *why;      /* one line for --explain: the choice and its alternatives */
	int refs;       /* number of further owners of this transfer, which will destroy it too; hspmd_transfer_destroy counts down */
};

/* Link costs between devices, for choosing: seconds(from, to, bytes) of one message. A NULL cost (or seconds) means that every link takes
 * 1e-5 s + bytes / 1e9. node (may be NULL: each device is alone) returns the number of a device's node: messages between its devices and
 * other nodes share the node's network, whose rate is network(context, node) bytes per second, or one link's rate if network is NULL or
 * returns 0. */
struct hspmd_link_cost {
	double (*seconds)(const void *context, int from, int to, double bytes);
	const void *context;
	int (*node)(const void *context, int device);
	double (*network)(const void *context, int node);
	/* Devices of one class have equal links to devices of one class on other nodes, so that the messages of large collectives can be
	 * counted by class. NULL, or -1 for any device: not known, every pair counts alone. */
	int (*device_class)(const void *context, int device);
	/* Seconds for which a device waits for the choice before it can send chosen rows alone (DISPATCH, COMBINE); below 0: its programs
	 * cannot. NULL: none can. */
	double (*choice_seconds)(const void *context, int device);
	/* Returns true if the device gathers and sums with others of this kind around a ring. NULL: none does. */
	bool (*rings)(const void *context, int device);
	int whole_dims;  /* the transfer cuts no value along the first so many dimensions where neither annotation does; 0: along any */
	double together; /* so many times a message's bytes travel in it, because those of other tensors join it; 0: alone */
	struct hspmd_resolve_cache *cache; /* earlier answers under this cost; NULL: none */
};

/* Cache of answers: a model has hundreds of tensors but few different reshards. Answers are kept by shape and annotations. For one cost, in
 * one thread. May be destroyed before the transfers that came from it. */
struct hspmd_resolve_cache;
struct hspmd_resolve_cache *hspmd_resolve_cache_create(void); /* NULL: memory */
void hspmd_resolve_cache_clear(struct hspmd_resolve_cache *c); /* forgets all answers */
void hspmd_resolve_cache_destroy(struct hspmd_resolve_cache *c);

/* Costs between a cluster's devices, by their indexes. The cluster must outlive the result. */
struct hspmd_cluster;
struct hspmd_link_cost hspmd_link_cost_of_cluster(const struct hspmd_cluster *c);

/* NULL and err if either annotation is illegal for the shape. The caller destroys the result; with a cache it may be shared, so it is
 * read-only. */
struct hspmd_transfer *hspmd_resolve(const struct hspmd_shape *shape, size_t element_bytes, const struct hspmd_annotation *source,
                                     const struct hspmd_annotation *destination, const struct hspmd_link_cost *cost,
                                     struct hspmd_error *err);
void hspmd_transfer_destroy(struct hspmd_transfer *t);
struct hspmd_transfer *hspmd_transfer_copy(const struct hspmd_transfer *t); /* a copy that may be changed; NULL: memory */
/* Returns true if the steps of both transfers can be joined (runtime/comm/comm.h), and the same devices hold their sources and their
 * destinations. */
bool hspmd_transfers_join(const struct hspmd_transfer *a, const struct hspmd_transfer *b);
/* Index of a device in a layout, -1: it holds nothing. */
int hspmd_layout_find(const struct hspmd_layout *layout, int device);

/* Batched planning over many tensors at once: who sends which slice to whom so that every device ends with the boxes it needs. Each needed
 * slice is moved once, and never if it is already local, over the fastest link (links up to a tenth slower count as equal). The load is
 * spread over senders: the busiest is within 2 % of the least possible over those links. Used by resolve, by plan changes and by recovery
 * (a holder may be any location of a copy). A device's needs may overlap, and so may a holder's boxes. */
struct hspmd_holding {
	int tensor; /* caller's number */
	int holder; /* device or other location */
	struct hspmd_box box;
};
struct hspmd_need {
	int tensor;
	int device;
	struct hspmd_box box;
};
struct hspmd_planned_move {
	int tensor, from, to; /* from == to: already local, listed so that the caller can copy it into its new buffer */
	struct hspmd_box box;
};
/* For qsort: by (from, to, tensor), then by the box's first corner. */
int hspmd_planned_move_order(const void *a, const void *b);
/* element_bytes[t]: element size of tensor t. The result is malloc'd, ordered by (from, to, tensor). -1 and err if some part of a need has
 * no holder (names tensor number and box). */
int hspmd_plan_moves(const struct hspmd_holding *have, size_t have_count, const struct hspmd_need *need, size_t need_count,
                     const size_t *element_bytes, const struct hspmd_link_cost *cost, struct hspmd_planned_move **moves, size_t *move_count,
                     struct hspmd_error *err);

#endif
