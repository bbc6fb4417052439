/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of stochastic rounding: a model's master parameters and their copies in BF16, put together from what the devices of a plan
 * hold. */
#ifndef TESTS_GPU_ROUNDING_CASE_H
#define TESTS_GPU_ROUNDING_CASE_H

#include "runtime/exec/execute.h"

struct rounding_case;

struct rounding_case *rounding_case_create(void);
void rounding_case_destroy(struct rounding_case *c);

/* Add what one device holds; as `ended` of struct trainer_options, context: the case. -1 and err: two devices hold other bits of one
 * element. */
int rounding_case_take(void *c, const struct hspmd_program *program, const struct hspmd_executor *executor, struct hspmd_device *device,
                       struct hspmd_error *err);

/* Is every copy of every element what its master is rounded to by (seed, updates, the parameter's name, the element's index in the whole
 * parameter)? And do all have one that should? 0, or -1 and err. */
int rounding_case_check(const struct rounding_case *c, uint64_t seed, int64_t updates, struct hspmd_error *err);

/* Are masters and copies the same bits? 0, or -1 and err. */
int rounding_case_compare(const struct rounding_case *a, const struct rounding_case *b, struct hspmd_error *err);

/* How many of the copies' elements are not the nearest to their masters, of how many. */
void rounding_case_count(const struct rounding_case *c, int64_t *moved, int64_t *all);

/* CAST and AdamW's copy on this GPU against the CPU device's CAST, to the bit: cut tensors of many shapes, values that are none of the
 * usual, many at once and one by one. */
void rounding_case_operators(struct hspmd_device *gpu);

#endif
