/* SPDX-License-Identifier: Apache-2.0 */
/* For tests: transfers on simulated devices. Random annotations, sources with known values, an interpreter that executes a transfer's
 * steps literally, and a comparison of the result with slices of the full tensor. */
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

/* A valid annotation for the shape over some of the devices 0 .. devices-1. */
struct hspmd_annotation *random_annotation(struct random *r, const struct hspmd_shape *shape, int devices);
/* A valid annotation over the same subgroups as `a`, with other states and another hdim. */
struct hspmd_annotation *random_relative(struct random *r, const struct hspmd_annotation *a, const struct hspmd_shape *shape);

/* One packed buffer per device, NULL if it holds nothing. */
struct buffers {
	int devices;
	double **data;
};
void buffers_destroy(struct buffers *b);

/* The parts of a tensor with the values `full` on all devices: addends are random with the right sum. exact: integers, so that sums do
 * not depend on their order. */
struct buffers buffers_source(struct random *r, const struct hspmd_annotation *a, const struct hspmd_shape *shape, const double *full,
                              bool exact, int devices);

/* Run all steps. Returns true; or false and a message: a step reads or writes what its devices do not hold, writes twice, or leaves
 * something unwritten. */
bool transfer_run(const struct hspmd_transfer *t, const struct buffers *source, struct buffers *result, char *message, size_t size);

/* Check that the result has the layout and values of the annotation. tolerance 0: exactly. Duplicates must be equal to the bit in any
 * case. */
bool buffers_check(const struct buffers *b, const struct hspmd_annotation *a, const struct hspmd_shape *shape, const double *full,
                   double tolerance, char *message, size_t size);

#endif
