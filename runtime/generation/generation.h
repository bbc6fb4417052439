/* SPDX-License-Identifier: Apache-2.0 */
/* A generation as one worker sees it: the plan's cluster and members, this device's program, its transport, and the memory that holds its
 * share of the state. It is prepared (while the one before may still train), started, used, and thrown away whole. */
#ifndef HSPMD_GENERATION_GENERATION_H
#define HSPMD_GENERATION_GENERATION_H

#include <jansson.h>
#include <stdatomic.h>

#include "runtime/input/data.h"
#include "runtime/exec/execute.h"
#include "runtime/program/parameter_layout.h"
#include "runtime/generation/state_transfer.h"
#include "runtime/generation/checkpoint_placement.h"

/* What does not change over a worker's life. */
struct hspmd_worker_setup {
	struct hspmd_job *job;
	struct hspmd_model *model;
	struct hspmd_graph_source source;
	struct hspmd_data *data, *valid; /* valid NULL: the loss is measured on nothing else */
	struct hspmd_device *device;
	char *address; /* "n0:1" */
	char *node;
	char *output;                                   /* folder */
	struct hspmd_communicator_cache *communicators; /* of the device's, from generation to generation; NULL where it can have none */
	char *transport;                                /* name, NULL: the best there is */
	char *memory;                                   /* the run's folder in memory; NULL: nothing outlives this process */
	double timeout_s;                               /* of one wait for a peer */
};

struct hspmd_generation {
	const struct hspmd_worker_setup *setup;
	int number;
	int replicas; /* copies on other nodes of what only one worker has */
	int keep;     /* nodes that shrinks by count leave (common/losses.h) */
	struct hspmd_cluster *cluster;
	struct hspmd_plan *plan;
	int member_count;
	char (*members)[64]; /* device addresses by rank */
	int rank;            /* own */
	int *rank_of;        /* by device number of the cluster, -1 */
	int *voters, voter_count;
	struct hspmd_program *program;
	struct hspmd_program **at_length;            /* that at each of the job's lengths; NULL: it has none */
	struct hspmd_parameter_layouts *layouts;     /* of `plan`, over program->graph */
	struct hspmd_transport *transport;           /* NULL with one member */
	struct hspmd_transport *overlap_transport;   /* another, for what goes on beside computation */
	struct hspmd_devcomm *devcomm[2];            /* what of each goes straight between devices; NULL: nothing */
	struct hspmd_address own_address;            /* of all these */
	struct hspmd_checkpoint_placement placement; /* of its checkpoints */
	struct hspmd_transport *copy_transport;      /* carries them to other nodes; NULL: they are not sent */
	struct hspmd_address copy_address;
	atomic_int abort;
	json_t *message;                     /* `prepare`, from which another process can make the same */
	struct hspmd_persistent *persistent; /* what of it outlives this process; NULL: nothing */
	bool persistent_later;               /* its memory is taken when that of the generation before is not needed any more */
	struct hspmd_executor *executor;     /* from start on */
	struct hspmd_timeline *timeline;     /* NULL: nobody asked for it */
};

/* From a `prepare` message (common/wire.h). taken: bytes of the device's memory that are another's as long as that trains. NULL and err on
 * failure. */
struct hspmd_generation *hspmd_generation_prepare(const struct hspmd_worker_setup *setup, json_t *message, int64_t reserved_bytes,
                                                  struct hspmd_error *err);
/* What a process of this device that was killed had: its state, without connections. A step whose update it had begun is ended. NULL and
 * err: there is nothing, or it is of no use; then it is left alone. */
struct hspmd_generation *hspmd_generation_revive(const struct hspmd_worker_setup *setup, struct hspmd_error *err);
/* Bytes of device memory that it will take. */
int64_t hspmd_generation_memory(const struct hspmd_generation *g);
/* That it has at most while it trains: where checkpoints are written from an image in the same memory, with that. */
int64_t hspmd_generation_peak_bytes(const struct hspmd_generation *g);
/* Is there something that takes long to make? */
bool hspmd_generation_needs_preconnect(const struct hspmd_generation *g);
/* While the one before may still train: begin to make what takes long, with the members' addresses. Does not wait. */
int hspmd_generation_preconnect(struct hspmd_generation *g, json_t *addresses, struct hspmd_error *err);
/* Has it been made? 1, 0, -1. */
int hspmd_generation_preconnected(struct hspmd_generation *g, struct hspmd_error *err);
/* Connect to the members (addresses, copies: `start`'s arrays). */
int hspmd_generation_connect(struct hspmd_generation *g, json_t *addresses, json_t *copy_transport, struct hspmd_error *err);
/* Is there room for it beside the state of the generation before? Where there is none of that (NULL, or spilled) there is nothing to make
 * room by: true. A device whose memory is the host's could get more than the plan was promised; others tell when it is taken. */
bool hspmd_generation_fits(const struct hspmd_generation *g, const struct hspmd_generation *old);
/* Take the device's memory. Of the generation before (NULL: none), which trains no more, only the state stays. May be tried again. */
int hspmd_generation_allocate(struct hspmd_generation *g, struct hspmd_generation *old, struct hspmd_error *err);
/* Where a device has no room for two: the state of one that trains no more goes to host memory, or if that is the device's to the disk,
 * from where it can still be given. disk: this job's folder on it, NULL: there is none. A process that is killed from now on leaves nothing
 * of it. -1 and err: it is where it was. */
int hspmd_generation_spill(struct hspmd_generation *g, const char *disk, struct hspmd_error *err);
/* The transports are gone, waits end; program, memory and state stay. Nobody may use `copies` any more (worker_detach). */
void hspmd_generation_disconnect(struct hspmd_generation *g);
void hspmd_generation_destroy(struct hspmd_generation *g);
/* The same, but what outlives the process stays for the next. */
void hspmd_generation_detach(struct hspmd_generation *g);
/* Make ready for a step of the length that it has. *length: that. */
int hspmd_generation_use_length(struct hspmd_generation *g, int64_t step, int64_t *length, struct hspmd_error *err);

/* Fill the state from what `start` says (`state` object, and `step`, which comes next): at random, or from the live state of the generation
 * before (`old`, NULL when this worker has none) and from files. *report is filled also on failure. */
struct hspmd_load_report {
	int64_t local, peers, disk, shared; /* bytes by where they came from; local: this node's memory */
	double move_s;
	json_t *unreadable; /* { step, generation, file }: a shard that this node was said to have, and of which no copy here is good; NULL:
	                       none. A new reference */
};
int hspmd_generation_load(struct hspmd_generation *g, struct hspmd_generation *old, json_t *state, int64_t step,
                          struct hspmd_load_report *report, struct hspmd_error *err);

/* One box of a state tensor between this worker's memory and a packed host buffer. */
int hspmd_generation_get(struct hspmd_generation *g, int tensor, const struct hspmd_box *box, void *host, struct hspmd_error *err);
int hspmd_generation_put(struct hspmd_generation *g, int tensor, const struct hspmd_box *box, const void *host, struct hspmd_error *err);
/* From one generation's memory to another's of the same device. 1; 0: `from` does not hold it there; -1. */
int hspmd_generation_copy(struct hspmd_generation *to, struct hspmd_generation *from, int tensor, const struct hspmd_box *box,
                          struct hspmd_error *err);
/* Where the box lies in one piece of host memory; NULL: nowhere. */
void *hspmd_generation_box_data(const struct hspmd_generation *g, int tensor, const struct hspmd_box *box);

#endif
