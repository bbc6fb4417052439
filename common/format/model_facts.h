/* SPDX-License-Identifier: Apache-2.0 */
/* What training takes of every layer of a model: work, memory and communication, for one length of samples. Plain data; the runtime makes
 * it from a model's graph (runtime/facts/facts.h), and the solver's cost model reads it.
 *
 * Layers with the same operators on the same shapes are of one kind and share its facts. Layer 0 and the last layer are kinds of their own.
 *
 * A device of a stage has a share of each layer: the part `share` of what a tensor-parallel group divides (1 / tp if evenly), and the part
 * `context` of the sequence. Quantities of such a device are given as functions of both. */
#ifndef HSPMD_FORMAT_MODEL_FACTS_H
#define HSPMD_FORMAT_MODEL_FACTS_H

#include <stdbool.h>

#include "common/format/attention_memory.h"
#include "common/format/plan.h"

#define HSPMD_RECOMPUTE_KINDS (HSPMD_RECOMPUTE_FULL + 1)

/* Elements are computed and kept in this many bytes. */
enum hspmd_facts_width { HSPMD_FACTS_FP32, HSPMD_FACTS_BF16, HSPMD_FACTS_WIDTHS };

/* How a stage's devices run attention if a context group divides the sequence: on keys and values that arrive in parts, or on gathered
 * ones. Only FP32 is computed in parts. */
enum hspmd_facts_form { HSPMD_FACTS_GATHERED_FP32, HSPMD_FACTS_GATHERED_BF16, HSPMD_FACTS_PARTS_FP32, HSPMD_FACTS_FORMS };

/* How a tensor-parallel group divides layers. Each of its devices may need more than its share of what a single one needs: what the group
 * gathers and sends. */
enum hspmd_facts_division {
	HSPMD_FACTS_ALONE, /* it does not: a single device */
	HSPMD_FACTS_DIVIDED,
	HSPMD_FACTS_SEQUENCE, /* with sequence parallelism */
	HSPMD_FACTS_DIVISIONS
};

/* What operators need within them while they run (op_type.h). */
enum hspmd_facts_workspace {
	HSPMD_WORKSPACE_SAMPLES, /* for each sample */
	HSPMD_WORKSPACE_EACH,    /* for each sample, of operators that compute a few samples at a time */
	HSPMD_WORKSPACE_MOST,    /* of these, for any number of samples */
	HSPMD_WORKSPACE_WEIGHTS, /* for any number of samples: weights that are rounded */
	HSPMD_WORKSPACES
};

/* whole + by_share * share + by_context * context + by_both * share * context */
struct hspmd_facts_amount {
	double whole, by_share, by_context, by_both;
};

/* As a pass of a layer runs, its weights are read for the last time one after the other, and backward their gradients are there one after
 * the other. The pass as moments, in order: which fraction of the layer's weights is still to be read, of which there are gradients, and
 * the most bytes that the layer has saved and needs meanwhile, without weights and their gradients, for each sample. */
#define HSPMD_WEIGHT_MOMENTS 8
struct hspmd_layer_moments {
	int count; /* 0: not known */
	double unread[HSPMD_WEIGHT_MOMENTS], summed[HSPMD_WEIGHT_MOMENTS];
	struct hspmd_facts_amount bytes[HSPMD_WEIGHT_MOMENTS];
};

/* Bytes for each sample of a micro-batch. */
struct hspmd_layer_memory {
	struct hspmd_facts_amount saved;    /* kept from the forward pass for the backward pass */
	struct hspmd_facts_amount offloads; /* of these: what a stage that offloads all activations has in the host's memory */
	struct hspmd_facts_amount
	        offloads_later; /* of these: what only gradients of weights need, if they are computed after the backward pass */
	struct hspmd_facts_amount deferred; /* kept for gradients of weights that are computed after the backward pass (zb-h1) */
	/* Needed while the layer runs, in addition to what it and the layers before it save. split_backward: the backward pass without
	 * gradients of weights, in addition to what the layers after it have deferred. */
	struct hspmd_facts_amount forward, backward, split_backward;
	/* Sources of messages within the stage, which a pass leaves behind until the next pass is over. */
	struct hspmd_facts_amount left_forward, left_backward;
	struct hspmd_layer_moments moments[2]; /* of `forward` and `backward` */
};

/* Work of one pass over a layer: `sharded` is divided among a tensor-parallel group, `replicated` is done by each of its devices. All of it
 * is divided among context groups. */
struct hspmd_facts_work {
	double replicated, sharded;
};

/* What a message within a tensor-parallel group does. The last two are of tensors that are divided along the sequence, each half of an
 * all-reduce. */
enum hspmd_facts_message {
	HSPMD_FACTS_REDUCED,   /* a sum that every device gets */
	HSPMD_FACTS_SCATTERED, /* a sum of which every device gets its part */
	HSPMD_FACTS_GATHERED,  /* every device gathers all parts */
	HSPMD_FACTS_MESSAGES
};

/* Equal messages: of so many tensors. A device reads, and adds to, only those rows of tensors of experts that chose one of its experts, so
 * that only these need to be sent. */
struct hspmd_facts_tensors {
	enum hspmd_facts_message kind;
	bool by_share;          /* the parts that devices have, or get, are divided as weights are (heads), not along the sequence */
	/* With sequence parallelism in context groups all devices of a stage gather it together (router logits): what needs a whole sample
	 * does so along whatever divides the sequence. */
	bool by_all;
	bool whole; /* of a context group's: each device of a tensor-parallel group has all of it, not a share (router logits) */
	int experts, per_token; /* of which rows choose some; experts 0: all rows are sent */
	double count, bytes;    /* bytes: of each, for each sample, before a group divides it */
};

/* Messages of one pass within a tensor-parallel group: those of another kind or size apart, as the latency of each counts. */
#define HSPMD_FACTS_SIZES 16
struct hspmd_facts_messages {
	int count;
	struct hspmd_facts_tensors of[HSPMD_FACTS_SIZES];
};

struct hspmd_layer_pass {
	struct hspmd_facts_work flops;   /* floating-point operations for each sample */
	struct hspmd_facts_work fp8;     /* of these: of products of FP8 operands, in facts of a job in FP8 */
	struct hspmd_facts_work fp8_experts; /* of these: those of experts that GPUs with products of warp-groups multiply in FP8 */
	struct hspmd_facts_work bytes;   /* read and written for each sample */
	struct hspmd_facts_work parted_flops, parted_bytes; /* flops and bytes with sequence parallelism, under which each device has a part
	                                                       of what it would have whole without */
	struct hspmd_facts_work weights; /* bytes read and written for each micro-batch, of any number of samples */
	struct hspmd_facts_work windows; /* bytes of convolutions' windows for each sample */
	double kernels;                  /* operators */
	struct hspmd_facts_messages messages[2]; /* [sequence parallelism] */
	struct hspmd_facts_messages context;     /* within a context group: what it gathers or, backward, sums */
};

/* The largest matrix products of a layer, of whose factors a device packs blocks (common/format/cluster.h): the most rows or columns, of
 * factors that each device has whole and of those that a tensor-parallel group divides (before that), and the most positions of one sample
 * that are summed. All 0: there are none. */
struct hspmd_layer_products {
	double whole, sharded, positions;
};

struct hspmd_layer_facts {
	struct hspmd_facts_work params; /* number of parameters */
	struct hspmd_facts_work vectors; /* of these: those of one dimension (gains, biases), which ZeRO does not divide */
	double partial_params;          /* of these: whole weights whose gradients a tensor-parallel group has to sum */
	double output_elements;         /* sent to the next layer for each sample; the last layer: of the loss */
	bool recomputable;              /* full recomputation applies to it */
	struct hspmd_layer_pass forward[HSPMD_FACTS_WIDTHS], backward[HSPMD_FACTS_WIDTHS];
	/* The part of `forward` that the backward pass repeats. */
	struct hspmd_layer_pass again[HSPMD_RECOMPUTE_KINDS][HSPMD_FACTS_WIDTHS];
	struct hspmd_facts_amount workspace[HSPMD_FACTS_FORMS][HSPMD_WORKSPACES]; /* bytes, on GPUs (gathered) and CPUs */
	struct hspmd_attention_sizes attention; /* of one sample, whose gradient has the most scores; no heads: there is none */
	struct hspmd_layer_products products;
	/* [form][context parallelism][division][recompute]; if there are fewer lists of operators, the others' are as the kind before. They
	 * differ in more than in shares: a group has what it gathers, and what it sends and receives. */
	struct hspmd_layer_memory memory[HSPMD_FACTS_FORMS][2][HSPMD_FACTS_DIVISIONS][HSPMD_RECOMPUTE_KINDS];
};

/* What operators of one name save in the layers of one kind: what a stage has in the host's memory, for each sample of a micro-batch, if it
 * offloads their results. */
struct hspmd_saved_results {
	int kind;          /* of layer */
	char *op, *weight; /* names that a list may have for them (recompute_sets.h); owned. NULL: they multiply with no weight of a name */
	bool of_block_before; /* the layer saves results of the block before it, which the first block of a stage does not have */
	/* Of these, and likewise indexed: `offloads` and `offloads_later` of struct hspmd_layer_memory. */
	struct hspmd_facts_amount bytes[HSPMD_FACTS_FORMS][2][HSPMD_FACTS_DIVISIONS][HSPMD_RECOMPUTE_KINDS][2];
};

/* Weights of one layer that another layer uses too. */
struct hspmd_layer_tie {
	int owner;     /* the other layer, whose weights they are; -1: none */
	double params; /* number of them */
};

struct hspmd_model_facts {
	char *name;
	int seq_len; /* of the samples that these facts are about */
	int layer_count, kind_count;
	int *kind_of_layer;              /* [layer_count] */
	struct hspmd_layer_facts *kinds; /* [kind_count] */
	struct hspmd_layer_tie *ties;    /* [layer_count] */
	int result_count;
	struct hspmd_saved_results *results; /* [result_count] of blocks */
	double params;                   /* of the whole model; shared ones count once */
	int moments;                     /* values that the optimizer keeps per parameter in addition to it */
	json_t *recompute_sets; /* lists of operators worth recomputing, each with all of the one before (recompute_sets.h); owned */
	/* Into how many parts the weights can be divided that consist of few large ones: heads that share keys and values, experts.
	 * Greatest common divisors; 0: there are no such weights, 1: nothing can be divided. */
	int even_parts; /* of weights whose parts are several rows (heads): a tensor-parallel degree should divide it */
	int parts;      /* of all such weights: unequal shares are multiples of 1 / parts */
	/* The facts of plans that have a tensor-parallel group of more than even_parts devices, in which each device has all heads of keys
	 * and values; owned. NULL: there are no such plans. */
	struct hspmd_model_facts *wide;
};

/* Add messages. If there are more than HSPMD_FACTS_SIZES different ones, the two of a kind that are nearest in size count as equal. */
void hspmd_facts_messages_add(struct hspmd_facts_messages *m, const struct hspmd_facts_tensors *tensors);
bool hspmd_facts_messages_equal(const struct hspmd_facts_messages *a, const struct hspmd_facts_messages *b);
/* Bytes of all tensors of a kind, for each sample. */
double hspmd_facts_messages_bytes(const struct hspmd_facts_messages *m, enum hspmd_facts_message kind);
void hspmd_model_facts_destroy(struct hspmd_model_facts *f);
const struct hspmd_layer_facts *hspmd_model_layer_facts(const struct hspmd_model_facts *f, int layer);
/* Returns true if a tensor-parallel group of this degree gets equal parts. */
bool hspmd_model_divides(const struct hspmd_model_facts *f, int tp);
/* Returns the facts that a plan is to be predicted by: f, or f->wide, whose layers differ in all stages of the plan. */
const struct hspmd_model_facts *hspmd_model_facts_of_plan(const struct hspmd_model_facts *f, const struct hspmd_plan *plan);
double hspmd_facts_amount_at(const struct hspmd_facts_amount *a, double share, double context);

#endif
