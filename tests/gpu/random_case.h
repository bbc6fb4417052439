/* SPDX-License-Identifier: Apache-2.0 */
/* Operators' cases (tests/unit/op_case.h) whose shapes, heads, windows, experts and parts are drawn. */
#ifndef TESTS_GPU_RANDOM_CASE_H
#define TESTS_GPU_RANDOM_CASE_H

#include "tests/unit/op_case.h"

#define RANDOM_KINDS 15 /* of operators, of which seeds that follow one another take one after the other */

/* A pure function of the seed. name: gets what was drawn. What it builds is good until the next call. */
struct op_case random_case(unsigned seed, char *name, size_t size);

#endif
