/* SPDX-License-Identifier: Apache-2.0 */
/* Submeshes: sets of devices that may form one stage, with tables of all that the search needs to know about them for one micro-batch.
 * Private to the solver. */
#ifndef HSPMD_SEARCH_SUBMESH_H
#define HSPMD_SEARCH_SUBMESH_H

#include "controller/solver/cost/costs.h"
#include "controller/solver/search/device_classes.h"
#include "controller/solver/search/partition_slack.h"
#include "controller/solver/search/request.h"

#define HSPMD_STAGES_MAX 64
#define HSPMD_SUBMESHES_MAX 64
#define HSPMD_SIZES_MAX 8     /* most distinct sizes of activations between layers; other sizes count as the next larger one */
#define HSPMD_RANGE_LEVELS 12 /* number of powers of two: models of up to 4095 layers */

/* The ways in which a stage keeps what its forward passes save: with each recomputation on the devices and, if they can offload, in the
 * host's memory. */
#define HSPMD_SAVING_WAYS (2 * HSPMD_RECOMPUTE_KINDS)
static inline enum hspmd_recompute hspmd_way_recompute(int way)
{
	return (enum hspmd_recompute)(way % HSPMD_RECOMPUTE_KINDS);
}
static inline bool hspmd_way_offloads(int way)
{
	return way >= HSPMD_RECOMPUTE_KINDS;
}

/* tp devices of one device class in one node. Arrays are prefix sums over layers, with layer_count + 1 elements: layers [a, b) have x[b]
 * - x[a]. */
struct hspmd_submesh {
	int device_class, tp;
	double share;
	double usable_bytes;                 /* bytes of a device that weights and activations may fill */
	double host_bytes;                   /* of its host's memory that what is offloaded may fill; 0: it cannot offload */
	double *params, *vectors;            /* number of weights on one device; of those that ZeRO does not divide */
	unsigned char ways[HSPMD_SAVING_WAYS]; /* those that are allowed, from the least work on */
	int way_count, leanest;                /* leanest: that which keeps the fewest bytes on the device */
	bool sequence[HSPMD_RECOMPUTE_KINDS];  /* with this recomputation stages have sequence parallelism */
	double *work[HSPMD_SAVING_WAYS];       /* seconds per micro-batch, forward, backward and recomputation */
	double *forward;
	double *saved[HSPMD_SAVING_WAYS];      /* bytes per micro-batch, on the device; */
	double *offloaded[HSPMD_SAVING_WAYS];  /* ... in the host's memory; NULL: none */
	double *deferred[HSPMD_SAVING_WAYS];   /* bytes per micro-batch whose gradients of weights are deferred, instead of saved */
	double *resident;                      /* bytes, for any number of micro-batches in flight */
	double *transient[HSPMD_RANGE_LEVELS]; /* not sums: transient[j][a] is the most that one of the layers [a, a + 2^j) needs while it
	                                          runs; */
	double *workspace[HSPMD_RANGE_LEVELS]; /* ... and needs within operators, which is beside all others */
	double recomputed[HSPMD_SAVING_WAYS];  /* most bytes that one layer needs while it runs, of those that need more if they are
	                                     recomputed or offloaded */
	/* The same with what the layers up to it have saved, of the whole model: peak[way][j][a] of the layers [a, a + 2^j). */
	double *peak[HSPMD_SAVING_WAYS][HSPMD_RANGE_LEVELS];
	double rate;                              /* no pipeline runs more micro-batches per second than the sum of its submeshes' rates */
};

/* How pipelines are placed on nodes: the stages of each pipeline together, so that activations stay inside a node, or the copies of each
 * stage together, so that gradients are summed inside a node before they leave it. */
enum hspmd_placement { HSPMD_PLACE_PIPELINES, HSPMD_PLACE_STAGES, HSPMD_PLACEMENT_COUNT };

/* What stages of drafts offload whose devices can: nothing; activations where that is worth it; and the optimizer's state, always. */
enum hspmd_draft_offload { HSPMD_DRAFT_OFFLOADS_NOTHING, HSPMD_DRAFT_OFFLOADS_ACTIVATIONS, HSPMD_DRAFT_OFFLOADS_ALL };

/* Returns true if the stage's passes take less time with sequence parallelism, by one of its layers. */
bool hspmd_sequence_is_faster(struct hspmd_costs *c, const struct hspmd_stage *s, int micro_batch);

#define HSPMD_ROOMS 1024

/* What memory is known to allow layers from a certain one on, on a stage of a submesh and of so many micro-batches in flight. From the ways
 * of the least work on: the fewest and the most layers (their ends) for which it is known that this is the first way in which they fit. */
struct hspmd_room {
	uint64_t key;
	short unfit; /* the fewest that fit in no way; 0: the place is free */
	short from[HSPMD_RECOMPUTE_KINDS], to[HSPMD_RECOMPUTE_KINDS];
	struct hspmd_partition_slack slack_unfit, slack_from[HSPMD_RECOMPUTE_KINDS], slack_to[HSPMD_RECOMPUTE_KINDS];
};

struct hspmd_submesh_tables {
	bool is_view; /* all but the boundaries is that of others */
	struct hspmd_costs *costs;
	const struct hspmd_device_classes *device_classes;
	const struct hspmd_runtime_caps *caps;
	int micro_batch, layers;
	enum hspmd_schedule schedule;   /* schedule of the drafts; set by the caller, initially 1f1b */
	enum hspmd_draft_offload offload;
	enum hspmd_placement placement; /* that partitions are made for; set by the caller, initially of pipelines */
	double *weights; /* prefix sums of w(l) of submesh.c: those of layers [a, b) are weights[b] - weights[a], of all layers 1 */
	double alike; /* W of submesh.c, at most 1: how similar the submeshes' layer times are, as fractions of their totals */
	int submesh_count;
	struct hspmd_submesh submeshes[HSPMD_SUBMESHES_MAX];
	double *storage;
	int size_count;     /* number of distinct activation sizes */
	int *size_of;       /* per layer: index into size_bytes */
	double *size_bytes; /* bytes per micro-batch */
	/* Per device class: bytes per second between its nodes, or within its node if there is only one, if all of a node's devices send.
	 * INFINITY: no limit; 0: there is no link. */
	double link_rate[HSPMD_DEVICE_CLASSES_MAX];
	double *boundaries; /* cache of hspmd_boundary_seconds */
	/* By whether transfers hide, placement and number of stages: how much slower than conceivable the slowest stage of the last
	 * partition was (partition.c). 0: there was none; INFINITY: it did not fit. */
	double guess[2][HSPMD_PLACEMENT_COUNT][HSPMD_STAGES_MAX + 1];
	struct hspmd_room *rooms; /* what is known of memory, by a hash; each has one place (partition_memory.c) */
	int *like_from;           /* per layer: the first one from which on all up to it need the same memory */
	bool steady;              /* but for the last layer, activations are of one size, and no layer shares weights with one before it */
	int boundary_classes;
};

/* Make the tables for one micro-batch, of drafts that offload this; the arguments must outlive them. Returns NULL with err
 * on failure. */
struct hspmd_submesh_tables *hspmd_submesh_tables_new(struct hspmd_costs *costs, const struct hspmd_device_classes *device_classes,
                                                      const struct hspmd_runtime_caps *caps, int micro_batch,
                                                      enum hspmd_draft_offload offload, struct hspmd_error *err);
/* The same tables for one thread, with these costs, a view of theirs: boundaries that are computed are the view's, and so are `placement`
 * and `schedule`. NULL: memory. t must outlive the result, which is destroyed like others. */
struct hspmd_submesh_tables *hspmd_submesh_tables_view(const struct hspmd_submesh_tables *t, struct hspmd_costs *costs);
void hspmd_submesh_tables_destroy(struct hspmd_submesh_tables *t);

/* Upper bound on the micro-batches per second of any plan of `available` devices of each device class, if its devices wait for one
 * another as those of a plan on the whole cluster do. */
double hspmd_submesh_tables_rate(const struct hspmd_submesh_tables *t, const int *available);

/* Seconds to send a layer's activation (of size number `size`) from submesh a's device to submesh b's, and its gradient back; in one node
 * or not; with `queue` pipelines that send from the node at the same time. Returns INFINITY if there is no link. */
double hspmd_boundary_seconds(struct hspmd_submesh_tables *t, int a, int b, bool same_node, int queue, int size);

#endif
