/* SPDX-License-Identifier: Apache-2.0 */
/* Plans for shorter steps. A plan must hold the longest samples, for which it divides, recomputes and passes on what shorter ones need not.
 * Where steps have several lengths, it gets further plans (`shorter` of struct hspmd_plan), of which each step runs the one that fits its
 * length, on one training state that stays where the plan puts it (after HSPMD, arXiv 2504.20490, on mixed lengths, and Hydraulis,
 * 2412.07894).
 *
 * For every length there are these candidates: the fastest plan of a search for it, on devices that have as much less memory as the state
 * takes; and the plan itself with fewer and larger micro-batches, and with less recomputation, where no parameter moves at all. What the
 * others' parameters and gradients take to and from the state is predicted as under ZeRO-1, which does the same. Of all ways to serve the
 * lengths, each by its own plan or by that of a longer one, the one with the least expected step time is taken; a further plan must be
 * worth it. */
#ifndef HSPMD_SEARCH_LENGTH_PLANS_H
#define HSPMD_SEARCH_LENGTH_PLANS_H

#include "common/error.h"
#include "common/format/model_facts.h"
#include "controller/solver/search/request.h"
#include "controller/solver/sim/mixed_step.h"

/* What steps of one length run. */
struct hspmd_length_use {
	int seq_len;
	double share;
	int which;        /* as hspmd_plan_for_length */
	double step_s;    /* of that plan, at this length */
	double without_s; /* of the plan itself */
};

/* Expected seconds of a step, over all lengths. */
struct hspmd_length_report {
	double set_s;     /* of the plan with its shorter plans */
	double without_s; /* of the plan alone */
	double single_s;  /* of the best single plan that was found: it holds the longest samples */
	int count;        /* of lengths */
	struct hspmd_length_use *uses;
};
void hspmd_length_report_clear(struct hspmd_length_report *r);

/* Gives *plan those for shorter steps that are worth it, instead of those that it has; it may get none. shares: `count` of them, ascending
 * by length; the last is of the plan's length. request: what the plan was asked for; its time limit, if there is one, is divided among the
 * lengths. A plan with `synthesis` gets none. If a plan that was found for shorter steps also holds the longest ones, and alone is expected
 * to be faster than *plan alone, it takes its place. Fills *report, which the caller clears. 0, or -1 and err: memory, or the plan cannot
 * be evaluated. */
int hspmd_search_shorter_plans(const struct hspmd_cluster *cluster, const struct hspmd_solve_request *request,
                               const struct hspmd_step_share *shares, int count, struct hspmd_plan **plan,
                               struct hspmd_length_report *report, struct hspmd_error *err);

#endif
