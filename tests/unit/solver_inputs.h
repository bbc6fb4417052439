/* SPDX-License-Identifier: Apache-2.0 */
/* Small clusters and models for the solver's tests, from text. Every function fails the test on an error. */
#ifndef HSPMD_TESTS_UNIT_SOLVER_INPUTS_H
#define HSPMD_TESTS_UNIT_SOLVER_INPUTS_H

#include "controller/solver/solver.h"

/* Four nodes of one CPU device each at `gflops` of their own, links of `gbytes_per_s` between them. */
struct hspmd_cluster *cpu_cluster(const double gflops[4], double gbytes_per_s);
/* `nodes` nodes of `devices` GPUs, as a cluster text would give them. */
struct hspmd_cluster *cluster_from(const char *text);
struct hspmd_model *model_from(const char *text);
/* A GPT-2 of `blocks` blocks, hidden size 128, 4 heads, 256 words. */
struct hspmd_model *small_gpt2(int blocks);
/* The plan must read back as its own text: everything the format checks holds. */
void check_plan(const struct hspmd_plan *p, const struct hspmd_cluster *c, int layers);

#endif
