/* SPDX-License-Identifier: Apache-2.0 */
/* For tests: a program for a plan with `synthesis`, drawn at random instead of found. */
#ifndef TESTS_RANDOM_PROGRAM_H
#define TESTS_RANDOM_PROGRAM_H

#include <stdint.h>

#include "runtime/program/program.h"

/* Sets plan->program to random choices under random shares that fit together. *state: of a generator of random numbers. 0, or -1 and
 * err. */
int random_program(struct hspmd_plan *plan, const struct hspmd_cluster *cluster, const struct hspmd_graph_source *source, uint64_t *state,
                   struct hspmd_error *err);

#endif
