/* SPDX-License-Identifier: Apache-2.0 */
/* What training takes of every layer, from the model's graph, for the solver. Nothing here knows a model: operators say what they cost
 * (op_type.h), the sharding pass says what a group divides, sums and gathers, and memory is read off the programs that the runtime makes
 * for a few layouts of one device, two, and four. */
#ifndef HSPMD_FACTS_FACTS_H
#define HSPMD_FACTS_FACTS_H

#include "common/format/model_facts.h"
#include "runtime/program/program.h"

/* The facts of a model for samples of seq_len tokens. `name` is copied. If the source's precision is not FP8, the facts are for all
 * others. If the graph cannot be divided among two devices, parts and even_parts are 1. The caller destroys the result. NULL and err: the
 * graph cannot be built, or memory. */
struct hspmd_model_facts *hspmd_model_facts_build(const struct hspmd_graph_source *source, const char *name, int seq_len,
                                                  struct hspmd_error *err);

/* seq_len, or if that is 0 the length of the longest samples; -1 and err: a model of one's own that takes any. */
int hspmd_model_facts_length(const struct hspmd_model *m, int seq_len, struct hspmd_error *err);
/* The facts of a built-in model. seq_len 0: of its longest samples. */
struct hspmd_model_facts *hspmd_model_facts_of(const struct hspmd_model *m, int seq_len, struct hspmd_error *err);

/* A model with one layer of each kind (model_facts.h), whose layers are the kinds: small enough to be tried out where the model is not.
 * widest: devices of the largest tensor-parallel group of its plans, for which all its graphs are built. The source is copied;
 * its context must outlive the result, which the caller destroys. NULL and err: the graph cannot be built, or memory. */
struct hspmd_reduced_model;
struct hspmd_reduced_model *hspmd_reduced_model_create(const struct hspmd_graph_source *full, int seq_len, int widest,
                                                       struct hspmd_error *err);
struct hspmd_graph_source hspmd_reduced_model_source(struct hspmd_reduced_model *m); /* borrows it */
void hspmd_reduced_model_destroy(struct hspmd_reduced_model *m);

#endif
