/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HSPMD_FACTS_FACTS_INTERNAL_H
#define HSPMD_FACTS_FACTS_INTERNAL_H

#include "runtime/facts/facts.h"

/* ---- layer_kinds.c: which layers are equal, and the model with one layer of each kind */

struct hspmd_layer_kinds {
	int layer_count, kind_count;
	int *kind_of_layer; /* [layer_count] */
	int *first_layer;   /* [kind_count] the first layer of each kind; ascending */
	size_t *ops;        /* forward operators, layer by layer */
	size_t *start;      /* [layer_count + 1] where a layer's operators begin in `ops` */
};

/* 0 or -1. Fills *out, which hspmd_layer_kinds_clear frees. */
int hspmd_layer_kinds_find(const struct hspmd_graph *g, int layer_count, struct hspmd_layer_kinds *out, struct hspmd_error *err);
void hspmd_layer_kinds_clear(struct hspmd_layer_kinds *kinds);

/* The forward operators of one layer of each kind, as a graph whose layers are the kinds; an operator that reads a tensor of another layer
 * reads that of the layer of the same kind. NULL and err. */
struct hspmd_graph *hspmd_layer_kinds_graph(const struct hspmd_graph *g, const struct hspmd_layer_kinds *kinds, struct hspmd_error *err);
/* A copy of a graph's forward operators, computed in another type. NULL and err. */
struct hspmd_graph *hspmd_graph_copy_forward(const struct hspmd_graph *g, bool bf16, struct hspmd_error *err);

/* ---- recompute_sets.c: which operators are worth recomputing. 0, or -1 (memory). whole: the program of one device for a model whose
 * layers are the kinds; divided: of one of a tensor-parallel group (NULL: there is none), whose members' addends lists do not compute
 * again, because they do not sum them again; weight: of each layer, how many there are of its kind. The caller owns *sets. */
int hspmd_recompute_sets_choose(const struct hspmd_program *whole, const struct hspmd_program *divided, int layers, const double *weight,
                                json_t **sets, struct hspmd_error *err);

/* ---- parameters.c */

/* The number of elements of every weight, from the whole model's graph: weights that a layer reads and another layer owns tie them. */
void hspmd_facts_count_parameters(struct hspmd_model_facts *f, const struct hspmd_graph *g);
/* Returns true if the weights of a model's graph can be divided into more parts than `parts` (struct hspmd_model_facts). */
bool hspmd_graph_has_more_parts(const struct hspmd_graph *g, int parts);

/* ---- reduced_model.c */

/* A graph of the reduced model per set of options that change it. */
#define HSPMD_REDUCED_MAX 8

struct hspmd_reduced_model {
	struct hspmd_graph_source full;
	int widest;
	struct hspmd_graph *whole; /* the full model's forward operators, for one sample */
	struct hspmd_layer_kinds kinds;
	int count;
	struct {
		struct hspmd_model_build_options how;
		struct hspmd_graph *graph;
	} made[HSPMD_REDUCED_MAX];
};

/* ---- probe.c: the programs that memory and work are read from */

/* A stage of all layers of the reduced model, on tp * context devices, and samples per micro-batch. */
struct hspmd_probe_layout {
	int tp, context;
	bool sequence_parallel;
	int samples;
};

/* The moments of a pass (struct hspmd_layer_moments) in one program. */
struct hspmd_probe_moments {
	int count;
	double unread[HSPMD_WEIGHT_MOMENTS + 1], summed[HSPMD_WEIGHT_MOMENTS + 1], bytes[HSPMD_WEIGHT_MOMENTS + 1];
};

/* Quantities of one layer in one program, for one sample. */
struct hspmd_probe_memory {
	double saved, offloads, offloads_later, deferred, forward, backward, split_backward, left_forward, left_backward;
	struct hspmd_probe_moments moments[2];
};

/* One layout, and the program of its last device, whose part is as large as any, without recomputation. */
struct hspmd_probe {
	struct hspmd_cluster *cluster;
	struct hspmd_plan *plan;
	struct hspmd_program *program;
	struct hspmd_resolve_cache *resolved; /* of its variations */
};

/* `source` gives the reduced model. 0, or -1 and err; then *out is empty. hspmd_probe_close frees it. */
int hspmd_probe_open(struct hspmd_probe *out, const struct hspmd_graph_source *source, const struct hspmd_probe_layout *layout,
                     enum hspmd_facts_form form, int seq_len, struct hspmd_error *err);
void hspmd_probe_close(struct hspmd_probe *p);
/* The program with another recomputation (of these lists of operators) and schedule; to be destroyed before the probe is closed. NULL and
 * err. */
struct hspmd_program *hspmd_probe_program(const struct hspmd_probe *p, json_t *sets, enum hspmd_recompute recompute,
                                          enum hspmd_schedule schedule, struct hspmd_error *err);
/* Fill what a program of this schedule shows of each layer (1f1b: all but deferred and split_backward, zb-h1: these two). results: of the
 * same, what operators of one name save (of each of `facts->results`, [0] with 1f1b, [1] with zb-h1). 0 or -1. */
int hspmd_probe_memory(const struct hspmd_program *p, enum hspmd_facts_form form, bool deferred, const struct hspmd_model_facts *facts,
                       struct hspmd_probe_memory *layers, double (*results)[2], struct hspmd_error *err);

/* probe_results.c: list the names of the operators in the blocks of the reduced model, whose layers are the kinds. 0, or -1 (memory). */
int hspmd_probe_list_results(const struct hspmd_graph *g, struct hspmd_model_facts *facts, struct hspmd_error *err);
/* Which of facts->results a slot is that `layer` saves; -1: none. */
int hspmd_probe_result(const struct hspmd_program *p, const struct hspmd_model_facts *facts, size_t slot,
                       const struct hspmd_instruction *made_by, int layer);
/* Drop the results that nothing saves. */
void hspmd_probe_drop_results(struct hspmd_model_facts *facts);

/* probe_moments.c: fill a layer's moments in its pass, the instructions [from, end). bytes: per instruction of these, what is needed. 0 or
 * -1. */
int hspmd_probe_moments(const struct hspmd_program *p, int layer, size_t from, size_t end, const double *bytes,
                        struct hspmd_probe_moments *out);

/* Work of each layer on the program's device: passes[layer][backward]. */
struct hspmd_probe_pass {
	double flops, bytes, kernels;
	double fp8, fp8_experts;           /* of the flops, those of products of FP8 operands; and of these, those of experts */
	double windows;                    /* bytes */
	struct hspmd_facts_messages messages;
	struct hspmd_attention_sizes attention; /* whose gradient has the most scores; no heads: there is none */
	double workspace[2][HSPMD_WORKSPACES]; /* each of the operator that needs most; [1]: at once (op_type.h) */
};
/* The same model's programs in layouts with which a program's may be combined, whose messages of the same tensors are one with its own
 * where both are. NULL: there is none. */
struct hspmd_probe_others {
	const struct hspmd_program *sequence; /* divides the sequence for another reason (context groups, sequence parallelism) */
	const struct hspmd_program *heads;    /* of a context group's: that of a tensor-parallel group without sequence parallelism */
	const struct hspmd_graph *types;      /* an equal graph, whose elements count; NULL: the program's own */
};
/* Fill them. 0 or -1 (memory). */
int hspmd_probe_work(const struct hspmd_program *p, const struct hspmd_probe_others *others, struct hspmd_probe_pass (*passes)[2],
                     struct hspmd_error *err);
/* Fill the layers' products. `divided`: the same model's program in a layout of two tensor-parallel devices; NULL: there is none. 0 or
 * -1. */
int hspmd_probe_products(const struct hspmd_program *whole, const struct hspmd_program *divided, struct hspmd_layer_facts *layers,
                         struct hspmd_error *err);
/* Add the part of the forward pass that `recomputed` repeats, at the costs of `p`, a program of the same layout without recomputation: to
 * passes[layer]. `recomputed` must be of CPU devices, whose programs have no fused pairs of operators of the forward pass. */
int hspmd_probe_again(const struct hspmd_program *p, const struct hspmd_program *recomputed, const struct hspmd_probe_others *others,
                      struct hspmd_probe_pass *passes, struct hspmd_error *err);

#endif
