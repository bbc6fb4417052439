/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a job's next generation, as the controller asks for it (controller/core/next_generation.c). */
#ifndef HSPMD_CONTROLLER_RUN_CHOOSE_PLAN_H
#define HSPMD_CONTROLLER_RUN_CHOOSE_PLAN_H

#include <jansson.h>

#include "common/error.h"
#include "common/format/job.h"
#include "common/format/model_facts.h"
#include "common/format/program_search.h"

/* input: the value of an ACTION_SOLVE: { cluster, current: null or { cluster, plan }, copies, every_s, shared_every_s, risk }. facts: of
 * the job's model, which has `layers` layers; NULL if the job has a command. programs: NULL if it has one, or if plans with programs are
 * not wanted. limit_s: of each search. Returns the value of an EVENT_PLAN, { plan, cluster, current_step_s } (a new reference); NULL and
 * err. Blocks for seconds: not to be called on the event loop. */
json_t *run_choose_plan(const struct hspmd_job *job, const struct hspmd_model_facts *facts, int layers,
                        const struct hspmd_program_search *programs, double limit_s, json_t *input, struct hspmd_error *err);

#endif
