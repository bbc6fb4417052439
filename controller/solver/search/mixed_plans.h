/* SPDX-License-Identifier: Apache-2.0 */
/* Plans for steps that mix lengths (data.mix_lengths of a job): unlike pipelines, of which some hold the longest samples and others are
 * made for shorter ones, at the same time (Hydraulis, arXiv 2412.07894; HSPMD, 2504.20490, on mixed lengths).
 *
 * The search begins with a plan for the longest samples. For every shorter length it also finds the fastest plan of all devices. Two plans
 * fall into parts that have no device in common with one another; part after part the one plan's pipelines take the place of the other's,
 * always where it shortens the expected step most, as long as it does. */
#ifndef HSPMD_SEARCH_MIXED_PLANS_H
#define HSPMD_SEARCH_MIXED_PLANS_H

#include "controller/solver/search/request.h"
#include "controller/solver/sim/mixed_step.h"

/* What is expected of a step. */
struct hspmd_mixed_report {
	double mixed_s;   /* of the plan */
	double given_s;   /* of the plan that the search began with, with pipelines as they were, when steps mix lengths */
	double unmixed_s; /* of that plan, if each step had samples of one length */
	int count;        /* of lengths; 0: nothing is reported */
	int pipeline_count;
	int *seq_len;  /* [count] */
	double *share; /* [count] of all samples */
	double *parts; /* [pipeline][length]: part of the length's samples that the pipeline computes */
	double *busy;  /* [pipeline]: part of the passes' time in which its busiest stage computes */
};
void hspmd_mixed_report_clear(struct hspmd_mixed_report *r);

/* Replaces *plan, which was found for request->seq_len, by the fastest plan for steps that mix `count` lengths, whose pipelines have
 * `lengths`. shares: ascending by length, of all samples; the last is of the plan's length. The request's time limit, if there is one, is
 * divided among the lengths. Fills *report, which the caller clears. 0, or -1 and err: memory, or the plan cannot mix lengths or be
 * evaluated; *plan is then as it was. */
int hspmd_search_mixed_plan(const struct hspmd_cluster *cluster, const struct hspmd_solve_request *request,
                            const struct hspmd_step_share *shares, int count, struct hspmd_plan **plan, struct hspmd_mixed_report *report,
                            struct hspmd_error *err);

/* Predicts a given plan for such steps; pipelines without `lengths` get them. 0, or -1 and err. */
int hspmd_evaluate_mixed(const struct hspmd_cluster *cluster, enum hspmd_precision precision, const struct hspmd_step_share *shares,
                         int count, struct hspmd_plan *plan, struct hspmd_mixed_report *report, struct hspmd_error *err);

/* The capabilities with which a plan for steps that mix lengths is searched: schedules and stages of ZeRO that can. */
struct hspmd_runtime_caps hspmd_mixed_caps(const struct hspmd_runtime_caps *caps);

#endif
