/* SPDX-License-Identifier: Apache-2.0 */
/* What a layer, a message and a stage cost: the cost model's tables, private to the solver.
 *
 * costs.c  facts of each layer (parameters, bytes, operations) from the model or the profile
 * layer_times.c  seconds of each layer on each device type, at each tensor-parallel share and micro-batch
 * links.c  seconds of messages and collectives between devices
 * memory.c bytes on each device of a stage
 *
 * "Share" is the part of a layer that one device of a tensor-parallel group holds: 1 / tp when even.
 */
#ifndef HSPMD_COST_COSTS_H
#define HSPMD_COST_COSTS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/error.h"
#include "common/format/cluster.h"
#include "common/format/model.h"
#include "common/format/plan.h"
#include "common/format/profile.h"

#define HSPMD_RECOMPUTE_KINDS (HSPMD_RECOMPUTE_FULL + 1)
#define HSPMD_MAX_TP 64               /* devices of one stage */
#define HSPMD_MEASURED_BATCHES_MAX 64 /* micro-batches of one type and tp that a profile may have */

/* Bytes of which a tensor-parallel group divides one part, and every device of it holds the other. */
struct hspmd_layer_bytes {
	double replicated, sharded;
};

/* One layer, whole (tp 1), one sample. */
struct hspmd_layer_info {
	double params;
	double output_bytes;                                   /* what it hands to the next layer */
	struct hspmd_layer_bytes saved[HSPMD_RECOMPUTE_KINDS]; /* activations kept for the backward pass */
	struct hspmd_layer_bytes transient;                    /* alive only while the layer runs backward */
	struct hspmd_layer_bytes traffic;                      /* by the forward pass, reads and writes */
	double gathered_bytes;                                 /* what a context group gathers: keys and values, as they are stored */
	double flops;                                          /* forward; of matrix products */
	double reduced_bytes;                                  /* forward; all-reduced by a tensor-parallel group */
	bool recomputable;                                     /* by full recomputation; else the layer does without */
	bool same_memory;                                      /* memory, as the layer before does */
	int tied_to;                                           /* layer whose weights it shares; -1: none */
	double tied_params;                                    /* weights of tied_to that a stage without that layer must hold for it */
};

/* What has to be told about layer times that were not measured as they are used. */
enum hspmd_time_origin {
	HSPMD_TIME_SHARE_INTERPOLATED = 1,
	HSPMD_TIME_TP_INTERPOLATED = 2,
	HSPMD_TIME_TP_EXTRAPOLATED = 4,
	HSPMD_TIME_BATCH_INTERPOLATED = 8,
	HSPMD_TIME_BATCH_EXTRAPOLATED = 16,
	HSPMD_TIME_BACKWARD_MODELLED = 32,
};

/* Seconds of the layers of one type at one share and micro-batch, as sums from layer 0: layers [a, b) take x[b] - x[a]. */
struct hspmd_layer_times {
	int type, micro_batch;
	double share;
	bool measured;    /* from the profile */
	bool reduced;     /* at a degree at which all-reduces among the devices of a node were part of it */
	double per_byte;  /* seconds of these */
	unsigned origins; /* enum hspmd_time_origin, or-ed */
	double *forward, *backward, *optimizer;
	double *recompute_s[HSPMD_RECOMPUTE_KINDS]; /* forward work repeated in the backward pass */
};

struct hspmd_costs {
	const struct hspmd_cluster *cluster;
	const struct hspmd_model *model;     /* may be NULL */
	const struct hspmd_profile *profile; /* may be NULL */
	enum hspmd_precision precision;
	int seq_len, layer_count;
	struct hspmd_layer_info *layers;
	double *params_sum; /* layer_count + 1 sums of params */
	int tied_layer_count;
	int *tied_layers;                                           /* layers that use the weights of the layer they are tied to */
	double param_bytes, grad_bytes, master_bytes, moment_bytes; /* an element */
	bool sequence_parallel;
	struct hspmd_layer_times **times; /* cache, open addressing */
	size_t times_size, times_count;
	double variation[HSPMD_MAX_TP + 1]; /* expected maximum of as many draws, where known */
	int last_devices;                   /* the last number asked for, and its maximum */
	double last_maximum;
	int warning_count;
	char **warnings;
};

/* Tables for one input. The arguments must outlive the result. seq_len 0: the profile's, else the model's positions. NULL and err on
 * failure. */
struct hspmd_costs *hspmd_costs_new(const struct hspmd_cluster *cluster, const struct hspmd_model *model,
                                    const struct hspmd_profile *profile, enum hspmd_precision precision, int seq_len,
                                    struct hspmd_error *err);
/* The same in the precision that a plan computes in where `asked` is asked for. That is hspmd's to decide where there is a model; what only
 * a profile is known of is trained by another framework. */
struct hspmd_costs *hspmd_costs_of_plan(const struct hspmd_cluster *cluster, const struct hspmd_model *model,
                                        const struct hspmd_profile *profile, enum hspmd_precision asked, const struct hspmd_plan *plan,
                                        struct hspmd_error *err);
void hspmd_costs_destroy(struct hspmd_costs *c);
/* Keep a warning, once. */
void hspmd_costs_warn(struct hspmd_costs *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

double hspmd_device_flops(const struct hspmd_device_type *t, enum hspmd_precision precision); /* sustained; 0: not known */
/* layer_times.c. The result belongs to the tables. NULL and err when there is nothing to compute it from. */
const struct hspmd_layer_times *hspmd_costs_times(struct hspmd_costs *c, int type, double share, int micro_batch, struct hspmd_error *err);
/* Warn of what is to be told about t. */
void hspmd_costs_warn_origins(struct hspmd_costs *c, const struct hspmd_layer_times *t);
void hspmd_layer_times_destroy(struct hspmd_layer_times *t);

/* links.c */
/* The link between a's and b's node when n devices of a's side send to m of b's at once; counts no entry has fall back on smaller ones. */
const struct hspmd_link *hspmd_costs_link(const struct hspmd_costs *c, int a, int b, int n, int m, struct hspmd_error *err);
/* Seconds for `bytes`, those of all n senders together. -1: no link. */
double hspmd_costs_transfer(const struct hspmd_costs *c, int a, int b, int n, int m, double bytes, struct hspmd_error *err);
/* Seconds of a collective over devices[0], devices[stride], ... as a ring: `rounds` times n - 1 messages of bytes / n; one round gathers
 * `bytes` to all, or scatters their sums. -1: no link. */
double hspmd_costs_ring(const struct hspmd_costs *c, const int *devices, int stride, int n, int rounds, double bytes,
                        struct hspmd_error *err);
/* Seconds of an all-reduce of `bytes` on each of n devices, as a ring (Patarasuk and Yuan, 2009): 2 (n - 1) messages of bytes / n. -1: no
 * link. */
double hspmd_costs_all_reduce(const struct hspmd_costs *c, const int *devices, int n, double bytes, struct hspmd_error *err);

/* A stage with a given micro-batch: seconds for one micro-batch and for the optimizer, all of it on one copy. */
struct hspmd_stage_cost {
	double forward, backward, optimizer;
	double group_comm; /* of forward and backward: messages within the group, where they are not part of measured layer times */
};
/* stage_cost.c. 0 or -1. */
int hspmd_costs_stage(struct hspmd_costs *c, const struct hspmd_stage *s, int micro_batch, struct hspmd_stage_cost *out,
                      struct hspmd_error *err);
/* Even share or shard_ratio of device `which`. */
double hspmd_stage_share(const struct hspmd_stage *s, int which);
/* Its part of the sequence. */
double hspmd_stage_context_share(const struct hspmd_stage *s, int which);
/* How much longer a group of `group` devices takes when it works in step with all of the plan's `devices`: they wait for the slowest. */
double hspmd_variation(struct hspmd_costs *c, int devices, int group);

/* ---- memory.c: bytes of one device */

/* How often a plan holds each layer: copies need buckets to reduce gradients with, and share the optimizer's state when zero. */
struct hspmd_layer_copies {
	int pipelines;
	bool zero;
};

/* What one device of a stage has of its layers. */
struct hspmd_device_share {
	double share;           /* of weights, and of what a tensor-parallel group divides */
	double context_share;   /* of the sequence */
	bool sequence_parallel; /* between the divided parts the sequence is divided too */
};
/* Bytes of one sample on such a device: what the layer keeps for the backward pass, of each micro-batch in flight; what stays for a while
 * after it was sent, once whatever is in flight; what it needs while it runs, in which layers take turns. */
double hspmd_layer_saved_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute,
                               const struct hspmd_device_share *device);
double hspmd_layer_resident_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute,
                                  const struct hspmd_device_share *device);
double hspmd_layer_transient_bytes(const struct hspmd_costs *c, int layer, enum hspmd_recompute recompute,
                                   const struct hspmd_device_share *device);
/* All of these are the same for both. */
bool hspmd_layer_same_memory(const struct hspmd_layer_info *a, const struct hspmd_layer_info *b);
/* Weights of layers [first, end), those they hold for a twin elsewhere included. */
double hspmd_stage_params(const struct hspmd_costs *c, int first, int end);
/* Bytes of weight, gradient and optimizer state for one weight. */
double hspmd_state_bytes(const struct hspmd_costs *c, const struct hspmd_layer_copies *copies);
/* For one weight, at the step's end alone. */
double hspmd_step_end_bytes(const struct hspmd_costs *c, const struct hspmd_layer_copies *copies);
/* For one weight, beside the program: a checkpoint's image. */
double hspmd_image_bytes(const struct hspmd_costs *c, const struct hspmd_device_type *type, const struct hspmd_layer_copies *copies);
/* What weights and activations may fill of a device: what is left by the context and by fragmentation. */
double hspmd_usable_bytes(const struct hspmd_costs *c, const struct hspmd_device_type *type);
/* Device number `which` of one stage or, interleaved, of the stages of all chunks. */
struct hspmd_memory {
	double state;      /* weights, gradients, optimizer, their image */
	double in_flight;  /* of one micro-batch, while it is in flight: what layers keep, and what was sent to the next stage */
	double recomputed; /* of one micro-batch whose backward pass was done but for the gradients of weights: what it computed anew */
	double fixed;      /* whatever is in flight */
	double end;        /* at the step's end, when nothing is in flight */
};
struct hspmd_memory hspmd_costs_memory(const struct hspmd_costs *c, const struct hspmd_stage *s, int which, int micro_batch,
                                       const struct hspmd_layer_copies *copies);
/* With what the device holds before any of it, and what fragments waste. */
double hspmd_device_bytes(const struct hspmd_costs *c, const struct hspmd_device_type *type, double used);

#endif
