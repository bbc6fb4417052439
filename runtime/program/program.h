/* SPDX-License-Identifier: Apache-2.0 */
/* A program: what one device does in one training step, as a flat array of instructions on slots of memory. Executing it is one loop; what
 * `hspmd plan
 * --program` prints is what runs.
 *
 * Instructions [0, vote) compute gradients of all micro-batches in the order of the schedule and bring them to where the optimizer state
 * lies; the vote sums the step's totals over all devices; instructions [vote, end) change the state and bring parameters to where they are
 * used (DESIGN law 3). */
#ifndef HSPMD_PROGRAM_PROGRAM_H
#define HSPMD_PROGRAM_PROGRAM_H

#include "common/format/cluster.h"
#include "common/format/job.h"
#include "common/format/plan.h"
#include "runtime/device/device.h"
#include "runtime/sharding/spmd.h"
#include "runtime/model/build.h"

#define HSPMD_PROGRAM_MAX_LOSSES 512 /* the loss itself and one auxiliary loss a layer of experts */

#define HSPMD_PROGRAM_STEP_TRANSFERS                                                                                                       \
	(UINT64_C(1) << 19) /* transfers of micro-batches are numbered below, the step's from here on; fewer than 2^20 in all */

#define HSPMD_PROGRAM_MAX_TRANSFER_STEPS 64 /* of a transfer of several steps, as tags have them */

#define HSPMD_PROGRAM_ALIGN 64
#define HSPMD_PROGRAM_BUCKET ((int64_t)64 << 20)    /* bytes of gradients that travel together: far beyond where latency counts */
#define HSPMD_PROGRAM_BUCKET_MIN ((int64_t)1 << 20) /* enough of them to go as soon as their layers' backward passes are done */

/* Where a slot's bytes are. */
enum hspmd_arena_kind {
	HSPMD_ARENA_TRANSIENT, /* values of a step; offsets planned by liveness */
	HSPMD_ARENA_FIXED,     /* parameters, accumulated gradients, optimizer state: live as long as the program */
};

/* How a local part looks; shared by the slots of one value over micro-batches. */
struct hspmd_slot_type {
	int tensor; /* of the graph; -1: none (temporaries of a transfer have their tensor's) */
	enum hspmd_dtype dtype;
	struct hspmd_box box; /* of the full tensor */
	struct hspmd_shape full;
	size_t bytes;
	const struct hspmd_annotation
	        *annotation; /* how the tensor lies of which this is a part; borrowed. NULL: on its way between two such */
};

struct hspmd_slot {
	int slot_type;
	enum hspmd_arena_kind memory;
	int micro_batch; /* -1: the step's */
	size_t offset;   /* in its region; 64-byte aligned */
	int adjacent_to; /* fixed slots: the slot that must end where this begins, so that one message can carry both; -1: any */
	int aliases;     /* fixed slots: begins where that slot begins and has no bytes of its own; -1: none */
};

enum hspmd_instruction_kind {
	HSPMD_INSTRUCTION_READ, /* fill out[0] (tokens or targets) with samples of the micro-batch */
	HSPMD_INSTRUCTION_RUN,  /* an operator */
	HSPMD_INSTRUCTION_COMM, /* this device's part of a transfer's step */
	HSPMD_INSTRUCTION_NORM, /* in[0]: gradient; add its sum of squares to the step's total */
	HSPMD_INSTRUCTION_ADAM, /* in[0]: gradient; out: parameter, m, v */
};

struct hspmd_instruction {
	enum hspmd_instruction_kind kind;
	enum hspmd_opcode opcode;
	int micro_batch; /* -1: the step's */
	int layer;
	int schedule_index; /* which pass of the schedule; grows along the program */
	bool backward;
	int input_count, output_count;
	int in[HSPMD_OP_MAX_IO], out[HSPMD_OP_MAX_IO]; /* slots, -1: absent */
	unsigned accumulate;                           /* bit o: output o adds */
	const struct hspmd_op_attr *attr;              /* borrowed from the graph */
	const struct hspmd_transfer *transfer;         /* COMM; borrowed */
	int step;
	uint64_t tag;
	int peer_pipeline_rank, peer_schedule_index; /* between stages: the other side's pipeline rank, and the index of its schedule entry
	                                                that receives or sends this; -1: within a stage */
	bool sends;                                  /* this side is the one that sends */
	bool overlaps; /* COMM: what it brings is not wanted before the gradients are complete, so that it may go on until then */
};

/* One parameter's training state on this device. Slots -1: nothing of it here. */
struct hspmd_program_state {
	int tensor;       /* parameter, in the graph */
	const char *name; /* borrowed from the graph */
	bool decay;
	struct hspmd_local_shard shard; /* of the state annotation */
	int param, m, v;                /* slots; packed with share.box */
	int copy; /* the parameter in the type that operators use, where that is not its own; may be `used`; -1: none */
	int used; /* the parameter as the operators use it: param's slot, or another when the state is cut finer (ZeRO) or kept in a wider
	             type; -1: not used here */
	int grad; /* the summed gradient, packed with share.box */
};

struct hspmd_parameter_layouts;

struct hspmd_program {
	struct hspmd_graph *graph;               /* this device's pipeline; owned */
	struct hspmd_spmd *spmd;                 /* owned */
	struct hspmd_parameter_layouts *layouts; /* of parameters; owned */
	int device, pipeline, stage;             /* the first it is in; -1: none */
	bool overlaps; /* gradients are summed beside the backward passes of the layers before: the device computes in host memory */
	int pipeline_ranks, chunks;     /* pipeline ranks, and model chunks per device: the device is in every pipeline_ranks-th stage from
	                                   `stage` on (one unless interleaved) */
	int micro_batches, micro_batch; /* of the pipeline */
	struct hspmd_model_build_options how; /* what the graph was built for */
	int64_t first_sample;                 /* of the pipeline's first micro-batch within the global batch */
	size_t slot_type_count, slot_type_capacity, slot_count, slot_capacity, instruction_count, instruction_capacity;
	struct hspmd_slot_type *slot_types;
	struct hspmd_slot *slots;
	struct hspmd_instruction *instructions;
	size_t vote; /* index of the first instruction after it */
	int state_count;
	struct hspmd_program_state *states; /* every parameter of the model, graph order, also those not here */
	int *fixed_of_tensor;               /* slot of a parameter, its gradient or a loss in this stage, -1: none; while being built */
	struct hspmd_transfer **transfers;  /* of gradients and parameters; owned */
	size_t transfer_count, transfer_capacity;
	int schedule_index; /* being built */
	size_t arena_bytes, fixed_bytes, workspace_bytes,
	        message_bytes;              /* the last: buffers of messages, where the device computes in host memory */
	int loss_count;                     /* parts of the loss that this device counts (a duplicate elsewhere does not) */
	int loss[HSPMD_PROGRAM_MAX_LOSSES]; /* slots */
};

/* Where a model's graph comes from: the built-in families, or a user's own function. */
struct hspmd_graph_source {
	struct hspmd_graph *(*build)(void *context, const struct hspmd_model_build_options *how, struct hspmd_error *err);
	void *context;
	int layers;
	enum hspmd_precision precision; /* asked for: FP32 (0) or BF16; a plan computes in hspmd_plan_precision of it */
	bool documents;                 /* passed on in struct hspmd_model_build_options */
};
/* In fp32, without documents. The model is borrowed. */
struct hspmd_graph_source hspmd_graph_source_model(const struct hspmd_model *m);
/* As the job trains the model: what workers run, and what is printed and checked beforehand. The model is borrowed. */
struct hspmd_graph_source hspmd_graph_source_job(const struct hspmd_model *m, const struct hspmd_job *job);

/* Specialise for one device (number in the cluster). The plan must have been checked against the cluster. `ops`: the device's, for
 * workspace sizes; NULL: none counted. NULL and err when the plan cannot be run (names plan path, tensor, annotation). */
struct hspmd_program *hspmd_program_build(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                          const struct hspmd_cluster *cluster, int device, struct hspmd_device *dev,
                                          struct hspmd_error *err);
void hspmd_program_destroy(struct hspmd_program *p);

/* Its communication, in its order, and then that of `more` programs (the same at other lengths; NULL: none): of the passes (lane 0), or of
 * the step's sums and parameters (lane 1). malloc'd; NULL: memory. */
struct hspmd_devcomm_use;
struct hspmd_devcomm_use *hspmd_program_devcomm_uses(const struct hspmd_program *p, struct hspmd_program *const *more, int more_count,
                                                     int lane, size_t *count);

/* Bytes of the device's memory that running it takes. */
size_t hspmd_program_memory(const struct hspmd_program *p);

/* Is the device in this stage of its pipeline? */
bool hspmd_program_in_stage(const struct hspmd_program *p, int stage);

/* A slot as kernels see it. bases[region]: where the regions begin; NULL: data stays NULL. */
struct hspmd_view hspmd_program_slot_view(const struct hspmd_program *p, int slot, char *const *bases);

/* What an instruction that runs a kernel gives it; a NORM's sum has no data yet. attr is NULL where the executor decides it. */
void hspmd_program_kernel_args(const struct hspmd_program *p, const struct hspmd_instruction *in, char *const *bases,
                               struct hspmd_kernel_args *args);

/* An instruction a line, then the memory. malloc'd. */
char *hspmd_program_text(const struct hspmd_program *p, const struct hspmd_cluster *cluster);

/* Why this device communicates as it does: of every transfer that it takes part in, tensor, how it lies and must lie, the steps chosen and
 * what they were chosen over, with the times that the cluster's links promise. malloc'd. */
char *hspmd_program_explain(const struct hspmd_program *p);

/* ---- between the passes (program.c, specialise.c, gradient_sync.c, memory_plan.c) */
int hspmd_program_add_slot_type(struct hspmd_program *p, const struct hspmd_slot_type *slot_type, struct hspmd_error *err);
int hspmd_program_add_slot(struct hspmd_program *p, int slot_type, enum hspmd_arena_kind memory, int micro_batch, struct hspmd_error *err);
struct hspmd_instruction *hspmd_program_add_instruction(struct hspmd_program *p, enum hspmd_instruction_kind kind, struct hspmd_error *err);
/* This device's part of a transfer from slot `in` to slot `out` (either -1), with slots for its temporaries. */
struct hspmd_transfer_binding {
	int tensor;
	enum hspmd_dtype dtype; /* of what is moved */
	int in, out;            /* slots in and out: -1 where this device has none */
	int micro_batch, layer;
	bool backward, recomputed; /* again: a recomputation */
	uint64_t number;           /* of the transfer, the same on all devices */
	int peer_pipeline_rank, peer_schedule_index;
	bool sends; /* as in the instruction; peer_pipeline_rank -1: within a stage */
};
int hspmd_program_add_transfer(struct hspmd_program *p, const struct hspmd_transfer *t, const struct hspmd_transfer_binding *route,
                               struct hspmd_error *err);
/* `like` is one all-reduce each of some groups of devices: the same of a row of elements[k] in group k, in place. *hops: some groups do it
 * in several steps. The caller destroys it. NULL and err: memory. */
struct hspmd_transfer *hspmd_program_bucket(const struct hspmd_transfer *like, const int64_t *elements, const struct hspmd_link_cost *cost,
                                            bool *hops, struct hspmd_error *err);
/* The micro-batches' part. */
int hspmd_program_specialise(struct hspmd_program *p, const struct hspmd_plan *plan, struct hspmd_error *err);
/* Make pairs of operators one where the device's kind has a kernel for both, and tables that many calls share. Environment: HSPMD_UNFUSED
 * names the operators to do without (with commas; or "all"), to measure and to compare. 0 or -1 (memory). */
int hspmd_program_fuse_ops(struct hspmd_program *p, enum hspmd_device_kind kind, struct hspmd_error *err);
/* Gradients to the optimizer's state, norm, update, parameters back. `spmds[q]`: the passes' result for every pipeline. */
int hspmd_program_sync_gradients(struct hspmd_program *p, struct hspmd_spmd *const *spmds, const struct hspmd_link_cost *cost,
                                 struct hspmd_error *err);
/* Offsets of all slots. */
int hspmd_program_plan_memory(struct hspmd_program *p, struct hspmd_error *err);
/* The most that any kernel wants; dev NULL: none counted. */
void hspmd_program_query_workspace(struct hspmd_program *p, struct hspmd_device *dev);

#endif
