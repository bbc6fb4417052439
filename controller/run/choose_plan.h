/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a job's next generation, as the controller asks for it (controller/core/next_generation.c). */
#ifndef HSPMD_CONTROLLER_RUN_CHOOSE_PLAN_H
#define HSPMD_CONTROLLER_RUN_CHOOSE_PLAN_H

#include <jansson.h>
#include <pthread.h>

#include "common/error.h"
#include "common/format/job.h"
#include "common/format/model_facts.h"
#include "common/format/program_search.h"
#include "controller/core/checkpoint_interval.h"
#include "controller/solver/search/length_plans.h"
#include "policies/liveput.h"

/* What was decided between two kinds of plans, remembered from one call to the next: whether those that shard the state over the pipelines
 * are worth their risk. Both kinds are searched for only if it may be decided otherwise now. */
struct run_comparison {
	pthread_mutex_t lock;
	int made;     /* comparisons so far */
	bool sharded; /* the last one was for a plan that may shard the state */
	int nodes, copies;
	struct run_intervals every;
	struct hspmd_risk risk;
};

/* What plans are chosen for; all borrowed. */
struct run_planning {
	const struct hspmd_job *job;
	const struct hspmd_model_facts *facts;       /* of the job's model; NULL if the job has a command */
	int layers;                                  /* of the model */
	const struct hspmd_program_search *programs; /* NULL: the job has a command, or plans with programs are not wanted */
	const struct hspmd_step_share *shares;       /* how many steps have which length; NULL: all have the same */
	int share_count;
	double limit_s; /* of each search */
	struct run_comparison *compared; /* brought up to date; NULL: both kinds are searched for each time */
};

/* input: the value of an ACTION_SOLVE: { cluster, current: null or { cluster, plan }, copies, every_s, shared_every_s, risk }. Returns the
 * value of an EVENT_PLAN, { plan, cluster, current_step_s } (a new reference); NULL and err. Blocks for seconds: not to be called on the
 * event loop. */
json_t *run_choose_plan(const struct run_planning *p, json_t *input, struct hspmd_error *err);

#endif
