/* SPDX-License-Identifier: Apache-2.0 */
/* Costs of layers, messages and stages: the tables of the cost model. Private to the solver.
 *
 * - costs.c: facts of each layer (parameters, bytes, operations) from the model or the profile
 * - layer_times.c: seconds of each layer on each device type, at each tensor-parallel share and micro-batch
 * - device_share.c: the part of a stage that one device has
 * - links.c: seconds of messages and collectives between devices
 * - stage_cost.c: seconds of one micro-batch on a stage
 * - memory.c: bytes of layers and weights
 * - stage_memory.c: bytes on each device of a stage
 * - warnings.c: warnings for the report
 *
 * A "share" is the part of a layer that one device of a tensor-parallel group holds: 1 / tp if the group divides evenly. Times are in
 * seconds. Functions that return -1 or NULL fill err, which may be NULL. */
#ifndef HSPMD_COST_COSTS_H
#define HSPMD_COST_COSTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "common/format/cluster.h"
#include "common/format/model_facts.h"
#include "common/format/plan.h"
#include "common/format/profile.h"

#define HSPMD_MAX_TP 64               /* most devices of one stage */
#define HSPMD_MEASURED_BATCHES_MAX 64 /* most micro-batches that a profile may have measured for one type and tp */

/* One whole layer (tp 1). */
struct hspmd_layer_info {
	double params;            /* of it, on each device of a tensor-parallel group: */
	double replicated_params; /* the rest is divided among the group */
	double partial_params;    /* of these: whole weights whose gradients the group has to sum */
	double output_bytes;      /* its activation for one sample, sent to the next layer */
	/* Work in the precision of the computation. again: the part of the forward pass that recomputation repeats. */
	struct hspmd_layer_pass forward, backward, again[HSPMD_RECOMPUTE_KINDS];
	bool recomputable; /* false: full recomputation does not apply to this layer */
	/* Memory: [in parts][context parallel][division][recompute, of the facts]; the first as in struct hspmd_device_share. */
	const struct hspmd_layer_memory (*memory[2])[HSPMD_FACTS_DIVISIONS][HSPMD_RECOMPUTE_KINDS];
	const struct hspmd_facts_amount *workspace[2]; /* [in parts], HSPMD_WORKSPACES of them; NULL: none */
	const struct hspmd_attention_sizes *attention; /* in BF16; NULL: none */
	const struct hspmd_layer_products *products;   /* NULL: none */
	double saved_scale, memory_scale;              /* factors of what is saved for the backward pass, and of other memory */
	bool same_memory;                              /* its memory equals that of the layer before (hspmd_layer_same_memory) */
	int tied_to;                                   /* layer that shares weights with this one; -1: none */
	double tied_params; /* shared weights that a stage with this layer but without tied_to must hold in addition */
};

/* How layer times were obtained, if they were not measured exactly as they are used: what warnings must say. */
enum hspmd_time_origin {
	HSPMD_TIME_SHARE_INTERPOLATED = 1,
	HSPMD_TIME_TP_INTERPOLATED = 2,
	HSPMD_TIME_TP_EXTRAPOLATED = 4,
	HSPMD_TIME_BATCH_INTERPOLATED = 8,
	HSPMD_TIME_BATCH_EXTRAPOLATED = 16,
	HSPMD_TIME_BACKWARD_MODELLED = 32,
};

/* Seconds of the layers on one device type at one share and micro-batch, as prefix sums: layers [a, b) take x[b] - x[a]. */
struct hspmd_layer_times {
	int type, micro_batch;
	double share;
	bool sequence;    /* with sequence parallelism; never of whole layers */
	bool measured;    /* from the profile */
	bool reduced;     /* the measured times contain the all-reduces of a group within a node */
	double per_byte;  /* seconds of these all-reduces per byte */
	unsigned origins; /* set of enum hspmd_time_origin */
	double *forward, *backward, *optimizer;
	double *recompute_s[HSPMD_RECOMPUTE_KINDS]; /* forward work repeated in the backward pass */
};

struct hspmd_costs {
	const struct hspmd_costs *base; /* those that these are a view of; NULL: they are none */
	const struct hspmd_cluster *cluster;
	const struct hspmd_model_facts *facts; /* of the model; may be NULL: hspmd does not train it */
	const struct hspmd_profile *profile;   /* may be NULL */
	enum hspmd_precision precision;        /* of elements */
	bool fp8;                              /* products of FP8 operands are computed at the devices' FP8 rate, others in `precision` */
	int seq_len, layer_count;
	enum hspmd_recompute kind_of[HSPMD_RECOMPUTE_KINDS]; /* the facts' kind of each kind of the plan that these costs are for */
	enum hspmd_facts_form forms[2];                      /* [in parts] of memory, if there are facts */
	unsigned char *listed; /* per result of the facts: a set of 1 << which of the plan's lists name it. NULL: the plan has no lists */
	struct hspmd_layer_info *layers;
	struct hspmd_layer_memory (*own_memory)[2][HSPMD_FACTS_DIVISIONS][HSPMD_RECOMPUTE_KINDS]; /* per layer, if there are no facts */
	double *params_sum;                                                /* prefix sums of params, layer_count + 1 */
	double *replicated_sum;                                            /* and of replicated_params */
	double *vectors_sum[2];                                            /* and of facts' vectors: replicated, sharded */
	int tied_layer_count;
	int *tied_layers;                                           /* layers with tied_params > 0 */
	double param_bytes, grad_bytes, master_bytes, moment_bytes; /* bytes per element */
	struct hspmd_layer_times **times; /* cache, a hash table with open addressing */
	size_t times_size, times_count;
	struct hspmd_costed_stage *costed_stages; /* cache of stage_cost.c; NULL: none yet */
	struct hspmd_known_transfer *transfers;   /* cache of links.c; NULL: links are given for single nodes */
	double variation[HSPMD_MAX_TP + 1]; /* cache: expected maximum of [n] standard normal draws; 0: not computed yet */
	int last_devices;                   /* the last `devices` of hspmd_variation, and their expected maximum */
	double last_maximum;
	int warning_count;
	char **warnings;
};

/* Make the tables for one input. The arguments must outlive the result, which hspmd_costs_destroy frees. seq_len 0: the profile's,
 * otherwise that of the facts, which must be for it. Of facts in FP8 the elements are BF16 if fp32_elements is not set. Returns NULL with
 * err on failure. */
struct hspmd_costs *hspmd_costs_with_elements(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                                              const struct hspmd_profile *profile, enum hspmd_precision precision, bool fp32_elements,
                                              int seq_len, struct hspmd_error *err);
/* The same, for elements that all devices of the cluster compute in. */
struct hspmd_costs *hspmd_costs_new(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                                    const struct hspmd_profile *profile, enum hspmd_precision precision, int seq_len,
                                    struct hspmd_error *err);
/* The same, in the precision that a plan computes in if `asked` is requested. hspmd chooses that precision if there is a model; a
 * workload known only by its profile is trained by another framework, in the requested precision. */
struct hspmd_costs *hspmd_costs_of_plan(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                                        const struct hspmd_profile *profile, enum hspmd_precision asked, const struct hspmd_plan *plan,
                                        struct hspmd_error *err);
/* The same costs with caches of their own, for one thread: several views may be used at the same time, if nobody writes to the base
 * meanwhile. What the base's caches know is not computed again. Warnings of a view are lost. NULL: memory. The base must outlive the
 * result, which hspmd_costs_destroy frees. */
struct hspmd_costs *hspmd_costs_view(const struct hspmd_costs *base);
void hspmd_costs_destroy(struct hspmd_costs *c);
/* The lists of operators that plans of the search may recompute, borrowed; NULL: none. */
json_t *hspmd_costs_recompute_sets(const struct hspmd_costs *c);
/* Add a warning, unless it is there already; dropped if memory runs out. */
void hspmd_costs_warn(struct hspmd_costs *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* layer_times.c. sequence: with sequence parallelism. The tables own the result. Returns NULL with err if there is nothing to compute the
 * times from. */
const struct hspmd_layer_times *hspmd_costs_times(struct hspmd_costs *c, int type, double share, bool sequence, int micro_batch,
                                                  struct hspmd_error *err);
/* Add the warnings for t's origins. */
void hspmd_costs_warn_origins(struct hspmd_costs *c, const struct hspmd_layer_times *t);
void hspmd_layer_times_destroy(struct hspmd_layer_times *t);
/* Seconds in which a device of the type updates so many parameters at the step's end: clipping and the optimizer. */
double hspmd_costs_update(const struct hspmd_costs *c, int type, double params);
/* The same of its share of layers [first, end), if the optimizer's state is in the host's memory. */
double hspmd_costs_offloaded_update(const struct hspmd_costs *c, int type, double share, int first, int end);

/* links.c */
/* Seconds for which messages of `bytes` keep the cores busy that the device is made of, if they move each byte `times` times. 0: other
 * hardware moves them. */
double hspmd_costs_own_work(const struct hspmd_costs *c, int device, double bytes, double times);
#define HSPMD_KNOWN_TRANSFERS 1024 /* places for messages that were timed */
struct hspmd_known_transfer {
	uint64_t key; /* 0: none */
	double bytes, seconds;
};
/* The link between the nodes of devices a and b if n devices on a's side send to m on b's side at once. If no entry has these counts, an
 * entry with smaller counts is used. Returns NULL with err if there is no link. */
const struct hspmd_link *hspmd_costs_link(const struct hspmd_costs *c, int a, int b, int n, int m, struct hspmd_error *err);
/* Seconds to transfer `bytes`, the total of all n senders. Returns -1 with err if there is no link. */
double hspmd_costs_transfer(const struct hspmd_costs *c, int a, int b, int n, int m, double bytes, struct hspmd_error *err);
/* Seconds of a ring collective over devices[0], devices[stride], ...: `rounds` times n - 1 messages of bytes / n. One round is an
 * all-gather, or a reduce-scatter, of `bytes`. Returns -1 with err if there is no link. */
double hspmd_costs_ring(const struct hspmd_costs *c, const int *devices, int stride, int n, int rounds, double bytes,
                        struct hspmd_error *err);
/* Seconds in which each of devices[0], devices[stride], ... gathers all n unequal parts (bytes), as the runtime does: the cheaper form of a
 * ring if all devices have one, otherwise directly; or evenly, after those that have more than an equal part have sent the rest to others.
 * Returns -1 with err if there is no link. */
double hspmd_costs_gather(const struct hspmd_costs *c, const int *devices, int stride, int n, const double *parts, struct hspmd_error *err);
/* Seconds of a message of `bytes` within a group of n devices, as the resolver does: around a ring (Patarasuk and Yuan, 2009), n - 1
 * messages of bytes / n, twice that for a sum that all get; or, for a sum of which each gets all or a part, all addends are gathered in
 * log2 n rounds, if that is faster. Returns -1 with err if there is no link. */
double hspmd_costs_collective(const struct hspmd_costs *c, const int *devices, int n, enum hspmd_facts_message kind, double bytes,
                              struct hspmd_error *err);
/* The same of the experts' rows, as the resolver does: all rows, `bytes`; or of those alone that chose one of a device's experts (bytes,
 * per device) each device sends, or gets, every other's part of the sequence; for a sum that all get, it sends them to all others, or sends
 * every device a part of them, whose sums are then gathered. The least of these. Returns -1 with err if there is no link. */
double hspmd_costs_experts(const struct hspmd_costs *c, const int *devices, int n, enum hspmd_facts_message kind, const double *parts,
                           double bytes, struct hspmd_error *err);

/* Seconds of a stage for one micro-batch, and of its optimizer if one copy updates all of the stage's state. */
struct hspmd_stage_cost {
	double forward, backward, optimizer;
	double group_comm; /* part of forward and backward: messages within the group, unless measured layer times contain them */
};
/* stage_cost.c. Fills *out. Returns 0, or -1 with err. */
int hspmd_costs_stage(struct hspmd_costs *c, const struct hspmd_stage *s, int micro_batch, struct hspmd_stage_cost *out,
                      struct hspmd_error *err);
/* device_share.c. Share of device `which`: even, or from shard_ratio. */
double hspmd_stage_share(const struct hspmd_stage *s, int which);
/* Its fraction of the sequence. */
double hspmd_stage_context_share(const struct hspmd_stage *s, int which);
/* Factor by which a group of `group` devices slows down because it runs in step with all of the plan's `devices`, which wait for the
 * slowest device. */
double hspmd_variation(struct hspmd_costs *c, int devices, int group);

/* ---- memory.c, stage_memory.c: bytes of one device */

/* How many copies of each layer a plan holds. With several copies a framework other than hspmd needs buckets to reduce gradients with;
 * with zero the copies share the optimizer state. */
struct hspmd_layer_copies {
	int pipelines;
	int zero;    /* stage of ZeRO: 0 to 3 */
	double part; /* of what ZeRO divides that this copy keeps; 0: as much as the others */
	bool offload; /* the optimizer's state is in the host's memory */
	bool adds;    /* parts of gradients are added up over several micro-batches */
	/* The weights of a layer are gathered while the layer before it computes; behind the stage's last layer comes a pass of this stage,
	 * another chunk of the same devices if there are several. NULL: none are gathered ahead. */
	const struct hspmd_stage *turn;
};
/* Of a stage of the plan: of its layers on average, by their weights. */
struct hspmd_layer_copies hspmd_costs_copies(const struct hspmd_costs *c, const struct hspmd_plan *p, int pipeline, int stage);

/* The part of a stage's layers that one device has. */
struct hspmd_device_share {
	double share;           /* of weights and of activations that a tensor-parallel group divides */
	double context_share;   /* of the sequence; 1: no context parallelism */
	bool sequence_parallel; /* activations between the sharded parts are sharded along the sequence */
	bool in_parts;          /* a context group's attention takes keys and values part by part (hspmd_type_takes_parts) */
	const struct hspmd_product_blocks *blocks; /* that the device packs */
	bool wgmma, dnn;                           /* a GPU with products of warp-groups; one that may have cuDNN */
	double product_bytes, beside_bytes;        /* that a product may need within it; and those beside other operators */
};
/* That of a device of the type. */
struct hspmd_device_share hspmd_device_share_of(const struct hspmd_device_type *type, double share, double context_share,
                                                bool sequence_parallel);
/* The part of the stage's device `which`. */
struct hspmd_device_share hspmd_stage_device(const struct hspmd_costs *c, const struct hspmd_stage *s, int which);
/* Returns true if attention on these devices does that, in a precision in which they can. */
bool hspmd_type_takes_parts(const struct hspmd_device_type *type);
/* Bytes of one sample on such a device. Saved: what the layer saves for the backward pass, for each micro-batch in flight. Deferred: what
 * is left of that, for each micro-batch whose gradients of weights are deferred. Resident: what stays allocated for some time after it was
 * sent, once, for any number of micro-batches in flight. */
double hspmd_layer_saved_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute,
                               const struct hspmd_device_share *device);
/* The part of `saved` that a stage that offloads all activations has in the host's memory. */
double hspmd_layer_offloaded_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute,
                                   const struct hspmd_device_share *device);
/* What a stage with this layer has in the host's memory of it, of the operators that it offloads. */
struct hspmd_offloaded {
	double all, later; /* later: of all, what only gradients of weights need, if they are deferred */
};
struct hspmd_offloaded hspmd_stage_offloaded(const struct hspmd_costs *c, const struct hspmd_stage *s, int layer,
                                             const struct hspmd_device_share *device);
double hspmd_layer_deferred_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute,
                                  const struct hspmd_device_share *device);
double hspmd_layer_resident_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute,
                                  const struct hspmd_device_share *device);
/* Bytes of a sample that the layer needs while it runs; layers run one after the other. deferring: gradients of weights are deferred. */
double hspmd_layer_transient_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute, bool deferring,
                                   const struct hspmd_device_share *device);
/* Bytes within operators, of a micro-batch: beside the others, at any time, as many as the layer of the stage takes that takes most. */
double hspmd_layer_workspace(const struct hspmd_layer_info *f, int micro_batch, const struct hspmd_device_share *device);
/* Returns true if all of these are equal for both layers. */
bool hspmd_layer_same_memory(const struct hspmd_layer_info *a, const struct hspmd_layer_info *b);
/* Number of weights of layers [first, end), including shared weights of tied layers outside of the range. */
double hspmd_stage_params(const struct hspmd_costs *c, int first, int end);
/* The number that a device holds that has a share of them. */
double hspmd_device_params(const struct hspmd_costs *c, int first, int end, double share);
/* The number of those that are vectors, which ZeRO does not divide. */
double hspmd_device_vectors(const struct hspmd_costs *c, int first, int end, double share);
/* Copies of vectors. */
struct hspmd_layer_copies hspmd_vector_copies(const struct hspmd_layer_copies *copies);
/* Bytes of weight, gradient and optimizer state per weight. */
double hspmd_state_bytes(const struct hspmd_costs *c, const struct hspmd_layer_copies *copies);
/* Number of weights that ZeRO-3 gathers ahead while a pass runs layers [l, end) of the stage: those of the layer behind them. When most
 * micro-batches are in flight, a stage's forward pass is followed by the backward pass of another one through `turn`, and that by a forward
 * pass; at the end of the model the same one goes back, and the last layer's weights are there. */
double hspmd_weights_ahead(const struct hspmd_costs *c, const struct hspmd_stage *s, const struct hspmd_stage *turn, int l, int end,
                           bool backward, double share);
/* Additional bytes per weight at the step's end. */
double hspmd_step_end_bytes(const struct hspmd_costs *c, const struct hspmd_layer_copies *copies);
/* Bytes of the host's memory per weight, if the optimizer's state is there. */
double hspmd_offloaded_bytes(const struct hspmd_costs *c, const struct hspmd_layer_copies *copies);
/* Additional bytes per weight for a checkpoint's image. */
double hspmd_image_bytes(const struct hspmd_costs *c, const struct hspmd_device_type *type, const struct hspmd_layer_copies *copies);
/* Bytes of a device that weights and activations may fill: without the context and the loss to fragmentation. */
double hspmd_usable_bytes(const struct hspmd_costs *c, const struct hspmd_device_type *type);
/* Memory of device `which` of one stage. With interleaving the caller adds up the stages of all chunks. */
struct hspmd_memory {
	double state;     /* weights, gradients, optimizer state, checkpoint image */
	double offloaded; /* of the host's memory: optimizer state */
	double offloaded_activations; /* likewise, per micro-batch in flight: activations; ... */
	double offloaded_later;       /* ... per micro-batch whose weight gradients are deferred; ... */
	double last_offloads;         /* ... what of one micro-batch is on the device at the time: of the last layer */
	double in_flight; /* per micro-batch in flight: saved activations, and the activation sent to the next stage */
	double deferred;  /* per micro-batch whose weight gradients are deferred, instead of in_flight */
	double running;   /* of the micro-batch whose pass runs, at most: instead of in_flight, with all that the pass needs */
	double end;       /* at the step's end, when no micro-batch is in flight */
	double ending;    /* of the last micro-batch, if sums of gradients arrive while its backward pass still runs: with those sums */
	double workspace; /* of operators */
	double sent;      /* per micro-batch, part of in_flight: the activation sent to the next stage; 0: there is none */
	double returned;  /* per micro-batch: the gradient sent to the stage before */
};
/* deferring: the schedule defers gradients of weights. */
struct hspmd_memory hspmd_costs_memory(const struct hspmd_costs *c, const struct hspmd_stage *s, int which, int micro_batch, bool deferring,
                                       const struct hspmd_layer_copies *copies);
/* Bytes of a device that `used` bytes occupy, including the context and the loss to fragmentation. */
double hspmd_device_bytes(const struct hspmd_costs *c, const struct hspmd_device_type *type, double used);

#endif
