/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a job: what `hspmd run` trains with, and `hspmd plan --job` shows. Speed is not all that counts. If memory suffices, every
 * pipeline keeps the whole optimizer state: then other workers hold that of a lost one, and no step must be repeated. Plans that divide the
 * state among the pipelines are searched for only if there is none of that kind. */
#ifndef HSPMD_CONTROLLER_SOLVER_JOB_PLAN_H
#define HSPMD_CONTROLLER_SOLVER_JOB_PLAN_H

#include <stdbool.h>

#include "common/format/job.h"
#include "controller/solver/solver.h"

/* Limit of each search if the caller has none, so that hspmd plan --job shows the plan that hspmd run begins with. */
#define HSPMD_JOB_SEARCH_S 10.0

struct hspmd_job_search {
	/* Borrowed. */
	const struct hspmd_job *job;
	const struct hspmd_cluster *cluster;
	const struct hspmd_model_facts *facts;
	const struct hspmd_profile *profile; /* NULL: none */
	const struct hspmd_step_share
	        *shares; /* how many steps, with data.mix_lengths samples, have which length; NULL: all have the same */
	int share_count;
	/* The caller's limits, time limit (of each search; 0: HSPMD_JOB_SEARCH_S), programs and current plan. hspmd_job_search_init() adds
	 * what the job says, and each of the other functions sets the caps and programs of its last search. */
	struct hspmd_solve_request request;
	struct hspmd_runtime_caps possible, whole; /* what the job's plans may be; and with the whole state in every pipeline */
};

/* How the lengths of steps were planned: one of the two is filled in, or none. The caller zeroes both before, and clears them. */
struct hspmd_job_lengths_report {
	struct hspmd_length_report shorter;
	struct hspmd_mixed_report mixed;
};

/* Completes *s, of which the caller has filled in the rest. It must not be moved afterwards. */
void hspmd_job_search_init(struct hspmd_job_search *s);

/* Returns the plan for the job's longest samples. *whole (NULL: unwanted) is set to whether it was found among those that keep the whole
 * state in every pipeline. NULL and err: there is none; err says what is short, as hspmd_solve() does. */
struct hspmd_plan *hspmd_job_search_plan(struct hspmd_job_search *s, bool *whole, struct hspmd_solve_report *report,
                                         struct hspmd_error *err);

/* If the job's samples have several lengths, gives *plan pipelines for some of them or plans for shorter steps, where that is worth it.
 * They are not needed: if they cannot be found, a warning says why. */
void hspmd_job_search_lengths(struct hspmd_job_search *s, struct hspmd_plan **plan, struct hspmd_job_lengths_report *report);

/* Says in sentences, one per line, why speed alone may choose another plan than this one, which the search found; up to
 * HSPMD_EXPLAIN_SEARCH_MOST devices it searches for that plan. Empty: there is nothing to say. The caller frees the text; NULL: memory. */
char *hspmd_job_search_explain(const struct hspmd_job_search *s, const struct hspmd_plan *plan);

#endif
