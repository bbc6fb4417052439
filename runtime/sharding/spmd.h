/* SPDX-License-Identifier: Apache-2.0 */
/* The passes annotate, deduce and resolve over one pipeline's graph. Every tensor gets an annotation in every stage that uses it, and if a
 * tensor is not laid out as its user needs it, a Reshard with its resolved transfer stands before the user (HSPMD, arXiv 2504.20490,
 * section 4).
 *
 * A value is a tensor in one layout: (tensor, stage, annotation). A node is an operator on values, or a Reshard from one value to another.
 * Nodes are in a valid order of execution; a device runs the nodes that it takes part in, in that order. */
#ifndef HSPMD_SHARDING_SPMD_H
#define HSPMD_SHARDING_SPMD_H

#include "runtime/graph/graph.h"
#include "runtime/resharding/resolve.h"

/* The devices of a stage and how its tensors are split: `context` groups divide the sequence; the devices of a group divide heads and
 * widths. Stages that have a device in common have the same devices and the same splits. */
struct hspmd_spmd_stage {
	int device_count; /* context * tensor-parallel degree; group after group */
	const int *devices;
	int context;
	const int64_t *context_weights; /* per group, NULL: even */
	const int64_t *tensor_weights;  /* per device of a group, NULL: even */
	bool ring;                      /* its devices' attention accepts keys and values in parts, so that they need not be gathered */
	bool sequence_parallel;         /* activations between the split operators are also split along the sequence */
};

struct hspmd_value {
	int tensor;
	int stage;
	struct hspmd_annotation *annotation;
	int choice;  /* the value that says which experts its rows chose, if only rows of experts count; -1: none */
	int same_as; /* the value that has the same bytes (after a Reshard with nothing to do), -1: none */
	int next;    /* next value of the same tensor, -1: none */
};

struct hspmd_spmd_node {
	int op;    /* index into the graph's ops; -1: Reshard of in[0] to out[0]; in[1], if there is one: the experts that rows chose */
	int stage; /* of the operator, or of the user of the Reshard */
	int layer;
	bool backward;
	int input_count, output_count;
	int in[HSPMD_OP_MAX_IO], out[HSPMD_OP_MAX_IO]; /* values, -1: absent */
	unsigned accumulate;             /* bit o: an earlier node wrote output o, and this one adds to it (ring_attention.c) */
	int skip_devices;                /* number of the stage's first devices that do not run it */
	struct hspmd_transfer *transfer; /* Reshards */
};

struct hspmd_spmd {
	const struct hspmd_graph *graph; /* borrowed */
	size_t value_count, value_capacity, node_count, node_capacity;
	struct hspmd_value *values;
	struct hspmd_spmd_node *nodes;
	int *first_value; /* per tensor, -1: none */
};

/* stage_of_layer[layer] for every layer of the graph. Errors name stage ("stages[2]: .."), operator, tensor, annotation. cost as in
 * resolve.h. NULL and err on failure. */
struct hspmd_spmd *hspmd_spmd_build(const struct hspmd_graph *g, const struct hspmd_spmd_stage *stages, const int *stage_of_layer,
                                    const struct hspmd_link_cost *cost, struct hspmd_error *err);
/* The same values with the same annotations, but no Reshards between them: it costs a small part of the time. Cannot be run. */
struct hspmd_spmd *hspmd_spmd_deduce(const struct hspmd_graph *g, const struct hspmd_spmd_stage *stages, const int *stage_of_layer,
                                     struct hspmd_error *err);
void hspmd_spmd_destroy(struct hspmd_spmd *s);

/* The first value of a tensor in a stage; -1: none. Parameters and their gradients are in the first stage that their devices run. */
int hspmd_spmd_value(const struct hspmd_spmd *s, int tensor, int stage);

/* The annotation of a parameter in a stage. NULL and err on failure (memory, or a device would hold nothing: names the parameter). */
struct hspmd_annotation *hspmd_spmd_parameter(const struct hspmd_tensor *parameter, const struct hspmd_spmd_stage *stage,
                                              struct hspmd_error *err);

/* All nodes for readers: operator, values with annotations, transfers. malloc'd. */
char *hspmd_spmd_text(const struct hspmd_spmd *s);

#endif
