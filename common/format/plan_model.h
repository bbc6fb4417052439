/* SPDX-License-Identifier: Apache-2.0 */
/* A plan together with what it trains (plan.h is about the plan alone). */
#ifndef HSPMD_FORMAT_PLAN_MODEL_H
#define HSPMD_FORMAT_PLAN_MODEL_H

#include "common/format/model.h"
#include "common/format/plan.h"

/* The precision in which hspmd computes the plan if `asked` is requested: fp32 instead of bf16 if a device of the plan cannot compute in
 * bf16, because all devices hold parts of the same tensors. Both solver and runtime use it. */
enum hspmd_precision hspmd_plan_precision(const struct hspmd_plan *p, const struct hspmd_cluster *c, enum hspmd_precision asked);

/* Returns true if that differs from `asked`; why[0..size) is then a text for people: "computes in fp32 instead of bf16: ...". */
bool hspmd_plan_precision_differs(const struct hspmd_plan *p, const struct hspmd_cluster *c, enum hspmd_precision asked, char *why,
                                  size_t size);

/* 0 if no tensor-parallel group has more devices than the model has indivisible parts (attention heads, experts). Else -1 and err,
 * which names the plan's path, the group's size and the model's number of parts. */
int hspmd_plan_check_model(const struct hspmd_plan *p, const struct hspmd_model *m, struct hspmd_error *err);

#endif
