/* SPDX-License-Identifier: Apache-2.0 */
/* Operators' cases (tests/unit/op_case.h) with random shapes, heads, windows, experts and parts. */
#ifndef TESTS_GPU_RANDOM_CASE_H
#define TESTS_GPU_RANDOM_CASE_H

#include "tests/unit/op_case.h"

#define RANDOM_KINDS 15 /* kinds of operators; consecutive seeds take one kind after another */

/* A pure function of the seed. `name` receives the values drawn. The case is valid until the next call. */
struct op_case random_case(unsigned seed, char *name, size_t size);

#endif
