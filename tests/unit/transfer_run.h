/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers on simulated devices, for tests: random annotations, sources whose value is known, an interpreter that follows a transfer's
 * steps to the letter, and the comparison of what arrives with slices of the full tensor. */
#ifndef HSPMD_TEST_TRANSFER_RUN_H
#define HSPMD_TEST_TRANSFER_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/resharding/resolve.h"

/* Deterministic random numbers (splitmix64). */
struct random {
	uint64_t state;
};
uint64_t random_next(struct random *r);
int64_t random_range(struct random *r, int64_t low, int64_t high); /* both inclusive */

/* A legal annotation for the shape over some of the devices 0 .. devices-1. */
struct hspmd_annotation *random_annotation(struct random *r, const struct hspmd_shape *shape, int devices);
/* A legal annotation over the same subgroups as `a`, in other states and another relation. */
struct hspmd_annotation *random_relative(struct random *r, const struct hspmd_annotation *a, const struct hspmd_shape *shape);

/* One packed buffer a device, NULL where it holds nothing. */
struct buffers {
	int devices;
	double **data;
};
void buffers_destroy(struct buffers *b);

/* What every device holds of a tensor with the values `full`: addends are random but sum up to it. exact: whole numbers, so that sums do
 * not depend on their order. */
struct buffers buffers_source(struct random *r, const struct hspmd_annotation *a, const struct hspmd_shape *shape, const double *full,
                              bool exact, int devices);

/* Run all steps. true, or false and a message: a step reads or writes what its devices do not hold, writes twice, or leaves something
 * unwritten. */
bool transfer_run(const struct hspmd_transfer *t, const struct buffers *source, struct buffers *result, char *message, size_t size);

/* Does the result lie and read as the annotation says? tolerance 0: exactly. Duplicates must be equal to the bit in any case. */
bool buffers_check(const struct buffers *b, const struct hspmd_annotation *a, const struct hspmd_shape *shape, const double *full,
                   double tolerance, char *message, size_t size);

#endif
