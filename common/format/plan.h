/* SPDX-License-Identifier: Apache-2.0 */
/* hspmd-plan-1: which devices compute what. Plain data; a plan is read against a cluster and holds indexes into its devices.
 *
 * An interleaved plan says where every chunk of layers lies: a pipeline's stages come in `virtual_stages` chunks of equal length, and stage
 * k of a chunk has the same devices as stage k of every other chunk (the only case in which a device appears twice). */
#ifndef HSPMD_FORMAT_PLAN_H
#define HSPMD_FORMAT_PLAN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "common/format/cluster.h"

#define HSPMD_PLAN_FORMAT "hspmd-plan-1"

/* Which operators of a stage's blocks run again before the backward pass, so that their results need not be kept: none; those with few
 * operations for the size of their results; those that one of the plan's `recompute_sets` lists (its index is added to SET); all of them,
 * with the messages between them. The search takes sets that contain one another, so that each kind repeats what the one before repeats. */
#define HSPMD_RECOMPUTE_SETS 4 /* most sets of a plan */
enum hspmd_recompute {
	HSPMD_RECOMPUTE_NONE,
	HSPMD_RECOMPUTE_SELECTIVE,
	HSPMD_RECOMPUTE_SET,
	HSPMD_RECOMPUTE_FULL = HSPMD_RECOMPUTE_SET + HSPMD_RECOMPUTE_SETS
};
extern const char *const hspmd_recompute_names[]; /* "none", "selective", "set 1" ..., "full": for people */
/* What of a stage's devices lies in the host's memory: nothing, or the optimizer's state (as ZeRO-Offload, arXiv 2101.06840, but the device
 * updates it over its link): the moments and, if operators use rounded weights, the weights that are not rounded. */
enum hspmd_offload { HSPMD_OFFLOAD_NONE, HSPMD_OFFLOAD_OPTIMIZER };
extern const char *const hspmd_offload_names[]; /* "none", "optimizer" */
/* What of a stage's blocks lies in the host's memory between the forward and the backward pass of a micro-batch: nothing, the results of
 * all operators, or of those that one of the plan's `offload_sets` lists (its index is added to SET). What is recomputed is not saved, and
 * so not offloaded. */
enum { HSPMD_OFFLOAD_ALL = 1, HSPMD_OFFLOAD_SET };
enum hspmd_schedule { HSPMD_SCHEDULE_1F1B, HSPMD_SCHEDULE_GPIPE, HSPMD_SCHEDULE_INTERLEAVED, HSPMD_SCHEDULE_ZB_H1 };
extern const char *const hspmd_schedule_names[]; /* "1f1b", "gpipe", "interleaved", "zb-h1" */

struct hspmd_stage {
	int layers[2]; /* [first, end) */
	int device_count;
	int *devices;           /* indexes into the cluster's devices, in tensor-parallel order */
	double *shard_ratio;    /* one per device of a tensor-parallel group (device_count / context), NULL: even */
	int context;            /* groups that share the sequence; 1: none */
	double *context_ratio;  /* one per group, NULL: even */
	bool sequence_parallel; /* activations between the split operators are split along the sequence too; optional key, default false */
	enum hspmd_recompute recompute;
	double zero_share; /* of what ZeRO divides among the stages with the same layer: how much this one keeps, relative to the others.
	                      0: as 1; optional key, only with zero_stage above 0. Equal in all chunks of the same devices */
	int offload_activations;    /* 0: none, or see above; optional key; only of such devices as `offload` */
	enum hspmd_offload offload; /* optional key; only of devices whose type has `host` in the cluster. Equal in all chunks of the same
	                               devices */
};

/* What a pipeline does with samples of one length, if a step's samples have several (plan_lengths.h). */
struct hspmd_pipeline_length {
	int seq_len;
	int micro_batch;      /* most samples of a micro-batch of this length */
	double micro_batch_s; /* expected seconds of such a micro-batch, forward and backward, in the stage that takes longest */
};

struct hspmd_pipeline {
	int micro_batches;
	int micro_batch; /* samples; the plan's unless it has its own */
	/* Of its longest samples, set for the programs of steps that mix lengths (plan_lengths.h); 0: the plan's. Not in files. */
	int seq_len;
	int length_count;
	struct hspmd_pipeline_length *lengths; /* ascending; longer samples go to other pipelines. NULL: it takes all. Optional key */
	int stage_count;
	struct hspmd_stage *stages;
};

#define HSPMD_ZERO_MAX 3 /* of zero_stage */

struct hspmd_predicted {
	double step_s, compute_s, bubble_s, communication_s, sync_s; /* step_s 0: nothing predicted */
	int device_count;                                            /* of memory_bytes */
	int *devices;
	double *memory_bytes;
};

struct hspmd_plan {
	int global_batch, micro_batch, seq_len;
	enum hspmd_schedule schedule;
	int virtual_stages; /* interleaved: chunks a device, see above; else 1 */
	int zero_stage; /* what pipelines keep in parts (ZeRO, arXiv 1910.02054). 1: optimizer state; 2: also gradients; 3: also parameters.
	                   2 and 3 need hspmd_plan_in_step */
	bool has_zero_shares; /* a stage has a zero_share: whoever sets one sets this */
	bool no_prefetch;     /* zero_stage 3: the parameters of a layer are gathered when a pass comes to it, not while the layer before it
	                         computes, which takes the memory of another layer's parameters. Optional key `prefetch`, default true */
	bool synthesis;     /* how the devices divide each operator is searched (runtime/synthesis): one pipeline of one stage, whose ratios
	                       and split operators are then chosen by the search. Optional key, default false */
	json_t *program; /* with `synthesis`: what the search found, as runtime/synthesis writes it (saved_program.c), so that workers need
	                       not search; owned. NULL: nobody has searched yet */
	int pipeline_count;
	struct hspmd_pipeline *pipelines;
	struct hspmd_predicted predicted;
	json_t *recompute_sets; /* lists of operators that stages recompute (recompute_sets.h); owned. NULL: none */
	json_t *offload_sets;   /* lists of operators whose results stages offload; likewise */
	json_t *choices; /* [lines]: what devices chose by measurement (`choose` of runtime/device/device.h); NULL: nothing */
	/* Plans for shorter steps, which work on this plan's training state: it stays where this plan puts it. In the order of their
	 * seq_len, all below this plan's; on some or all of its devices; without `shorter` of their own. Owned. */
	int shorter_count;
	struct hspmd_plan **shorter;
};

/* The plan has no pipelines, until somebody gives it some. */
void hspmd_plan_drop_pipelines(struct hspmd_plan *p);
/* The plan is no longer one of a set. */
void hspmd_plan_drop_shorter(struct hspmd_plan *p);
/* Which plan a step of this length runs: the first of `shorter` whose seq_len suffices, as 1 + its index; 0: the plan itself. */
int hspmd_plan_for_length(const struct hspmd_plan *p, int64_t length);
/* That plan: of `which` = 0 the plan itself. */
const struct hspmd_plan *hspmd_plan_of(const struct hspmd_plan *p, int which);

/* Read, bind to the cluster's devices and check: layer ranges contiguous from 0, not empty and to one and the same end, micro-batches add
 * up, no device twice, every device there, ratios positive and as many as they should be. `layers` is the model's or profile's layer count
 * (-1: not checked). */
struct hspmd_plan *hspmd_plan_read(const char *path, const struct hspmd_cluster *c, int layers, struct hspmd_error *err);
struct hspmd_plan *hspmd_plan_from_json(const json_t *value, const char *name, const struct hspmd_cluster *c, int layers,
                                        struct hspmd_error *err);
json_t *hspmd_plan_to_json(const struct hspmd_plan *p, const struct hspmd_cluster *c); /* devices as runs "node:first-last" */
struct hspmd_plan *hspmd_plan_copy(const struct hspmd_plan *p);
void hspmd_plan_destroy(struct hspmd_plan *p);

/* Returns true if both stages have as many devices and divide tensors and the sequence among them alike. Layers, the devices themselves and
 * recomputation may differ. */
bool hspmd_stage_same_splits(const struct hspmd_stage *a, const struct hspmd_stage *b);

/* One line for people: "2 pipelines: [n0:0-1 x2 L0-6 | n1:0 L6-14] 5 mb, [n2:0 L0-14] 3 mb". malloc'd. */
char *hspmd_plan_summary(const struct hspmd_plan *p, const struct hspmd_cluster *c);
/* The part of a layer's state, if zero_stage divides it, that the pipeline's stage keeps: at most 1. */
double hspmd_plan_zero_part(const struct hspmd_plan *p, int pipeline, int layer);
/* Returns true if some stage has its optimizer's state in the host's memory; that, or activations. */
bool hspmd_plan_offloads(const struct hspmd_plan *p);
bool hspmd_plan_uses_host(const struct hspmd_plan *p);
/* How many devices the plan uses. */
int hspmd_plan_device_count(const struct hspmd_plan *p);
/* Returns true if all pipelines come to the same layers in the same order: they have as many micro-batches each, stages of the same layers,
 * and a schedule that defers nothing. */
bool hspmd_plan_in_step(const struct hspmd_plan *p);
/* Devices of the plan's largest tensor-parallel group. */
int hspmd_plan_widest_group(const struct hspmd_plan *p);

#endif
