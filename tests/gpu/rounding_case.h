/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of stochastic rounding: a model's master parameters and their BF16 copies, assembled from what the devices of a plan hold. */
#ifndef TESTS_GPU_ROUNDING_CASE_H
#define TESTS_GPU_ROUNDING_CASE_H

#include "runtime/exec/execute.h"

struct rounding_case;

struct rounding_case *rounding_case_create(void);
void rounding_case_destroy(struct rounding_case *c);

/* Adds what one device holds. Can be `ended` of struct trainer_options, with the case as its context. Returns -1 and err if two devices
 * hold different bits of one element. */
int rounding_case_take(void *c, const struct hspmd_program *program, const struct hspmd_executor *executor, struct hspmd_device *device,
                       struct hspmd_error *err);

/* Checks that every copy of every element is its master, rounded as (seed, updates, the parameter's name, the element's index in the whole
 * parameter) determine, and that every element that should have a copy has one. Returns 0, or -1 and err. */
int rounding_case_check(const struct rounding_case *c, uint64_t seed, int64_t updates, struct hspmd_error *err);

/* Checks that two cases have the same masters and copies, to the bit. Returns 0, or -1 and err. */
int rounding_case_compare(const struct rounding_case *a, const struct rounding_case *b, struct hspmd_error *err);

/* Counts the elements of the copies: *all, and *moved that are not the nearest to their masters. */
void rounding_case_count(const struct rounding_case *c, int64_t *moved, int64_t *all);

/* Compares CAST and AdamW's copy on this GPU with the CPU device's CAST, to the bit: parts of tensors of many shapes, special values, many
 * at once and one by one. */
void rounding_case_operators(struct hspmd_device *gpu);

#endif
