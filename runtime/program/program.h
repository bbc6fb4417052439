/* SPDX-License-Identifier: Apache-2.0 */
/* A program: the instructions of one device for one training step, a flat array of instructions on slots of memory. The executor is one
 * loop over them; `hspmd plan --program` prints what runs.
 *
 * Instructions [0, vote) compute gradients of all micro-batches in the order of the schedule and bring them to the devices that hold the
 * optimizer state; the vote sums the step's totals over all devices; instructions [vote, end) change the state and bring parameters to
 * the devices that use them (doc/design.md, law 3). */
#ifndef HSPMD_PROGRAM_PROGRAM_H
#define HSPMD_PROGRAM_PROGRAM_H

#include "common/format/cluster.h"
#include "common/format/job.h"
#include "common/format/plan.h"
#include "runtime/device/device.h"
#include "runtime/model/build.h"
#include "runtime/sharding/spmd.h"

#define HSPMD_PROGRAM_MAX_LOSSES 512 /* the loss itself, and one auxiliary loss per layer of experts */

#define HSPMD_PROGRAM_STEP_TRANSFERS                                                                                                       \
	(UINT64_C(1)                                                                                                                       \
	 << 19) /* transfers of micro-batches have smaller numbers, transfers of the step numbers from here on; fewer than 2^20 in all */

#define HSPMD_PROGRAM_MAX_TRANSFER_STEPS 64 /* steps of one transfer, limited by the tag's bits */

#define HSPMD_PROGRAM_ALIGN 64
#define HSPMD_PROGRAM_BUCKET                                                                                                               \
	((int64_t)64 << 20) /* bytes of gradients that are sent together: large enough that latency no longer counts                       \
	                     * \ */
#define HSPMD_PROGRAM_BUCKET_MIN ((int64_t)1 << 20) /* enough bytes to be sent as soon as the backward passes of their layers are done */

/* Which arena holds a slot's bytes. */
enum hspmd_arena_kind {
	HSPMD_ARENA_TRANSIENT, /* values of one step; offsets planned by liveness */
	HSPMD_ARENA_FIXED,     /* parameters, accumulated gradients, optimizer state: allocated as long as the program is */
	HSPMD_ARENA_HOST,      /* optimizer state in the host's memory; as long (struct hspmd_device_ops, allocate_host) */
	HSPMD_ARENA_SAVED,     /* offloaded activations in the host's memory; offsets planned by liveness */
	HSPMD_ARENAS
};

/* Type and shape of a local part; shared by the slots of one value across micro-batches. */
struct hspmd_slot_type {
	int tensor; /* in the graph; temporaries of a transfer have the tensor that is transferred */
	enum hspmd_dtype dtype;
	struct hspmd_box box; /* within the full tensor */
	struct hspmd_shape full;
	int64_t row_stride; /* as in struct hspmd_view; 0: packed */
	size_t bytes;
	size_t room;  /* of its slots, if they may hold more than `bytes`; else 0 */
	unsigned own; /* bit d: dimension d is not the tensor's, and does not grow with it (scaling.h) */
	const struct hspmd_annotation
	        *annotation; /* of the tensor that this is a part of; borrowed. NULL: an intermediate value of a transfer */
};

struct hspmd_slot {
	int slot_type;
	enum hspmd_arena_kind memory;
	int micro_batch; /* -1: of the step */
	size_t offset;   /* within its arena; 64-byte aligned */
	int adjacent_to; /* fixed slots: the slot that must end where this one begins, so that one message can carry both; -1: any */
	int aliases;     /* fixed slots: begins where that slot begins and has no bytes of its own; -1: none */
	bool offloads;   /* transient slots: in the host's memory between forward and backward pass, if that frees memory */
};

enum hspmd_instruction_kind {
	HSPMD_INSTRUCTION_READ,   /* fill out[0] (tokens or targets) with samples of the micro-batch */
	HSPMD_INSTRUCTION_RUN,    /* an operator */
	HSPMD_INSTRUCTION_COMM,   /* this device's part of one step of a transfer */
	HSPMD_INSTRUCTION_NORM,   /* in[0]: gradient; add its sum of squares to the step's total */
	HSPMD_INSTRUCTION_UPDATE, /* in[0]: gradient; out: parameter, its moments, its copy if it has one */
	HSPMD_INSTRUCTION_COPY,  /* begin to copy in[0], or out[0], from or to the host's memory, beside what follows; `step`: its number */
	HSPMD_INSTRUCTION_AWAIT, /* in[0]: the device's slot of copy number `step`, which is now complete */
};

struct hspmd_instruction {
	enum hspmd_instruction_kind kind;
	enum hspmd_opcode opcode;
	int micro_batch; /* -1: of the step */
	int layer;
	int schedule_index; /* index of the schedule entry; increases along the program */
	bool backward;
	int input_count, output_count;
	int in[HSPMD_OP_MAX_IO], out[HSPMD_OP_MAX_IO]; /* slots; -1: absent */
	unsigned accumulate;                           /* bit o is set: output o is added to */
	const struct hspmd_op_attr *attr;              /* borrowed from the graph */
	const struct hspmd_transfer *transfer;         /* COMM; borrowed */
	int step;
	uint64_t tag;
	int peer_pipeline_rank, peer_schedule_index; /* for transfers between stages: the other side's pipeline rank, and the index of its
	                                                schedule entry that receives or sends this; rank -1: within a stage */
	bool sends;                                  /* this device is the sender */
	int joined;    /* COMM: so many instructions behind this one run with it, their steps joined (joined.h) */
	bool joins;    /* COMM: it is one of those */
	bool ahead;    /* COMM: gathers parameters for a layer that the passes come to next, while the one before it computes */
	bool beside;   /* RUN: a product that may run beside the instructions that follow, up to the first one that is not such a product
	                  (products_beside.c). What it writes is read behind that one. */
	bool overlaps; /* COMM: the result is not needed before all gradients are complete, so that the transfer may run until then */
};

/* One parameter's training state on this device. A slot is -1 if this device has nothing of it. */
struct hspmd_program_state {
	int tensor;       /* the parameter's number in the graph */
	const char *name; /* borrowed from the graph */
	bool decay;
	struct hspmd_local_shard shard; /* of the state annotation */
	int param, moments[HSPMD_OPTIMIZER_MOMENTS]; /* slots with the values of shard.box, packed; the optimizer may have fewer moments */
	int copy; /* slot of the parameter in the type that operators use, if that differs from the master's type; may equal `used`; -1:
	             none */
	int used; /* slot of the parameter as operators use it: `param`, or another slot if the state is split further (ZeRO) or kept in a
	             wider type; -1: not used here, or gathered for each pass of a layer */
	int grad; /* slot of the summed gradient, shard.box packed */
	/* Of zero_stage 3 and 2: the parts of the parameter to the devices that use it, before a layer's pass; and the gradient of one
	 * micro-batch to the devices that hold the state, after a layer's backward pass. Borrowed; NULL: once per step. */
	const struct hspmd_transfer *gather, *scatter;
};

/* A micro-batch of a step that mixes lengths: `samples` of its samples, from `first` on in the program's `order`; -1: one that counts
 * nothing (common/step_batches.h). */
struct hspmd_program_batch {
	int first, samples;
};

struct hspmd_parameter_layouts;
struct hspmd_pipelines;

struct hspmd_program {
	bool borrows; /* graph and spmd are another program's (hspmd_program_vary, step_program.h) */
	bool varies;  /* micro-batches have different sizes: nothing is shared between them */
	struct hspmd_program_batch
	        *batches;            /* [micro_batches] of one step; NULL: of every step, micro_batch samples from first_sample on */
	int *order;                  /* indexes in the global batch */
	struct hspmd_op_attr *attrs; /* of instructions that no graph has; owned */
	int which;                               /* of a plan's programs (hspmd_plan_for_length): 0: the plan itself */
	struct hspmd_graph *graph;               /* of this device's pipeline; owned */
	struct hspmd_spmd *spmd;                 /* owned */
	struct hspmd_parameter_layouts *layouts; /* of parameters; owned */
	int device, pipeline, stage;             /* the first stage that the device computes; -1: none */
	bool tf32, any_order;                    /* as in struct hspmd_kernel_args */
	bool offloads; /* the plan, or that of the training state, offloads the optimizer's state of this device */
	bool overlaps; /* gradients are summed while earlier layers' backward passes still run: the device computes in host memory */
	int pipeline_ranks, chunks;     /* pipeline ranks, and model chunks per device: the device computes every pipeline_ranks-th stage,
	                                   starting with `stage` (only one stage unless the schedule is interleaved) */
	int micro_batches, micro_batch; /* of the pipeline */
	struct hspmd_model_build_options how; /* the options that the graph was built with */
	int64_t first_sample;                 /* index of the pipeline's first sample within the global batch */
	size_t slot_type_count, slot_type_capacity, slot_count, slot_capacity, instruction_count, instruction_capacity;
	struct hspmd_slot_type *slot_types;
	struct hspmd_slot *slots;
	struct hspmd_instruction *instructions;
	size_t vote; /* index of the first instruction after the vote */
	enum hspmd_optimizer optimizer;
	int state_count;
	struct hspmd_program_state *states; /* all parameters of the model in graph order, also those that are not on this device */
	int *fixed_of_tensor; /* slot of a parameter, its gradient or a loss in this stage; -1: none. Used while the program is built */
	struct hspmd_transfer **transfers; /* of gradients and parameters; owned */
	size_t transfer_count, transfer_capacity;
	int schedule_index; /* of the next instruction, while the program is built */
	size_t arena_bytes, fixed_bytes, host_bytes, saved_bytes, workspace_bytes,
	        message_bytes;              /* message_bytes: message buffers, if the device computes in host memory */
	size_t beside_bytes;                /* workspace of products beside other instructions, behind workspace_bytes */
	size_t read_bytes;                  /* of the largest READ */
	bool sums_in_arena;                 /* the gradient that an update reads may be in the transient arena */
	size_t shared_bytes;                /* of the block that holds both arenas of any program of a set, the transient one behind the
	                                       fixed one (hspmd_program_arena_offset); 0: the program is the only one */
	int loss_count;                     /* parts of the loss that this device counts (another device does not count its replica) */
	int loss[HSPMD_PROGRAM_MAX_LOSSES]; /* slots */
	uint32_t workspace_most;            /* as in struct hspmd_kernel_args: that of the plan's choices */
};

/* Where a model's graph comes from: a built-in model family, or a user's function. */
struct hspmd_graph_source {
	struct hspmd_graph *(*build)(void *context, const struct hspmd_model_build_options *how, struct hspmd_error *err);
	void *context;
	int layers;
	enum hspmd_precision
	        precision;  /* requested: FP32 (0), TF32, BF16 or FP8; hspmd_plan_precision gives the one that a plan computes in */
	bool fp32_elements; /* with FP8: elements are F32, whatever the plan's devices compute in */
	bool any_order;                  /* results need not have the same bits each time */
	bool documents, reset_positions; /* passed on in struct hspmd_model_build_options */
	enum hspmd_optimizer optimizer;
};
/* FP32, without documents, AdamW. Borrows the model. */
struct hspmd_graph_source hspmd_graph_source_model(const struct hspmd_model *m);
/* As the job trains the model: for workers, and for printing and checking a plan beforehand. Borrows the model. */
struct hspmd_graph_source hspmd_graph_source_job(const struct hspmd_model *m, const struct hspmd_job *job);

/* Specialise for one device (its number in the cluster; -1: none). The plan must have been checked against the cluster. dev: to query
 * workspace sizes; NULL: no workspace is counted. NULL and err if the plan cannot be run (names plan path, tensor, annotation). */
struct hspmd_program *hspmd_program_build(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                          const struct hspmd_cluster *cluster, int device, struct hspmd_device *dev,
                                          struct hspmd_error *err);
/* The program of the same device for steps that another plan runs on `of`'s training state (`shorter` of struct hspmd_plan). Parameters,
 * moments and copies are in the same slots of the fixed arena as in `of`: what follows them there is each program's own. Gradients are
 * summed to where the state is, and parameters gathered from there. `of` must outlive the result. NULL and err. */
struct hspmd_program *hspmd_program_build_on(const struct hspmd_program *of, const struct hspmd_graph_source *source,
                                             const struct hspmd_plan *plan, const struct hspmd_cluster *cluster, struct hspmd_device *dev,
                                             struct hspmd_error *err);
void hspmd_program_destroy(struct hspmd_program *p);
/* The program of the same device for a plan of one pipeline that differs from that of `like` only in schedule and recomputation. It borrows
 * `like`'s graph, so that it must be destroyed first. It has the passes alone: no sums of gradients, updates, offsets and workspace.
 * resolved: answers that variations share. NULL and err. */
struct hspmd_program *hspmd_program_vary(const struct hspmd_program *like, const struct hspmd_plan *plan,
                                         const struct hspmd_cluster *cluster, struct hspmd_resolve_cache *resolved,
                                         struct hspmd_error *err);

/* The communication of the program in its order, followed by that of `more` programs (the same program at other lengths; NULL: none).
 * Lane 0: of the passes; lane 1: sums of gradients and parameters of the step. The caller frees the array. NULL: memory. */
struct hspmd_devcomm_use;
struct hspmd_devcomm_use *hspmd_program_devcomm_uses(const struct hspmd_program *p, struct hspmd_program *const *more, int more_count,
                                                     int lane, size_t *count);

/* Where the transient arena begins, if it is in one block with the fixed arena. */
size_t hspmd_program_arena_offset(const struct hspmd_program *p);
/* Bytes of device memory that the program needs; of a set's program: that all of them need. Without host_bytes and saved_bytes. */
size_t hspmd_program_memory(const struct hspmd_program *p);

/* Bytes of workspace that the program needs in all. */
static inline size_t hspmd_program_workspace(const struct hspmd_program *p)
{
	return (p->workspace_bytes + HSPMD_PROGRAM_ALIGN - 1) / HSPMD_PROGRAM_ALIGN * HSPMD_PROGRAM_ALIGN + p->beside_bytes;
}

/* Index in the global batch of a micro-batch's sample; -1: one that counts nothing. */
int64_t hspmd_program_sample(const struct hspmd_program *p, int micro_batch, int64_t sample);

/* Returns true if the device computes this stage of its pipeline. */
bool hspmd_program_in_stage(const struct hspmd_program *p, int stage);

/* When a slot's bytes are in use: from instruction `first` to instruction `last`. */
struct hspmd_slot_lifetime {
	bool used;
	size_t first, last;
	size_t last_use; /* the last instruction that reads or writes it; a message that may still be in transit holds it until `last` */
	int takes_over;  /* transient slots: the slot whose memory this one takes over at `first`, because an operator runs in place; -1:
	                    none */
};
/* Fill lifetimes[slot_count]. This is what the memory plan is made from. */
void hspmd_program_lifetimes(const struct hspmd_program *p, struct hspmd_slot_lifetime *lifetimes);

/* A slot as kernels see it. bases[arena]: where the arenas begin; NULL: data stays NULL. */
struct hspmd_view hspmd_program_slot_view(const struct hspmd_program *p, int slot, char *const *bases);

/* Returns true if the instruction and the one before it, of the program, round the same first operand to FP8. */
bool hspmd_program_repeats_first(const struct hspmd_program *p, const struct hspmd_instruction *in);
/* The kernel arguments of an instruction. The output of NORM has no data yet. attr is NULL if the executor sets it. */
void hspmd_program_kernel_args(const struct hspmd_program *p, const struct hspmd_instruction *in, char *const *bases,
                               struct hspmd_kernel_args *args);

/* The program as text: one instruction per line, then the memory. The caller frees it. */
char *hspmd_program_text(const struct hspmd_program *p, const struct hspmd_cluster *cluster);

/* Explains this device's communication. For every transfer that it takes part in: the tensor, its annotations before and after, the
 * steps chosen and the rejected alternatives, with the times that the cluster's links promise. The caller frees the text. */
char *hspmd_program_explain(const struct hspmd_program *p);

/* Says of every instruction that computes its floating-point operations, its bytes, and the least time that the device of the cluster's
 * file needs for them; then the sums per operator, those apart of products of matrices whose rows do not begin on multiples of 16 bytes
 * ("/unaligned"). Messages are not in it. The caller frees the text; NULL: memory. */
char *hspmd_program_roofline(const struct hspmd_program *p, const struct hspmd_cluster *cluster);

/* Explains the program of a plan with `synthesis`: how each operator is divided, why, and what it sends. The caller frees the text. NULL
 * and err: memory, or there is no such program. */
char *hspmd_program_explain_stage(const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                                  const struct hspmd_cluster *cluster, struct hspmd_error *err);

/* The `find` of struct hspmd_program_search (common/format/program_search.h); its context is a struct hspmd_graph_source. */
struct hspmd_program_cost;
struct hspmd_program_limits;
int hspmd_program_find(const void *graph_source, const struct hspmd_cluster *cluster, struct hspmd_plan *plan,
                       const struct hspmd_program_limits *limits, struct hspmd_program_cost *cost, struct hspmd_error *err);

/* ---- for the passes that build a program (build_program.c calls them; program.c has the functions that they share) */
/* Returns true if the slot is an input or an output of the instruction. */
bool hspmd_instruction_uses(const struct hspmd_instruction *in, int slot);
/* Returns true if it runs a kernel. */
bool hspmd_instruction_computes(const struct hspmd_instruction *in);
size_t hspmd_program_slot_type_bytes(const struct hspmd_slot_type *t); /* by its box, type and row_stride */
int hspmd_program_add_slot_type(struct hspmd_program *p, const struct hspmd_slot_type *slot_type, struct hspmd_error *err);
int hspmd_program_add_slot(struct hspmd_program *p, int slot_type, enum hspmd_arena_kind memory, int micro_batch, struct hspmd_error *err);
struct hspmd_instruction *hspmd_program_add_instruction(struct hspmd_program *p, enum hspmd_instruction_kind kind, struct hspmd_error *err);
/* Describes a transfer: add the instructions of this device's part of it, from slot `in` to slot `out`, with slots for its temporaries. */
struct hspmd_transfer_binding {
	int tensor;
	enum hspmd_dtype dtype; /* of the elements that are sent */
	int in, out;            /* slots; -1: this device has none */
	int choice;             /* slot: the experts that rows chose; -1: none */
	int micro_batch, layer;
	bool backward, recomputed; /* recomputed: for a forward pass that runs again */
	bool ahead;                /* as in struct hspmd_instruction */
	uint64_t number;           /* number of the transfer, the same on all devices */
	int peer_pipeline_rank, peer_schedule_index;
	bool sends; /* as in struct hspmd_instruction; peer_pipeline_rank -1: within a stage */
};
int hspmd_program_add_transfer(struct hspmd_program *p, const struct hspmd_transfer *t, const struct hspmd_transfer_binding *route,
                               struct hspmd_error *err);
/* `like` consists of one all-reduce per group of devices. Returns the all-reduce of a row of elements[k] elements in each group k, in
 * place. *hops: some groups need several steps. The caller destroys the result. NULL and err: memory. */
struct hspmd_transfer *hspmd_program_bucket(const struct hspmd_transfer *like, const int64_t *elements, const struct hspmd_link_cost *cost,
                                            bool *hops, struct hspmd_error *err);
/* Add the instructions of the micro-batches. */
int hspmd_program_specialise(struct hspmd_program *p, const struct hspmd_plan *plan, struct hspmd_error *err);
/* Fuse pairs of operators if the device's kind has a kernel for both, and on all devices the loss of a whole vocabulary with its
 * gradient; compute tables once that several operators use. 0 or -1 (memory). */
int hspmd_program_fuse_ops(struct hspmd_program *p, enum hspmd_device_kind kind, struct hspmd_error *err);
/* Pad rows of values so that they begin on multiples of some bytes, if the device's kind wants that (pad_rows.c). 0 or -1 (memory). */
int hspmd_program_pad_rows(struct hspmd_program *p, enum hspmd_device_kind kind, struct hspmd_error *err);
/* Returns true if the environment variable HSPMD_UNFUSED names it: fused operators not to use, or "pad_rows", for measurements and
 * comparisons (separated by commas; or "all"). */
bool hspmd_program_leaves_apart(const char *name);
/* Copy the slots that offload to the host's memory and back (offload_activations.c). 0 or -1 (memory). */
int hspmd_program_offload_activations(struct hspmd_program *p, struct hspmd_error *err);
/* Add the instructions of the step: sum gradients to where the optimizer state is, norm, update, gather parameters. Only of parameters
 * that this device has a part of. */
int hspmd_program_sync_gradients(struct hspmd_program *p, const struct hspmd_pipelines *pipelines, const struct hspmd_link_cost *cost,
                                 struct hspmd_error *err);
/* If micro-batches have different sizes: make room for values of every size that the plan's pipeline has (step_program.h). */
int hspmd_program_make_room(struct hspmd_program *p, const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                            struct hspmd_error *err);
/* Set the offsets of all slots. No arena of less than `goal` bytes is looked for; 0: the smallest that is found. */
int hspmd_program_plan_memory(struct hspmd_program *p, size_t goal, struct hspmd_error *err);
/* Set live[i] to the bytes of the arena that instruction i needs: no plan takes less than the most of these. live has an element more than
 * there are instructions. 0 or -1 (memory). */
int hspmd_program_live_bytes(const struct hspmd_program *p, size_t *live, struct hspmd_error *err);
/* Let products run beside other instructions, if the device's kind can do that and as far as the arena, whose plan is made, stays as large
 * as it is (products_beside.c). Makes that plan again. 0 or -1 (memory). */
int hspmd_program_run_beside(struct hspmd_program *p, enum hspmd_device_kind kind, struct hspmd_error *err);
/* Of the bytes that the instruction behind a group of products beside it moves, the share of this product by its operations; 0: the
 * instruction is not such a product. */
int64_t hspmd_program_bytes_beside(const struct hspmd_program *p, const struct hspmd_instruction *in);
/* Floating-point operations of an instruction, and the bytes that it reads and writes, each operand once (roofline.c). */
double hspmd_instruction_flops(const struct hspmd_program *p, const struct hspmd_instruction *in);
double hspmd_instruction_bytes(const struct hspmd_program *p, const struct hspmd_instruction *in);
/* Returns true if the instruction runs at the same time as the one before it. */
bool hspmd_program_runs_along(const struct hspmd_program *p, size_t at);
/* The number of the last of the instructions that run at the same time as this one. */
size_t hspmd_program_runs_until(const struct hspmd_program *p, size_t at);
/* Set workspace_bytes and beside_bytes to the largest workspace of any kernel; dev NULL: nothing is counted. */
void hspmd_program_query_workspace(struct hspmd_program *p, struct hspmd_device *dev);

#endif
