/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/run/choose_plan.h"

#include <math.h>

#include "common/log.h"
#include "controller/core/risk.h"
#include "controller/run/command_plan.h"
#include "controller/solver/job_plan.h"

/* Relative differences that do not change which kind of plan is better: of nodes, and of rates and intervals. */
#define NODES_NEAR (1 / 64.0)
#define RISK_NEAR 0.1

static bool mixes(const struct run_planning *o)
{
	return o->job->mix_lengths && o->share_count > 1;
}

/* Predicted step time in seconds of the current plan on the changed cluster; 0: it cannot run there. */
static double current_plan_step_s(const struct run_planning *o, const json_t *now, const struct hspmd_cluster *c)
{
	struct hspmd_error err;
	struct hspmd_plan *p = json_is_object(now) ? hspmd_plan_from_json(json_object_get(now, "plan"), "plan", c, o->layers, &err) : NULL;
	enum hspmd_precision precision = o->job->precision;
	struct hspmd_mixed_report mixed = { 0 };
	const struct hspmd_program_limits limits = { .seconds = o->limit_s };
	int status = !p             ? -1
	             : mixes(o)     ? hspmd_evaluate_mixed(c, precision, o->shares, o->share_count, p, &mixed, &err)
	             : p->synthesis ? hspmd_evaluate_program(c, o->facts, o->programs, precision, p, &limits, NULL, &err)
	                            : hspmd_evaluate(c, o->facts, NULL, precision, p, NULL, &err);
	double step_s = status ? 0 : p->predicted.step_s;
	hspmd_mixed_report_clear(&mixed);
	hspmd_plan_destroy(p);
	return step_s;
}

/* ---- plans with the whole state in every pipeline, and plans that may shard it */

/* By what is decided between the two kinds. */
struct conditions {
	int nodes, copies;
	struct run_intervals every;
	struct hspmd_risk risk;
};

static struct conditions conditions_of(const json_t *input, const struct hspmd_cluster *c)
{
	return (struct conditions){ .nodes = c->node_count,
		                    .copies = (int)json_integer_value(json_object_get(input, "copies")),
		                    .every = { json_number_value(json_object_get(input, "every_s")),
		                               json_number_value(json_object_get(input, "shared_every_s")) },
		                    .risk = run_risk_read(json_object_get(input, "risk")) };
}

static bool near(double a, double b, double share)
{
	return fabs(a - b) <= share * fmax(fabs(a), fabs(b));
}

enum kind { KIND_ANY, KIND_WHOLE, KIND_SHARDED };

/* The kind that was better under nearly these conditions. Small steps do not add up: they are measured from the last comparison. With
 * devices of several types each search finds what the other one misses, so both are made. */
static enum kind kind_known(const struct run_planning *o, const struct hspmd_cluster *c, const struct conditions *now)
{
	struct run_comparison *was = o->compared;
	if (!was || c->type_count > 1)
		return KIND_ANY;
	pthread_mutex_lock(&was->lock);
	bool same = was->made && near(was->nodes, now->nodes, NODES_NEAR) && was->copies == now->copies &&
	            near(was->risk.losses_per_s, now->risk.losses_per_s, RISK_NEAR) &&
	            near(was->risk.correlated, now->risk.correlated, RISK_NEAR) &&
	            near(was->every.every_s, now->every.every_s, RISK_NEAR) &&
	            near(was->every.shared_every_s, now->every.shared_every_s, RISK_NEAR);
	enum kind kind = !same ? KIND_ANY : was->sharded ? KIND_SHARDED : KIND_WHOLE;
	pthread_mutex_unlock(&was->lock);
	return kind;
}

static void remember(const struct run_planning *o, const struct conditions *now, bool sharded)
{
	struct run_comparison *to = o->compared;
	if (!to)
		return;
	pthread_mutex_lock(&to->lock);
	to->made++;
	to->sharded = sharded;
	to->nodes = now->nodes;
	to->copies = now->copies;
	to->every = now->every;
	to->risk = now->risk;
	pthread_mutex_unlock(&to->lock);
}

/* If the rate of node losses is known, compares a plan that may shard the state with `whole`: it is faster, but loses more work with a
 * node. Takes `whole` over; returns the better one. */
static struct hspmd_plan *choose_by_risk(const struct run_planning *o, const struct conditions *now, struct hspmd_job_search *s,
                                         struct hspmd_plan *whole)
{
	struct hspmd_error err;
	if (!(now->risk.losses_per_s > 0))
		return whole;
	s->request.caps = &s->possible;
	struct hspmd_plan *other = hspmd_solve(s->cluster, o->facts, NULL, &s->request, NULL, &err);
	bool better =
	        other && run_risk_prefers(o->job, o->facts, s->cluster->node_count, now->copies, &now->every, &now->risk, whole, other);
	if (other)
		remember(o, now, better);
	hspmd_plan_destroy(better ? whole : other);
	return better ? other : whole;
}

static json_t *plan_command(const struct run_planning *o, json_t *input, struct hspmd_error *err)
{
	struct hspmd_cluster *c = hspmd_cluster_from_json(json_object_get(input, "cluster"), "cluster", err);
	json_t *plan = c ? run_command_plan(o->job, c, err) : NULL;
	json_t *result = plan ? json_pack("{s:O, s:O}", "plan", plan, "cluster", json_object_get(input, "cluster")) : NULL;
	if (plan && !result)
		hspmd_fail_memory(err, "planning");
	json_decref(plan);
	hspmd_cluster_destroy(c);
	return result;
}

/* ---- what is asked for */

struct question {
	const struct run_planning *o;
	json_t *input;
	struct hspmd_cluster *c, *old_c;
	struct hspmd_plan *old; /* the current plan; NULL: none */
	struct hspmd_job_search search;
};

static int question_read(struct question *q, const struct run_planning *o, json_t *input, struct hspmd_error *err)
{
	json_t *now = json_object_get(input, "current");
	*q = (struct question){ .o = o, .input = input };
	q->c = hspmd_cluster_from_json(json_object_get(input, "cluster"), "cluster", err);
	if (json_is_object(now)) {
		q->old_c = hspmd_cluster_from_json(json_object_get(now, "cluster"), "cluster", NULL);
		q->old = q->old_c ? hspmd_plan_from_json(json_object_get(now, "plan"), "plan", q->old_c, o->layers, NULL) : NULL;
	}
	q->search = (struct hspmd_job_search){
		.job = o->job,
		.cluster = q->c,
		.facts = o->facts,
		.shares = o->shares,
		.share_count = o->share_count,
		.request = { .time_limit_s = o->limit_s,
		             .cancelled = o->cancelled,
		             .programs = o->programs,
		             .current = q->old,
		             .current_cluster = q->old_c },
	};
	hspmd_job_search_init(&q->search);
	return q->c ? 0 : -1;
}

static void question_clear(struct question *q)
{
	hspmd_plan_destroy(q->old);
	hspmd_cluster_destroy(q->old_c);
	hspmd_cluster_destroy(q->c);
}

/* The value of an EVENT_PLAN; takes `more` over, its further keys. */
static json_t *answer(const struct question *q, const struct hspmd_plan *plan, json_t *more, struct hspmd_error *err)
{
	json_t *p = hspmd_plan_to_json(plan, q->c);
	json_t *result = p ? json_pack("{s:o, s:O}", "plan", p, "cluster", json_object_get(q->input, "cluster")) : NULL;
	if (!result || !more || json_object_update(result, more)) {
		hspmd_fail_memory(err, "planning");
		json_decref(result);
		result = NULL;
	}
	json_decref(more);
	return result;
}

/* ---- plans that are urgent */

/* NULL: the plan must be searched for. */
static json_t *repaired(struct question *q, struct hspmd_error *err)
{
	json_t *now = json_object_get(q->input, "current");
	double behind = json_number_value(json_object_get(now, "behind")), slower;
	int copies = (int)json_integer_value(json_object_get(q->input, "copies"));
	if (!q->old || !json_is_true(json_object_get(q->input, "urgent")) || q->c->device_count < q->o->repair_devices)
		return NULL;
	struct hspmd_solve_request request = q->search.request;
	request.programs = NULL;
	request.caps = q->old->zero_stage ? &q->search.possible : &q->search.whole;
	struct hspmd_plan *plan = hspmd_repair_plan(q->c, q->o->facts, &request, behind > 0 ? behind : 1, 1 + copies, &slower, err);
	if (!plan) {
		hspmd_info("the last plan is not repaired: %s", err->text);
		return NULL;
	}
	/* Processes were lost, but no device: the plan was searched for among the same ones. */
	bool same = !(behind > 0) && json_equal(json_object_get(q->input, "cluster"), json_object_get(now, "cluster"));
	json_t *result = answer(q, plan, same ? json_object() : json_pack("{s:f}", "behind", slower), err);
	hspmd_plan_destroy(plan);
	return result;
}

/* ---- plans that are searched for */

static json_t *searched(struct question *q, struct hspmd_error *err)
{
	const struct run_planning *o = q->o;
	struct hspmd_job_search *s = &q->search;
	struct conditions conditions = conditions_of(q->input, q->c);
	enum kind kind = kind_known(o, q->c, &conditions);
	bool whole = false;
	struct hspmd_plan *plan = NULL;
	if (kind == KIND_SHARDED) {
		s->request.caps = &s->possible;
		s->request.programs = NULL;
		plan = hspmd_solve(q->c, o->facts, NULL, &s->request, NULL, err);
	} else {
		plan = hspmd_job_search_plan(s, &whole, NULL, err);
	}
	if (plan && whole && kind == KIND_ANY)
		plan = choose_by_risk(o, &conditions, s, plan);
	if (plan) {
		struct hspmd_job_lengths_report report = { 0 };
		hspmd_job_search_lengths(s, &plan, &report);
		hspmd_length_report_clear(&report.shorter);
		hspmd_mixed_report_clear(&report.mixed);
	}
	if (!plan)
		return NULL;
	double current_s = current_plan_step_s(o, json_object_get(q->input, "current"), q->c);
	json_t *result = answer(q, plan, json_pack("{s:f}", "current_step_s", current_s), err);
	hspmd_plan_destroy(plan);
	return result;
}

static json_t *solve_one(const struct run_planning *o, json_t *input, struct hspmd_error *err)
{
	struct question q;
	json_t *result = question_read(&q, o, input, err) ? NULL : repaired(&q, err);
	if (!result && q.c)
		result = searched(&q, err);
	question_clear(&q);
	return result;
}

json_t *run_choose_plan(const struct run_planning *p, json_t *input, struct hspmd_error *err)
{
	return p->job->command.argc ? plan_command(p, input, err) : solve_one(p, input, err);
}
