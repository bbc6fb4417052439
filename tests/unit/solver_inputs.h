/* SPDX-License-Identifier: Apache-2.0 */
/* Small clusters and models for the solver's tests, made from text. Every function fails the test on an error. The caller destroys what
 * is returned. */
#ifndef HSPMD_TESTS_UNIT_SOLVER_INPUTS_H
#define HSPMD_TESTS_UNIT_SOLVER_INPUTS_H

#include "controller/solver/solver.h"
#include "runtime/facts/facts.h"

/* Four nodes of one CPU device each, with gflops[i] each, and links of `gbytes_per_s` between them. */
struct hspmd_cluster *cpu_cluster(const double gflops[4], double gbytes_per_s);
/* The cluster described by a cluster file's text. */
struct hspmd_cluster *cluster_from(const char *text);
struct hspmd_model *model_from(const char *text);
/* What is known of a model; seq_len 0: for its longest samples. */
struct hspmd_model_facts *facts_of(const struct hspmd_model *m, int seq_len);
/* Of a GPT-2 of `blocks` blocks, hidden size 128, 4 heads, 256 words, at most 256 positions. */
struct hspmd_model_facts *small_gpt2(int blocks, int seq_len);
/* Fail unless the plan, written as text, reads back as the same text: everything that the format checks holds. */
void check_plan(const struct hspmd_plan *p, const struct hspmd_cluster *c, int layers);

#endif
