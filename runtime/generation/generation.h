/* SPDX-License-Identifier: Apache-2.0 */
/* A generation as one worker sees it: the plan's cluster and members, this device's program, its transports, and the memory that holds
 * its part of the state. A generation is prepared (while the previous one may still train), started, used, and destroyed as a whole. */
#ifndef HSPMD_GENERATION_GENERATION_H
#define HSPMD_GENERATION_GENERATION_H

#include <jansson.h>
#include <stdatomic.h>

#include "runtime/exec/execute.h"
#include "runtime/generation/address_exchange.h"
#include "runtime/generation/checkpoint_placement.h"
#include "runtime/generation/state_transfer.h"
#include "runtime/input/data.h"
#include "runtime/program/parameter_layout.h"
#include "runtime/program/program_set.h"

/* What stays the same for the lifetime of a worker. */
struct hspmd_worker_setup {
	struct hspmd_job *job;
	struct hspmd_model *model;
	struct hspmd_graph_source source;
	struct hspmd_data *data, *valid; /* NULL: the model reads its data itself, or no validation loss is measured */
	struct hspmd_sample_source samples, valid_samples;
	int64_t valid_count; /* of validation samples; 0: no validation loss is measured */
	struct hspmd_device *device;
	char *address; /* "n0:1" */
	char *node;
	char *output;                                   /* output folder */
	struct hspmd_communicator_cache *communicators; /* of the device, kept across generations; NULL if the device has none */
	char *transport;                                /* name of the transport; NULL: the best that is available */
	char *memory;                                   /* the run's folder in memory; NULL: nothing outlives this process */
	double timeout_s;                               /* of one wait for a peer */
};

struct hspmd_member_moves {
	struct hspmd_planned_move *list; /* that this member sends or receives */
	size_t count;
};

struct hspmd_generation {
	const struct hspmd_worker_setup *setup;
	int number;
	int replicas; /* copies on other nodes of state that only one worker has */
	int keep;     /* number of nodes that remain after any shrink by count (common/losses.h) */
	struct hspmd_cluster *cluster;
	struct hspmd_plan *plan;
	int member_count;
	char (*members)[64]; /* device addresses by rank */
	int rank;            /* own rank */
	int *rank_of;        /* by device number of the cluster; -1: not a member */
	int *voters, voter_count;
	struct hspmd_program_set *programs;            /* of the plan and its shorter plans, at the job's lengths */
	const struct hspmd_program *program;           /* of the plan itself, which says where the state is */
	const struct hspmd_parameter_layouts *layouts; /* the program's */
	struct hspmd_transport *transport;             /* NULL if there is one member */
	struct hspmd_transport *overlap_transport;     /* a second transport, for communication that overlaps computation */
	struct hspmd_devcomm *devcomm[2];            /* device-to-device communication that replaces each of these transports; NULL: none */
	struct hspmd_address own_address;            /* of the transports and of devcomm */
	struct hspmd_address_list addresses;         /* of all members; empty until they have been exchanged */
	struct hspmd_checkpoint_placement placement; /* of this generation's checkpoints */
	struct hspmd_transport *copy_transport;      /* carries copies of checkpoints to other nodes; NULL: none are sent */
	atomic_int abort;
	json_t *expected_live;                    /* whose state will probably be moved: `live` of `prepare`; NULL: it had none */
	bool moves_planned;                       /* expected_moves are those for it */
	struct hspmd_member_moves expected_moves; /* of that state */
	json_t *message;                          /* the `prepare` message, from which another process can prepare the same generation */
	struct hspmd_persistent *persistent;      /* the part of its memory that outlives this process; NULL: none */
	bool persistent_later;                    /* its memory is allocated when the previous generation no longer needs its own */
	void *host;                               /* of the host's memory, for what is offloaded; NULL: the executor allocates it */
	struct hspmd_executor *executor;          /* NULL until start */
};

/* Prepare from a `prepare` message (common/wire.h). reserved_bytes: device memory that another generation uses as long as it trains.
 * If the device has no memory for all the workspace that is fastest, operators get less of it (workspace_most of the program). NULL and err
 * on failure. */
struct hspmd_generation *hspmd_generation_prepare(const struct hspmd_worker_setup *setup, json_t *message, int64_t reserved_bytes,
                                                  struct hspmd_error *err);
/* Before it starts: operators get at most so many bytes (common/format/workspace_limit.h), if they do not get less already; 0: no limit. */
void hspmd_generation_limit_workspace(struct hspmd_generation *g, uint32_t most);
/* Take over the state of a process of this device that was killed, without connections. If the process had begun an update, the update
 * is completed. NULL and err: there is no such state, or it cannot be used; in the latter case it is not changed. */
struct hspmd_generation *hspmd_generation_revive(const struct hspmd_worker_setup *setup, struct hspmd_error *err);
/* Bytes of device memory that the generation will take. */
int64_t hspmd_generation_memory(const struct hspmd_generation *g);
/* Peak memory while training, including the checkpoint image if it uses the same memory. */
int64_t hspmd_generation_peak_bytes(const struct hspmd_generation *g);
/* Returns true if there are connections that take long to build, or so many members that even exchanging addresses takes a while. */
bool hspmd_generation_needs_preconnect(const struct hspmd_generation *g);
/* Learn the addresses of all members, with all of them (address_exchange.h). addresses: those that the controller has sent, as in `start`.
 * Blocks; no other thread may use the generation's transport meanwhile. Does nothing if they are known. */
int hspmd_generation_learn_addresses(struct hspmd_generation *g, json_t *addresses, struct hspmd_error *err);
/* All members call this when they have connected: each gets the value that the first one has, down a tree of their nodes. own: of the first
 * member. A new reference; NULL and err. */
json_t *hspmd_generation_pass_down(struct hspmd_generation *g, const json_t *own, struct hspmd_error *err);
/* Start to build the connections that take long, while the previous generation may still train. Does not block. */
int hspmd_generation_preconnect(struct hspmd_generation *g, struct hspmd_error *err);
/* Returns 1 if these connections are built, 0 if not yet, -1 with err on failure. */
int hspmd_generation_preconnected(struct hspmd_generation *g, struct hspmd_error *err);
/* Connect to the members, whose addresses are known. */
int hspmd_generation_connect(struct hspmd_generation *g, struct hspmd_error *err);
/* Returns true if the generation fits next to the previous generation's state, or if there is no such state (old NULL, or spilled),
 * since spilling could then free nothing. On a device that computes in host memory an allocation beyond the memory that the plan assumes
 * might succeed, so the plan's figure decides; on other devices the allocation itself shows whether it fits. */
bool hspmd_generation_fits(const struct hspmd_generation *g, const struct hspmd_generation *old);
/* Allocate the device memory. Of the previous generation (NULL: none), which no longer trains, only the state stays. May be retried
 * after a failure. */
int hspmd_generation_allocate(struct hspmd_generation *g, struct hspmd_generation *old, struct hspmd_error *err);
/* For devices without memory for two generations: move the state of a generation that no longer trains to host memory or, if the device
 * computes in host memory, to disk; it can still be read there. disk: this job's folder on the disk; NULL: none. If the process is
 * killed after this, the generation's state is lost. -1 and err: the state is where it was. */
int hspmd_generation_spill(struct hspmd_generation *g, const char *disk, struct hspmd_error *err);
/* Close the transports, which ends all waits; program, memory and state stay. No other thread may still use copy_transport
 * (worker_detach). */
void hspmd_generation_disconnect(struct hspmd_generation *g);
void hspmd_generation_destroy(struct hspmd_generation *g);
/* As hspmd_generation_destroy, but the memory that outlives the process stays for the next process. */
void hspmd_generation_detach(struct hspmd_generation *g);
/* Switch to the program of this step, which depends on its sequence length: that of the plan, or of the plan's `shorter` plans. If it is
 * another plan's than before, parameters must be gathered for it. NULL: of the longest steps, as validation has them. */
int hspmd_generation_use_step(struct hspmd_generation *g, const int64_t *step, struct hspmd_error *err);
/* Tokens of a step's samples, and which of the plan's plans it runs (hspmd_plan_for_length). */
int64_t hspmd_generation_step_tokens(const struct hspmd_generation *g, int64_t step);
int hspmd_generation_step_plan(const struct hspmd_generation *g, int64_t step);

/* Fill the state as the `start` message says (`state` object, and `step`, the next one): at random, or from the live state of the
 * previous generation (`old`; NULL: this worker has none) and from files. *report is filled on failure too. */
struct hspmd_load_report {
	int64_t local, peers, disk, shared; /* bytes by source; local: this node's memory */
	double move_s;                      /* all of it */
	double plan_s;                      /* of that, planning; 0: the moves were planned before */
	json_t *unreadable; /* { step, generation, file }: a shard that this node was expected to have and of which no copy here is intact;
	                       NULL: none. A new reference */
};
int hspmd_generation_load(struct hspmd_generation *g, struct hspmd_generation *old, json_t *state, int64_t step,
                          struct hspmd_load_report *report, struct hspmd_error *err);

/* The kinds of state that the optimizer has: the first of enum hspmd_state_kind. */
int hspmd_generation_state_kinds(const struct hspmd_generation *g);
int hspmd_generation_state_slot(const struct hspmd_program_state *s, int kind); /* -1: none */
/* The parts of the state that belong in this worker's shard of a checkpoint, *count of them; their data is on the device. The caller frees
 * the array; NULL: memory. */
struct hspmd_state_slice *hspmd_generation_slices(const struct hspmd_generation *g, size_t *count);
/* The model's graph, as other plans may use it; NULL if a search has annotated it for this plan. */
const struct hspmd_graph *hspmd_generation_plain_graph(const struct hspmd_generation *g);

/* Read or write one box of a state tensor, between this worker's memory and a packed host buffer. */
int hspmd_generation_get(struct hspmd_generation *g, int tensor, const struct hspmd_box *box, void *host, struct hspmd_error *err);
int hspmd_generation_put(struct hspmd_generation *g, int tensor, const struct hspmd_box *box, const void *host, struct hspmd_error *err);
/* Copy a box between two generations on the same device. 1; 0: `from` does not hold it here; -1 and err. */
int hspmd_generation_copy(struct hspmd_generation *to, struct hspmd_generation *from, int tensor, const struct hspmd_box *box,
                          struct hspmd_error *err);
/* Address of the box if it is contiguous in host memory, otherwise NULL. */
void *hspmd_generation_box_data(const struct hspmd_generation *g, int tensor, const struct hspmd_box *box);

#endif
