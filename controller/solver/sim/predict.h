/* SPDX-License-Identifier: Apache-2.0 */
/* Predictions for a given plan. */
#ifndef HSPMD_SIM_PREDICT_H
#define HSPMD_SIM_PREDICT_H

#include "common/error.h"
#include "common/format/cluster.h"
#include "common/format/model_facts.h"
#include "common/format/plan.h"
#include "common/format/profile.h"
#include "common/format/program_search.h"
#include "controller/solver/sim/solve_report.h"

/* Fill plan->predicted. At least one of model and profile must be given; report may be NULL. A plan that does not fit in memory is
 * evaluated nevertheless, and its shortages are in the report. Returns 0, or -1 with err if the plan cannot be evaluated: two devices that
 * must communicate have no link, or the profile has no times for a device type and there is no model to compute them from. */
int hspmd_evaluate(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts, const struct hspmd_profile *profile,
                   enum hspmd_precision precision, struct hspmd_plan *plan, struct hspmd_solve_report *report, struct hspmd_error *err);

/* The same for a plan whose operators are divided by a search of their own (plan->synthesis), which `programs` asks; if the plan has no
 * program yet, it gets the fastest one that is found within the limits. Returns 1 if bounds say that none takes less than limits->step_s
 * for a step; otherwise one that takes longer may be found. -1 and err also if there is none. */
int hspmd_evaluate_program(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts,
                           const struct hspmd_program_search *programs, enum hspmd_precision precision, struct hspmd_plan *plan,
                           const struct hspmd_program_limits *limits, struct hspmd_solve_report *report, struct hspmd_error *err);

/* Fill busy_s, one element per device of the plan, with the seconds that each device is busy in a step. Devices are in the order of the
 * plan: by pipeline, then by stage, then by place in the stage. Returns 0, or -1 with err. */
int hspmd_plan_busy_time(const struct hspmd_cluster *cluster, const struct hspmd_model_facts *facts, const struct hspmd_profile *profile,
                         enum hspmd_precision precision, const struct hspmd_plan *plan, double *busy_s, struct hspmd_error *err);

#endif
