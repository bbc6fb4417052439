/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a job's next generation, as the controller asks for it (controller/core/next_generation.c). */
#ifndef HSPMD_CONTROLLER_RUN_CHOOSE_PLAN_H
#define HSPMD_CONTROLLER_RUN_CHOOSE_PLAN_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

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
	int repair_devices;              /* with fewer devices no plan is repaired */
	const atomic_bool *cancelled;    /* once it is true, nobody wants the plan any more; NULL: never */
};

#define RUN_REPAIR_DEVICES 64 /* of repair_devices: with half as many a search takes a seventh of a second (tests/bench/RESULTS.md) */

/* input: the value of an ACTION_SOLVE: { cluster, current: null or { cluster, plan, behind }, urgent, copies, every_s, shared_every_s,
 * risk }. Returns the value of an EVENT_PLAN, { plan, cluster, current_step_s } or, of a repaired plan, { plan, cluster, behind } (a new
 * reference); NULL and err.
 *
 * A plan is repaired (search/repair_plan.h, which says when such a plan is refused) if it is urgent, as nothing trains until it is there,
 * and the cluster has at least repair_devices devices. It is refused, too, if it uses so few nodes that they cannot keep the copies of the
 * state that the job wants, where the cluster has enough. Then, and in all other cases, the plan is searched for. Blocks for seconds: not
 * to be called on the event loop. */
json_t *run_choose_plan(const struct run_planning *p, json_t *input, struct hspmd_error *err);

#endif
