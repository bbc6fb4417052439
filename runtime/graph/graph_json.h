/* SPDX-License-Identifier: Apache-2.0 */
/* The forward operators of a graph as JSON, for another process of the same program: attributes of operators are written as they lie in
 * memory. */
#ifndef HSPMD_GRAPH_GRAPH_JSON_H
#define HSPMD_GRAPH_GRAPH_JSON_H

#include <jansson.h>

#include "runtime/graph/graph.h"

/* A new reference; NULL: memory. */
json_t *hspmd_graph_to_json(const struct hspmd_graph *g);

/* The graph of such a value, made by the same calls in the same order, so that tensors have the same numbers and names. Every operator's
 * shape rule checks it again. layers: the number of the model's layers. The caller destroys the graph. NULL and err: the value is not such
 * a graph, or memory. */
struct hspmd_graph *hspmd_graph_from_json(const json_t *value, const struct hspmd_op_type *const *types, enum hspmd_dtype compute_dtype,
                                          int layers, struct hspmd_error *err);

#endif
