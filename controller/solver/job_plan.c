/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/solver/job_plan.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/format/plan_precision.h"
#include "common/log.h"
#include "controller/solver/report/explain.h"

void hspmd_job_search_init(struct hspmd_job_search *s)
{
	struct hspmd_solve_request *r = &s->request;
	const struct hspmd_job *job = s->job;
	r->global_batch = (int)job->global_batch;
	r->seq_len = (int)job->seq_len;
	r->precision = job->precision;
	r->least_nodes = job->elastic.min_nodes;
	if (!(r->time_limit_s > 0))
		r->time_limit_s = HSPMD_JOB_SEARCH_S;
	if (r->limits.max_nodes <= 0 || r->limits.max_nodes > job->elastic.max_nodes)
		r->limits.max_nodes = job->elastic.max_nodes;
	/* A job that has trained without a program needs a new plan fast, and is unlikely to need one now. */
	if (job->length_count || job->lengths_auto || (r->current && !r->current->synthesis))
		r->programs = NULL;
	s->possible = job->mix_lengths ? hspmd_mixed_caps(NULL) : hspmd_runtime_caps_default();
	s->whole = s->possible;
	s->whole.max_zero_stage = 0;
}

struct hspmd_plan *hspmd_job_search_plan(struct hspmd_job_search *s, bool *whole, struct hspmd_solve_report *report,
                                         struct hspmd_error *err)
{
	struct hspmd_solve_report of_other = { 0 };
	enum hspmd_precision asked = s->job->precision;
	bool ignored;
	whole = whole ? whole : &ignored;
	s->request.caps = &s->whole;
	struct hspmd_plan *plan = hspmd_search_plan(s->cluster, s->facts, s->profile, &s->request, report, NULL, err);
	s->request.caps = &s->possible;
	s->request.programs = plan ? NULL : s->request.programs;
	*whole = plan != NULL;
	/* In another precision than the job's, such a plan is worth less than one that divides the state. */
	if (plan && hspmd_plan_precision(plan, s->cluster, asked) == asked)
		return plan;
	struct hspmd_plan *other = hspmd_solve(s->cluster, s->facts, s->profile, &s->request, &of_other, err);
	if (plan && (!other || hspmd_plan_precision(other, s->cluster, asked) != asked)) {
		hspmd_plan_destroy(other);
		hspmd_solve_report_clear(&of_other);
		return plan;
	}
	hspmd_plan_destroy(plan);
	*whole = false;
	if (report) {
		hspmd_solve_report_clear(report);
		*report = of_other;
	} else {
		hspmd_solve_report_clear(&of_other);
	}
	return other;
}

static void mix_lengths(const struct hspmd_job_search *s, struct hspmd_plan **plan, struct hspmd_mixed_report *report)
{
	struct hspmd_error err = { "" };
	if (hspmd_search_mixed_plan(s->cluster, &s->request, s->shares, s->share_count, plan, report, &err))
		hspmd_warn("every pipeline takes samples of all lengths: %s", err.text);
	else
		hspmd_info("%d pipelines for steps that mix lengths: %.3g s expected per step, instead of %.3g s by the plan for the "
		           "longest samples",
		           (*plan)->pipeline_count, report->mixed_s, report->given_s);
}

static void add_shorter_plans(const struct hspmd_job_search *s, struct hspmd_plan **plan, struct hspmd_length_report *report)
{
	struct hspmd_error err = { "" };
	if (hspmd_search_shorter_plans(s->cluster, &s->request, s->shares, s->share_count, plan, report, &err))
		hspmd_warn("all steps run the plan for the longest ones: %s", err.text);
	else if ((*plan)->shorter_count)
		hspmd_info(
		        "%d plans, of which each step runs the one for its length: %.3g s expected per step, instead of %.3g s by one plan",
		        1 + (*plan)->shorter_count, report->set_s, report->without_s);
}

void hspmd_job_search_lengths(struct hspmd_job_search *s, struct hspmd_plan **plan, struct hspmd_job_lengths_report *report)
{
	s->request.caps = (*plan)->zero_stage ? &s->possible : &s->whole;
	if (s->share_count < 2)
		return;
	if (s->job->mix_lengths)
		mix_lengths(s, plan, &report->mixed);
	else
		add_shorter_plans(s, plan, &report->shorter);
}

/* The plan that is fastest if the optimizer state may be divided; NULL: none. */
static struct hspmd_plan *search_fastest(const struct hspmd_job_search *s)
{
	struct hspmd_solve_request request = s->request;
	struct hspmd_error ignored;
	request.caps = &s->possible;
	request.programs = NULL;
	return hspmd_solve(s->cluster, s->facts, s->profile, &request, NULL, &ignored);
}

static void write_explanation(FILE *f, const struct hspmd_job_search *s, const struct hspmd_plan *plan)
{
	static const char taken[] = "hspmd run takes one if it knows how often nodes are lost, and expects more from it.\n";
	if (s->cluster->device_count < 2)
		return;
	if (plan->zero_stage) {
		fputs("Among plans that keep the whole optimizer state in every pipeline there is none: the loss of a node takes part of "
		      "the "
		      "state along.\n",
		      f);
		return;
	}
	bool few = s->cluster->device_count <= HSPMD_EXPLAIN_SEARCH_MOST;
	struct hspmd_plan *fastest = few ? search_fastest(s) : NULL;
	fputs("Every pipeline keeps the whole optimizer state, so that after the loss of a node no step is repeated. ", f);
	if (!few)
		fprintf(f, "Plans that divide it among the pipelines may be faster; %s", taken);
	else if (fastest && fastest->zero_stage && fastest->predicted.step_s < plan->predicted.step_s)
		fprintf(f, "A plan that divides it among the pipelines would take %.4g s a step; %s", fastest->predicted.step_s, taken);
	else
		fputs("Plans that divide it among the pipelines would not be faster.\n", f);
	hspmd_plan_destroy(fastest);
}

char *hspmd_job_search_explain(const struct hspmd_job_search *s, const struct hspmd_plan *plan)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	if (!f)
		return NULL;
	write_explanation(f, s, plan);
	if (!fclose(f))
		return text;
	free(text);
	return NULL;
}
