/* SPDX-License-Identifier: Apache-2.0 */
/* The precision in which a plan computes. */
#ifndef HSPMD_FORMAT_PLAN_PRECISION_H
#define HSPMD_FORMAT_PLAN_PRECISION_H

#include "common/format/plan.h"

/* The precision in which hspmd computes the plan if `asked` is requested: fp32 instead of bf16 or tf32 if a device of the plan cannot
 * compute in that, because all devices hold parts of the same tensors. FP8 stays: its training state has amax histories, so that a plan
 * with a device without FP8 is refused (hspmd_plan_check_precision). Both solver and runtime use it. */
enum hspmd_precision hspmd_plan_precision(const struct hspmd_plan *p, const struct hspmd_cluster *c, enum hspmd_precision asked);

/* Returns true if the plan's elements are BF16 if `asked` is requested: with BF16, and with FP8, which products alone have as operands; if
 * all devices of the plan compute in BF16. */
bool hspmd_plan_is_bf16(const struct hspmd_plan *p, const struct hspmd_cluster *c, enum hspmd_precision asked);

/* Returns true if that differs from `asked`; why[0..size) is then a text for people: "computes in fp32 instead of bf16: ...". */
bool hspmd_plan_precision_differs(const struct hspmd_plan *p, const struct hspmd_cluster *c, enum hspmd_precision asked, char *why,
                                  size_t size);

/* -1 and err: a device of the plan cannot compute in it, and nothing else may take its place. */
int hspmd_plan_check_precision(const struct hspmd_plan *p, const struct hspmd_cluster *c, enum hspmd_precision asked,
                               struct hspmd_error *err);

#endif
