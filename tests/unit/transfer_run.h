/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers on simulated devices, for tests: random annotations, sources with a known value, an interpreter that executes a transfer's
 * steps literally, and the comparison of the results with slices of the full tensor. */
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
/* A legal annotation over the same subgroups as `a`, in other states and with another relation. */
struct hspmd_annotation *random_relative(struct random *r, const struct hspmd_annotation *a, const struct hspmd_shape *shape);

/* One packed buffer per device, NULL if the device holds nothing. */
struct buffers {
	int devices;
	double **data;
};
void buffers_destroy(struct buffers *b);

/* Every device's part of a tensor with the values `full`: addends are random but sum up to it. exact: whole numbers, so that sums do not
 * depend on their order. */
struct buffers buffers_source(struct random *r, const struct hspmd_annotation *a, const struct hspmd_shape *shape, const double *full,
                              bool exact, int devices);

/* The experts that the rows of a tensor chose: per_token numbers for each row. */
struct chosen_experts {
	int per_token;
	int32_t *of_row;
};
/* Returns true if row `row` of a tensor chose one of these experts. */
bool row_chose(const struct chosen_experts *c, int64_t row, const struct hspmd_expert_range *experts);

/* Runs all steps; choice: for those that send rows of experts; *sent: rows that these send from one device to another; both may be NULL.
 * Of copies of rows of experts, other rows are 0. Returns true, or false and a message: a step reads or writes elements that its devices do
 * not hold, writes twice, or does not write everything. */
bool transfer_run(const struct hspmd_transfer *t, const struct chosen_experts *choice, const struct buffers *source, struct buffers *result,
                  int64_t *sent, char *message, size_t size);

/* Checks that the result has the layout and the values that the annotation gives. tolerance 0: exactly. Duplicates must always be equal to
 * the bit. */
bool buffers_check(const struct buffers *b, const struct hspmd_annotation *a, const struct hspmd_shape *shape, const double *full,
                   double tolerance, char *message, size_t size);

#endif
