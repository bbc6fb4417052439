/* SPDX-License-Identifier: Apache-2.0 */
/* A plan beside what it trains (plan.h is about the plan itself). */
#ifndef HSPMD_FORMAT_PLAN_MODEL_H
#define HSPMD_FORMAT_PLAN_MODEL_H

#include "common/format/model.h"
#include "common/format/plan.h"

/* The precision in which hspmd computes the plan when `asked` is asked for: fp32 instead of bf16 if a device of the plan cannot compute in
 * bf16, because all devices have parts of the same tensors. Solver and runtime both decide by it. */
enum hspmd_precision hspmd_plan_precision(const struct hspmd_plan *p, const struct hspmd_cluster *c, enum hspmd_precision asked);

/* Is that another than `asked`? Then why[0..size) is what to tell people: "computes in fp32 instead of bf16: ...". */
bool hspmd_plan_precision_differs(const struct hspmd_plan *p, const struct hspmd_cluster *c, enum hspmd_precision asked, char *why,
                                  size_t size);

/* Does no tensor-parallel group have more devices than the model has parts that are not divided (heads of keys and values, experts)? 0, or
 * -1 and err, which names the plan's path, the group's size and what the model has. */
int hspmd_plan_check_model(const struct hspmd_plan *p, const struct hspmd_model *m, struct hspmd_error *err);

#endif
