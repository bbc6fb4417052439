/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/solver/search/mixed_plans.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/plan_lengths.h"
#include "common/format/plan_rates.h"
#include "controller/solver/search/search_plan.h"
#include "controller/solver/sim/predict.h"

#define WORTH 0.002       /* of the step: what a change of pipelines must save */
#define WORTH_OTHERS 0.05 /* what other pipelines than the given plan's must save in all: predictions of unlike pipelines err more */
#define TRIALS_MOST 512   /* plans that are predicted */
#define TYPES_MOST 3      /* of devices, for each of which candidates are searched */

/* The parts of the most tokens that a micro-batch may have: smaller ones fill a pipeline sooner. */
static const double token_parts[] = { 1, 0.5, 0.25 };

struct search {
	const struct hspmd_cluster *cluster;
	const struct hspmd_solve_request *request;
	const struct hspmd_step_share *shares;
	int count;
	struct hspmd_mixed_costs *costs;
	struct hspmd_plan *best;
	double part; /* of token_parts: that of the best plan */
	int trials;
};

struct hspmd_runtime_caps hspmd_mixed_caps(const struct hspmd_runtime_caps *caps)
{
	struct hspmd_runtime_caps c = caps ? *caps : hspmd_runtime_caps_default();
	c.max_zero_stage = c.max_zero_stage < 1 ? c.max_zero_stage : 1;
	c.schedules &= ~(1u << HSPMD_SCHEDULE_GPIPE | 1u << HSPMD_SCHEDULE_INTERLEAVED);
	return c;
}

/* ---- predicting */

/* Returns 1 if the plan can, and is predicted; 0: it cannot, or no longer has time; -1 and err. */
static int try_plan(struct search *w, struct hspmd_plan *plan, double part, struct hspmd_error *err)
{
	if (w->trials >= TRIALS_MOST || plan->pipeline_count > plan->global_batch)
		return 0;
	w->trials++;
	int status = hspmd_mixed_set_lengths(w->costs, plan, part, err);
	if (status == 1 && hspmd_mixed_predict(w->costs, plan, err))
		return -1;
	return status;
}

/* Keeps the plan if it is better. Takes it over. 1: it is kept; 0; -1 and err. */
static int offer(struct search *w, struct hspmd_plan *plan, double part, struct hspmd_error *err)
{
	int status = plan ? try_plan(w, plan, part, err) : hspmd_fail_memory(err, "planning for mixed lengths");
	bool better = status == 1 && (!w->best || plan->predicted.step_s < (1 - WORTH) * w->best->predicted.step_s);
	if (better) {
		hspmd_plan_destroy(w->best);
		w->best = plan;
		w->part = part;
		return 1;
	}
	hspmd_plan_destroy(plan);
	return status < 0 ? -1 : 0;
}

static int offer_parts(struct search *w, const struct hspmd_plan *plan, struct hspmd_error *err)
{
	int status = 0;
	for (size_t k = 0; status >= 0 && k < sizeof token_parts / sizeof *token_parts; k++)
		status = offer(w, hspmd_plan_copy(plan), token_parts[k], err);
	return status < 0 ? -1 : 0;
}

/* ---- two plans in one */

/* Which part each device is in: the number of one of its devices. Devices of one pipeline are in the same part. */
static void unite(int *part, int devices, const struct hspmd_plan *p)
{
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			for (int d = 0; d < p->pipelines[i].stages[s].device_count; d++) {
				int to = part[p->pipelines[i].stages[0].devices[0]], from = part[p->pipelines[i].stages[s].devices[d]];
				for (int k = 0; from != to && k < devices; k++)
					part[k] = part[k] == from ? to : part[k];
			}
}

static int part_of(const int *part, const struct hspmd_pipeline *p)
{
	return part[p->stages[0].devices[0]];
}

/* The plan with the other's pipelines in place of its own on one part of the devices. The caller destroys it. NULL: memory. */
static struct hspmd_plan *compose(const struct hspmd_plan *plan, const struct hspmd_plan *other, const int *part, int which)
{
	struct hspmd_plan *to = hspmd_plan_copy(plan), *from = hspmd_plan_copy(other);
	size_t count = (size_t)plan->pipeline_count + (size_t)other->pipeline_count;
	struct hspmd_pipeline *kept = hspmd_calloc(count, sizeof *kept), *dropped = hspmd_calloc(count, sizeof *dropped);
	if (!to || !from || !kept || !dropped) {
		hspmd_plan_destroy(to);
		hspmd_plan_destroy(from);
		free(kept);
		free(dropped);
		return NULL;
	}
	int keeps = 0, drops = 0;
	for (int i = 0; i < plan->pipeline_count; i++)
		*(part_of(part, &to->pipelines[i]) == which ? &dropped[drops++] : &kept[keeps++]) = to->pipelines[i];
	for (int i = 0; i < other->pipeline_count; i++)
		*(part_of(part, &from->pipelines[i]) == which ? &kept[keeps++] : &dropped[drops++]) = from->pipelines[i];
	free(to->pipelines);
	free(from->pipelines);
	to->pipelines = kept;
	to->pipeline_count = keeps;
	from->pipelines = dropped;
	from->pipeline_count = drops;
	hspmd_plan_destroy(from);
	return to;
}

/* The part looks like another that is tried: the same pipelines on devices of the same types. */
static bool like_part(const struct search *w, const struct hspmd_plan *p, const int *part, int a, int b)
{
	int i = 0, k = 0;
	for (;; i++, k++) {
		while (i < p->pipeline_count && part_of(part, &p->pipelines[i]) != a)
			i++;
		while (k < p->pipeline_count && part_of(part, &p->pipelines[k]) != b)
			k++;
		if (i == p->pipeline_count || k == p->pipeline_count)
			return i == p->pipeline_count && k == p->pipeline_count;
		const struct hspmd_pipeline *x = &p->pipelines[i], *y = &p->pipelines[k];
		if (x->stage_count != y->stage_count)
			return false;
		for (int s = 0; s < x->stage_count; s++)
			if (x->stages[s].device_count != y->stages[s].device_count ||
			    w->cluster->devices[x->stages[s].devices[0]].type != w->cluster->devices[y->stages[s].devices[0]].type)
				return false;
	}
}

/* Returns true if a part before this one is like it in both plans. */
static bool is_repeated(const struct search *w, const struct hspmd_plan *other, const int *part, const bool *done, int which)
{
	for (int k = 0; k < which; k++)
		if (part[k] == k && !done[k] && like_part(w, w->best, part, k, which) && like_part(w, other, part, k, which))
			return true;
	return false;
}

/* Lets the other plan's pipelines take places until nothing improves. */
static int merge(struct search *w, const struct hspmd_plan *other, int *part, bool *done, struct hspmd_error *err)
{
	int devices = w->cluster->device_count, status = 1;
	for (int d = 0; d < devices; d++)
		part[d] = d;
	unite(part, devices, w->best);
	unite(part, devices, other);
	memset(done, 0, (size_t)devices * sizeof *done);
	while (status == 1) {
		struct hspmd_plan *before = hspmd_plan_copy(w->best);
		int taken = -1;
		status = before ? 0 : hspmd_fail_memory(err, "planning for mixed lengths");
		for (int k = 0; status >= 0 && k < devices; k++) {
			if (part[k] != k || done[k] || is_repeated(w, other, part, done, k))
				continue;
			status = offer(w, compose(before, other, part, k), w->part, err);
			taken = status == 1 ? k : taken;
		}
		hspmd_plan_destroy(before);
		status = status < 0 ? -1 : taken >= 0;
		if (taken >= 0)
			done[taken] = true;
	}
	return status;
}

/* ---- candidates */

/* A plan that was found for samples of one length. */
struct candidate {
	struct hspmd_plan *plan;
	int type; /* of its devices, if no others were allowed; -1: all were */
};

struct candidates {
	struct candidate *list;
	int count;
};

/* The fastest plan for `batch` samples of one length, on all devices or on those of one type. NULL: none, or memory. */
static struct hspmd_plan *search_length(const struct search *w, int length, int batch, int type, double limit_s)
{
	struct hspmd_solve_request r = hspmd_request_of_length(w->request, w->shares[length].seq_len);
	struct hspmd_runtime_caps caps = hspmd_mixed_caps(r.caps);
	struct hspmd_error why;
	const char *only = type < 0 ? NULL : w->cluster->types[type].name;
	caps.recompute &= 1u << HSPMD_RECOMPUTE_NONE | 1u << HSPMD_RECOMPUTE_SELECTIVE | 1u << HSPMD_RECOMPUTE_FULL; /* without lists */
	caps.offload = false;
	r.caps = &caps;
	r.global_batch = batch;
	r.time_limit_s = limit_s;
	r.even_only = true;
	if (only) {
		r.limits.types = &only;
		r.limits.type_count = 1;
	}
	return hspmd_search_plan(w->cluster, w->shares[length].facts, NULL, &r, NULL, NULL, &why);
}

static bool is_allowed(const struct hspmd_solve_limits *limits, const char *type)
{
	bool allowed = !limits->type_count;
	for (int i = 0; i < limits->type_count; i++)
		allowed |= !strcmp(limits->types[i], type);
	return allowed;
}

/* For every length: for a step of such samples alone, on all devices; and for as many as a step is expected to have, on those of each type,
 * or if they are of one type, on all. */
static int find_candidates(const struct search *w, struct candidates *c, struct hspmd_error *err)
{
	int types = w->cluster->type_count > 1 && w->cluster->type_count <= TYPES_MOST ? w->cluster->type_count : 0;
	int most = w->count * (types ? 1 + types : 2);
	double all = 0, limit_s = w->request->time_limit_s / most;
	c->list = hspmd_calloc((size_t)most, sizeof *c->list);
	if (!c->list)
		return hspmd_fail_memory(err, "planning for mixed lengths");
	for (int l = 0; l < w->count; l++)
		all += w->shares[l].share;
	for (int l = 0; l < w->count; l++) {
		int batch = w->request->global_batch, expected = (int)ceil(w->shares[l].share / all * batch);
		for (int k = -1; k < (types ? types : 1); k++) {
			int type = types ? k : -1;
			bool wanted = type < 0 || is_allowed(&w->request->limits, w->cluster->types[type].name);
			struct hspmd_plan *p = wanted ? search_length(w, l, k < 0 || expected < 1 ? batch : expected, type, limit_s) : NULL;
			if (p)
				c->list[c->count++] = (struct candidate){ p, type };
		}
	}
	return 0;
}

static void destroy_candidates(struct candidates *c)
{
	for (int i = 0; i < c->count; i++)
		hspmd_plan_destroy(c->list[i].plan);
	free(c->list);
}

/* Moves the pipelines of `from` behind those of `to`, and destroys `from`. -1: memory; NULL counts as that. */
static int append(struct hspmd_plan *to, struct hspmd_plan *from)
{
	struct hspmd_pipeline *more =
	        !from ? NULL : realloc(to->pipelines, (size_t)(to->pipeline_count + from->pipeline_count) * sizeof *more);
	if (more) {
		memcpy(&more[to->pipeline_count], from->pipelines, (size_t)from->pipeline_count * sizeof *more);
		to->pipelines = more;
		to->pipeline_count += from->pipeline_count;
		from->pipeline_count = 0;
	}
	hspmd_plan_destroy(from);
	return more ? 0 : -1;
}

/* Offers the pipelines of some candidates, no two of which share a device, as a plan. */
static int offer_together(struct search *w, const struct candidates *c, const int *chosen, int count, struct hspmd_error *err)
{
	struct hspmd_plan *plan = hspmd_plan_copy(w->best);
	int status = plan ? 0 : -1;
	if (plan)
		hspmd_plan_drop_pipelines(plan);
	for (int k = 0; !status && k < count; k++)
		status = append(plan, hspmd_plan_copy(c->list[chosen[k]].plan));
	if (status) {
		hspmd_plan_destroy(plan);
		return hspmd_fail_memory(err, "planning for mixed lengths");
	}
	return offer(w, plan, w->part, err) < 0 ? -1 : 0;
}

/* Offers every candidate of all devices, and every choice of one candidate for each type of devices. */
static int offer_candidates(struct search *w, const struct candidates *c, int type, int *chosen, int count, struct hspmd_error *err)
{
	int status = 0;
	for (int i = 0; !status && i < c->count; i++) {
		if (c->list[i].type == -1 && !count)
			status = offer_together(w, c, &i, 1, err);
		if (c->list[i].type != type || type < 0)
			continue;
		chosen[count] = i;
		status = type + 1 < w->cluster->type_count ? offer_candidates(w, c, type + 1, chosen, count + 1, err)
		                                           : offer_together(w, c, chosen, count + 1, err);
	}
	return status;
}

static int search_others(struct search *w, struct hspmd_error *err)
{
	int *part = hspmd_calloc((size_t)w->cluster->device_count, sizeof *part), chosen[TYPES_MOST];
	bool *done = hspmd_calloc((size_t)w->cluster->device_count, sizeof *done);
	struct candidates c = { 0 };
	int status = part && done ? 0 : hspmd_fail_memory(err, "planning for mixed lengths");
	if (!status && w->best->virtual_stages == 1)
		status = find_candidates(w, &c, err) || offer_candidates(w, &c, 0, chosen, 0, err) ? -1 : 0;
	for (int i = 0; !status && i < c.count; i++)
		status = merge(w, c.list[i].plan, part, done, err);
	destroy_candidates(&c);
	free(part);
	free(done);
	if (status)
		return -1;
	struct hspmd_plan *found = hspmd_plan_copy(w->best);
	status = found ? offer_parts(w, found, err) : hspmd_fail_memory(err, "planning for mixed lengths");
	hspmd_plan_destroy(found);
	return status;
}

static int search(struct search *w, struct hspmd_error *err)
{
	struct hspmd_plan *given = hspmd_plan_copy(w->best);
	int status = given ? search_others(w, err) : hspmd_fail_memory(err, "planning for mixed lengths");
	if (!status && w->best->predicted.step_s > (1 - WORTH_OTHERS) * given->predicted.step_s) {
		hspmd_plan_destroy(w->best);
		w->best = given;
		return 0;
	}
	hspmd_plan_destroy(given);
	return status;
}

/* ---- the result */

void hspmd_mixed_report_clear(struct hspmd_mixed_report *r)
{
	free(r->seq_len);
	free(r->share);
	free(r->parts);
	free(r->busy);
	*r = (struct hspmd_mixed_report){ 0 };
}

static int fill_report(struct hspmd_mixed_costs *m, const struct hspmd_step_share *shares, int count, const struct hspmd_plan *plan,
                       struct hspmd_mixed_report *r, struct hspmd_error *err)
{
	double all = 0;
	r->count = count;
	r->pipeline_count = plan->pipeline_count;
	r->seq_len = hspmd_calloc((size_t)count, sizeof *r->seq_len);
	r->share = hspmd_calloc((size_t)count, sizeof *r->share);
	r->parts = hspmd_calloc((size_t)count * (size_t)plan->pipeline_count, sizeof *r->parts);
	r->busy = hspmd_calloc((size_t)plan->pipeline_count, sizeof *r->busy);
	if (!r->seq_len || !r->share || !r->parts || !r->busy)
		return hspmd_fail_memory(err, "planning for mixed lengths");
	for (int l = 0; l < count; l++)
		all += shares[l].share;
	for (int l = 0; l < count; l++) {
		r->seq_len[l] = shares[l].seq_len;
		r->share[l] = shares[l].share / all;
	}
	r->mixed_s = plan->predicted.step_s;
	return hspmd_mixed_parts(m, plan, r->parts, r->busy, err);
}

/* Pipelines get as many samples of the global batch as they are expected to compute, each at least one. */
static void set_samples(struct hspmd_plan *p, const struct hspmd_mixed_report *r)
{
	int left = p->global_batch - p->pipeline_count;
	double all = 0, expected = 0;
	int given = 0;
	for (int i = 0; i < p->pipeline_count; i++)
		for (int l = 0; l < r->count; l++)
			all += r->parts[i * r->count + l] * r->share[l];
	p->micro_batch = 1;
	for (int i = 0; i < p->pipeline_count; i++) {
		for (int l = 0; l < r->count; l++)
			expected += r->parts[i * r->count + l] * r->share[l];
		int until = i == p->pipeline_count - 1 ? left : (int)(expected / all * left);
		p->pipelines[i].micro_batch = 1;
		p->pipelines[i].micro_batches = 1 + until - given;
		given = until;
	}
}

int hspmd_evaluate_mixed(const struct hspmd_cluster *cluster, enum hspmd_precision precision, const struct hspmd_step_share *shares,
                         int count, struct hspmd_plan *plan, struct hspmd_mixed_report *report, struct hspmd_error *err)
{
	*report = (struct hspmd_mixed_report){ 0 };
	if (hspmd_plan_check_mixing(plan, err))
		return -1;
	struct hspmd_mixed_costs *m = hspmd_mixed_costs_create(cluster, shares, count, precision, plan, err);
	bool given = false;
	for (int i = 0; i < plan->pipeline_count; i++)
		given |= plan->pipelines[i].length_count > 0;
	int status = !m ? -1 : given ? 1 : hspmd_mixed_set_lengths(m, plan, 1, err);
	if (!status)
		status = hspmd_fail(err, "some pipeline does not hold the shortest samples, or none holds the longest");
	if (status == 1)
		status = hspmd_mixed_predict(m, plan, err) || fill_report(m, shares, count, plan, report, err) ? -1 : 0;
	hspmd_mixed_costs_destroy(m);
	return status;
}

/* Expected seconds of a step of the plan if each step had samples of one length. */
static int find_unmixed(const struct search *w, const struct hspmd_plan *plan, double *step_s, struct hspmd_error *err)
{
	struct hspmd_plan *v = hspmd_plan_copy(plan);
	int status = v ? 0 : hspmd_fail_memory(err, "planning for mixed lengths");
	double all = 0;
	*step_s = 0;
	for (int l = 0; !status && l < w->count; l++) {
		v->seq_len = w->shares[l].seq_len;
		status = hspmd_evaluate(w->cluster, w->shares[l].facts, NULL, w->request->precision, v, NULL, err);
		*step_s += w->shares[l].share * v->predicted.step_s;
		all += w->shares[l].share;
	}
	*step_s /= all;
	hspmd_plan_destroy(v);
	return status;
}

int hspmd_search_mixed_plan(const struct hspmd_cluster *cluster, const struct hspmd_solve_request *request,
                            const struct hspmd_step_share *shares, int count, struct hspmd_plan **plan, struct hspmd_mixed_report *report,
                            struct hspmd_error *err)
{
	struct search w = { .cluster = cluster, .request = request, .shares = shares, .count = count };
	*report = (struct hspmd_mixed_report){ 0 };
	hspmd_plan_drop_shorter(*plan);
	if (hspmd_plan_check_mixing(*plan, err))
		return -1;
	w.costs = hspmd_mixed_costs_create(cluster, shares, count, request->precision, *plan, err);
	int status = w.costs && !find_unmixed(&w, *plan, &report->unmixed_s, err) ? offer_parts(&w, *plan, err) : -1;
	if (!status && !w.best)
		status = hspmd_fail(err, "the plan does not hold the samples of all lengths");
	report->given_s = status ? 0 : w.best->predicted.step_s;
	if (!status)
		status = search(&w, err) || fill_report(w.costs, shares, count, w.best, report, err) ? -1 : 0;
	hspmd_mixed_costs_destroy(w.costs);
	if (status) {
		hspmd_plan_destroy(w.best);
		return -1;
	}
	set_samples(w.best, report);
	hspmd_plan_destroy(*plan);
	*plan = w.best;
	return 0;
}
