/* SPDX-License-Identifier: Apache-2.0 */
/* The precision in which a plan computes. */
#ifndef HSPMD_FORMAT_PLAN_PRECISION_H
#define HSPMD_FORMAT_PLAN_PRECISION_H

#include "common/format/plan.h"

/* The precision in which hspmd computes the plan if `asked` is requested: fp32 instead of bf16 or tf32 if a device of the plan cannot
 * compute in that, because all devices hold parts of the same tensors. Both solver and runtime use it. */
enum hspmd_precision hspmd_plan_precision(const struct hspmd_plan *p, const struct hspmd_cluster *c, enum hspmd_precision asked);

/* Returns true if that differs from `asked`; why[0..size) is then a text for people: "computes in fp32 instead of bf16: ...". */
bool hspmd_plan_precision_differs(const struct hspmd_plan *p, const struct hspmd_cluster *c, enum hspmd_precision asked, char *why,
                                  size_t size);

#endif
