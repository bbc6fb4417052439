/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a job's next generation, as the controller asks for it (controller/core/next_generation.c). */
#ifndef HSPMD_CONTROLLER_RUN_CHOOSE_PLAN_H
#define HSPMD_CONTROLLER_RUN_CHOOSE_PLAN_H

#include <jansson.h>

#include "common/error.h"
#include "common/format/job.h"
#include "common/format/model_facts.h"
#include "common/format/program_search.h"
#include "controller/solver/search/length_plans.h"

/* What plans are chosen for; all borrowed. */
struct run_planning {
	const struct hspmd_job *job;
	const struct hspmd_model_facts *facts;       /* of the job's model; NULL if the job has a command */
	int layers;                                  /* of the model */
	const struct hspmd_program_search *programs; /* NULL: the job has a command, or plans with programs are not wanted */
	const struct hspmd_step_share *shares;       /* how many steps have which length; NULL: all have the same */
	int share_count;
	double limit_s; /* of each search */
};

/* input: the value of an ACTION_SOLVE: { cluster, current: null or { cluster, plan }, copies, every_s, shared_every_s, risk }. Returns the
 * value of an EVENT_PLAN, { plan, cluster, current_step_s } (a new reference); NULL and err. Blocks for seconds: not to be called on the
 * event loop. */
json_t *run_choose_plan(const struct run_planning *p, json_t *input, struct hspmd_error *err);

#endif
