/* SPDX-License-Identifier: Apache-2.0 */
/* The search, in two stages as in H2's HeteroAuto (arXiv 2505.17548, section 4): devices are dealt into pipelines, then each pipeline's layers
 * into stages; micro-batches go to the pipelines by their speed; every candidate is timed by the simulator and the fastest kept. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/alloc.h"
#include "controller/solver/evaluate.h"
#include "controller/solver/partition.h"
#include "controller/solver/solver.h"

/* A stage's devices: `count` of one type in one node. */
struct unit {
	int first, count, type;
	double speed; /* samples a second through the whole model */
};

struct search {
	struct hspmd_costs *costs;
	const struct hspmd_solve_request *request;
	struct hspmd_execution exec;
	bool *allowed; /* per device type */
	struct hspmd_plan *best;
	double best_s, deadline;
	int64_t evaluated;
	bool timed_out;
	double closest_need, closest_have; /* of the plan that came nearest to fitting */
	int closest_device;
};

/* What a candidate is made of. */
struct candidate {
	int micro_batch, tp;
	enum hspmd_recompute recompute;
	int zero_stage;
};

struct hspmd_execution hspmd_execution_default(void)
{
	return (struct hspmd_execution){
		.max_tp = 8,
		.unequal_micro_batch = true,
		.recompute = 1u << HSPMD_RECOMPUTE_NONE | 1u << HSPMD_RECOMPUTE_SELECTIVE | 1u << HSPMD_RECOMPUTE_FULL,
		.schedules = 1u << HSPMD_SCHEDULE_1F1B,
		.max_zero_stage = 1,
	};
}

static double now_s(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* ---- one pipeline */

struct split {
	struct search *s;
	const struct candidate *k;
	struct unit **units;
	int stages, pipelines, micro_batches;
};

static void fill_stage(struct hspmd_stage *st, const struct unit *u, int *devices, int first, int end, enum hspmd_recompute recompute)
{
	*st = (struct hspmd_stage){ .layers = { first, end }, .device_count = u->count, .devices = devices, .context = 1, .recompute = recompute };
	for (int i = 0; i < u->count; i++)
		devices[i] = u->first + i;
}

static double split_cost(void *data, int stage, int first, int end)
{
	struct split *p = data;
	struct hspmd_costs *c = p->s->costs;
	int devices[HSPMD_MAX_TP];
	struct hspmd_stage st;
	struct hspmd_stage_cost cost;
	fill_stage(&st, p->units[stage], devices, first, end, p->k->recompute);
	int in_flight = hspmd_in_flight(stage, p->stages, p->micro_batches, HSPMD_SCHEDULE_1F1B);
	double need = hspmd_costs_memory(c, &st, 0, p->k->micro_batch, in_flight, p->pipelines, p->k->zero_stage > 0);
	double have = (double)c->cluster->types[p->units[stage]->type].memory_bytes;
	if (need > have)
		return INFINITY;
	if (hspmd_costs_stage(c, &st, p->k->micro_batch, &cost, NULL))
		return INFINITY;
	double sent = 0;
	if (stage > 0)
		sent = hspmd_costs_transfer(c, p->units[stage - 1]->first, st.devices[0], p->units[stage - 1]->count, st.device_count,
					    c->layers[first - 1].output_bytes * p->k->micro_batch, NULL);
	return sent < 0 ? INFINITY : cost.forward + cost.backward + 2 * sent;
}

/* ---- a plan from units dealt to pipelines */

static struct hspmd_plan *plan_new(const struct search *s, const struct candidate *k, int pipelines)
{
	struct hspmd_plan *p = hspmd_calloc(1, sizeof *p);
	if (!p)
		return NULL;
	p->global_batch = s->request->global_batch;
	p->micro_batch = k->micro_batch;
	p->seq_len = s->costs->seq_len;
	p->schedule = HSPMD_SCHEDULE_1F1B;
	p->virtual_stages = 1;
	p->zero_stage = pipelines > 1 ? k->zero_stage : 0;
	p->pipelines = hspmd_calloc((size_t)pipelines, sizeof *p->pipelines);
	if (!p->pipelines) {
		free(p);
		return NULL;
	}
	return p;
}

/* 0; 1: does not fit; -1: memory is short. */
static int add_pipeline(struct search *s, const struct candidate *k, struct hspmd_plan *p, struct unit **units, int count, int pipelines)
{
	struct split split = { s, k, units, count, pipelines, s->request->global_batch / k->micro_batch };
	int *ends = hspmd_calloc((size_t)count, sizeof *ends);
	int rc = ends ? hspmd_partition(count, s->costs->layer_count, split_cost, &split, ends) : -1;
	if (rc) {
		free(ends);
		return rc;
	}
	struct hspmd_pipeline *pipe = &p->pipelines[p->pipeline_count];
	*pipe = (struct hspmd_pipeline){ .micro_batches = 1, .micro_batch = k->micro_batch, .stage_count = count };
	pipe->stages = hspmd_calloc((size_t)count, sizeof *pipe->stages);
	if (!pipe->stages) {
		free(ends);
		return -1;
	}
	p->pipeline_count++;
	for (int i = 0; i < count; i++) {
		int *devices = hspmd_calloc((size_t)units[i]->count, sizeof *devices);
		if (!devices) {
			free(ends);
			return -1;
		}
		fill_stage(&pipe->stages[i], units[i], devices, i ? ends[i - 1] : 0, ends[i], k->recompute);
	}
	free(ends);
	return 0;
}

/* A pipeline's seconds for m micro-batches: fill once, then one every cycle of the slowest stage. */
static int pipeline_rhythm(struct hspmd_costs *c, const struct hspmd_pipeline *pipe, double *cycle, double *fill)
{
	*cycle = *fill = 0;
	for (int i = 0; i < pipe->stage_count; i++) {
		struct hspmd_stage_cost cost;
		if (hspmd_costs_stage(c, &pipe->stages[i], pipe->micro_batch, &cost, NULL))
			return -1;
		*fill += cost.forward + cost.backward;
		*cycle = fmax(*cycle, cost.forward + cost.backward);
	}
	*fill -= *cycle;
	return 0;
}

/* Each next micro-batch goes where it would be done first. */
static int deal_micro_batches(struct hspmd_costs *c, struct hspmd_plan *p)
{
	int total = p->global_batch / p->micro_batch, n = p->pipeline_count;
	double *cycle = hspmd_calloc((size_t)n * 2, sizeof *cycle), *fill = cycle ? cycle + n : NULL;
	if (!cycle)
		return -1;
	for (int i = 0; i < n; i++)
		if (pipeline_rhythm(c, &p->pipelines[i], &cycle[i], &fill[i])) {
			free(cycle);
			return -1;
		}
	for (int left = total - n; left > 0; left--) {
		int first = 0;
		for (int i = 1; i < n; i++)
			if (fill[i] + (p->pipelines[i].micro_batches + 1) * cycle[i] < fill[first] + (p->pipelines[first].micro_batches + 1) * cycle[first])
				first = i;
		p->pipelines[first].micro_batches++;
	}
	free(cycle);
	return 0;
}

static bool plan_fits(struct search *s, const struct hspmd_plan *p)
{
	for (int i = 0; i < p->pipeline_count; i++)
		for (int st = 0; st < p->pipelines[i].stage_count; st++) {
			int device = p->pipelines[i].stages[st].devices[0];
			double need = hspmd_plan_memory(s->costs, p, i, st, 0);
			if (need > (double)s->costs->cluster->types[s->costs->cluster->devices[device].type].memory_bytes)
				return false;
		}
	return true;
}

/* Deal `count` units in rows of `depth`, one row a pipeline (a unit of each `pipelines`-th place), and time the result. */
static void try_deal(struct search *s, const struct candidate *k, struct unit *units, int count, int pipelines, bool reversed)
{
	int depth = count / pipelines, total = s->request->global_batch / k->micro_batch;
	if (depth < 1 || depth > s->costs->layer_count || pipelines > total || s->timed_out)
		return;
	if (s->best && s->deadline > 0 && now_s() > s->deadline) {
		s->timed_out = true;
		return;
	}
	struct hspmd_plan *p = plan_new(s, k, pipelines);
	struct unit **row = hspmd_calloc((size_t)depth, sizeof(struct unit *));
	bool good = p && row;
	for (int i = 0; good && i < pipelines; i++) {
		for (int j = 0; j < depth; j++)
			row[reversed ? depth - 1 - j : j] = &units[j * pipelines + i];
		good = add_pipeline(s, k, p, row, depth, pipelines) == 0;
	}
	struct hspmd_timing t;
	if (good && !deal_micro_batches(s->costs, p) && plan_fits(s, p) && !hspmd_timing_of(s->costs, p, &t, NULL)) {
		s->evaluated++;
		if (t.step_s < s->best_s) {
			hspmd_plan_destroy(s->best);
			s->best = p;
			s->best_s = t.step_s;
			p = NULL;
		}
		hspmd_timing_clear(&t);
	}
	free(row);
	hspmd_plan_destroy(p);
}

/* ---- all candidates */

static int by_speed(const void *a, const void *b)
{
	const struct unit *x = a, *y = b;
	if (x->speed != y->speed)
		return x->speed > y->speed ? -1 : 1;
	return x->first < y->first ? -1 : x->first > y->first;
}

static int make_units(struct search *s, const struct candidate *k, struct unit *units)
{
	const struct hspmd_cluster *cl = s->costs->cluster;
	int count = 0, limit = s->request->limits.max_devices;
	for (int n = 0; n < cl->node_count; n++) {
		int first = cl->nodes[n].first_device, end = first + cl->nodes[n].device_count;
		for (int d = first; d + k->tp <= end;) {
			int same = 1;
			while (same < k->tp && cl->devices[d + same].type == cl->devices[d].type)
				same++;
			if (same < k->tp || !s->allowed[cl->devices[d].type]) {
				d += same;
				continue;
			}
			const struct hspmd_layer_times *t = hspmd_costs_times(s->costs, cl->devices[d].type, 1.0 / k->tp, k->micro_batch, NULL);
			if (t)
				units[count++] = (struct unit){ d, k->tp, cl->devices[d].type,
								k->micro_batch / ((t->forward[s->costs->layer_count] + t->backward[s->costs->layer_count]) * cl->nodes[n].slowdown) };
			d += k->tp;
		}
	}
	qsort(units, (size_t)count, sizeof *units, by_speed);
	return limit && count > limit / k->tp ? limit / k->tp : count;
}

static void try_candidate(struct search *s, const struct candidate *k, struct unit *units)
{
	int all = make_units(s, k, units);
	/* The slowest units may only slow the rest: try with and without each kind of them. */
	for (int count = all; count > 0; count--) {
		if (count < all && units[count].speed == units[count - 1].speed)
			continue;
		for (int pipelines = 1; pipelines <= count; pipelines++) {
			if (count % pipelines && pipelines > 16)
				continue;
			try_deal(s, k, units, count / pipelines * pipelines, pipelines, false);
			try_deal(s, k, units, count / pipelines * pipelines, pipelines, true);
		}
	}
}

static bool tp_is_allowed(const struct search *s, int tp)
{
	const struct hspmd_model *m = s->costs->model;
	return tp <= s->exec.max_tp && (!m || (m->heads % tp == 0 && m->kv_heads % tp == 0));
}

static void try_all(struct search *s, struct unit *units)
{
	int widest = 1, batch = s->request->global_batch;
	for (int n = 0; n < s->costs->cluster->node_count; n++)
		widest = s->costs->cluster->nodes[n].device_count > widest ? s->costs->cluster->nodes[n].device_count : widest;
	for (int zero = 0; zero <= s->exec.max_zero_stage; zero++)
		for (int r = 0; r < HSPMD_RECOMPUTE_KINDS; r++)
			for (int mb = 1; mb <= batch && mb <= 64; mb++) {
				if (!(s->exec.recompute & 1u << r) || batch % mb || (s->request->micro_batch && mb != s->request->micro_batch))
					continue;
				for (int tp = 1; tp <= widest && tp <= HSPMD_MAX_TP; tp++) {
					struct candidate k = { mb, tp, (enum hspmd_recompute)r, zero };
					if (tp_is_allowed(s, tp))
						try_candidate(s, &k, units);
				}
			}
}

static int check_request(const struct hspmd_cluster *c, const struct hspmd_solve_request *r, struct hspmd_error *err)
{
	if (c->device_count < 1)
		return hspmd_fail(err, "the cluster has no devices");
	if (r->global_batch < 1)
		return hspmd_fail(err, "the global batch is %d: at least 1 is needed", r->global_batch);
	if (r->micro_batch < 0 || (r->micro_batch && r->global_batch % r->micro_batch))
		return hspmd_fail(err, "a global batch of %d cannot be divided into micro-batches of %d", r->global_batch, r->micro_batch);
	return 0;
}

static int prepare(struct search *s, struct hspmd_error *err)
{
	const struct hspmd_cluster *c = s->costs->cluster;
	const struct hspmd_solve_limits *lim = &s->request->limits;
	int usable = 0;
	s->allowed = hspmd_calloc((size_t)c->type_count, sizeof *s->allowed);
	if (!s->allowed)
		return hspmd_fail_memory(err, "preparing the search");
	for (int t = 0; t < c->type_count; t++) {
		s->allowed[t] = lim->type_count == 0;
		for (int i = 0; i < lim->type_count; i++)
			s->allowed[t] = s->allowed[t] || !strcmp(lim->types[i], c->types[t].name);
		struct hspmd_error why;
		if (s->allowed[t] && !hspmd_costs_times(s->costs, t, 1.0, 1, &why)) {
			hspmd_costs_warn(s->costs, "%s; its devices are left out", why.text);
			s->allowed[t] = false;
		}
		usable += s->allowed[t];
	}
	return usable ? 0 : hspmd_fail(err, "no device type of the cluster may be used%s%s", s->costs->warning_count ? ": " : "",
				       s->costs->warning_count ? s->costs->warnings[0] : "");
}

struct hspmd_plan *hspmd_solve(const struct hspmd_cluster *cluster, const struct hspmd_model *model, const struct hspmd_profile *profile,
			       const struct hspmd_solve_request *request, struct hspmd_solve_report *report, struct hspmd_error *err)
{
	double start = now_s();
	struct search s = { .request = request, .best_s = INFINITY };
	if (check_request(cluster, request, err))
		return NULL;
	s.exec = request->exec ? *request->exec : hspmd_execution_default();
	s.deadline = request->time_limit_s > 0 ? start + request->time_limit_s : 0;
	s.costs = hspmd_costs_new(cluster, model, profile, request->precision, request->seq_len, err);
	struct unit *units = s.costs ? hspmd_calloc((size_t)cluster->device_count, sizeof *units) : NULL;
	if (!s.costs)
		return NULL;
	s.costs->sequence_parallel = s.exec.sequence_parallel;
	int rc = units ? prepare(&s, err) : hspmd_fail_memory(err, "preparing the search");
	if (!rc) {
		try_all(&s, units);
		if (!s.best)
			rc = hspmd_fail(err, "no plan fits into the memory of the %d devices", cluster->device_count);
	}
	if (!rc)
		rc = hspmd_predict(s.costs, s.best, report, err);
	if (!rc && report) {
		hspmd_report_take_warnings(report, s.costs);
		report->evaluated = s.evaluated;
		report->timed_out = s.timed_out;
		report->elapsed_s = now_s() - start;
		report->moved_bytes = NAN;
	}
	if (rc) {
		hspmd_plan_destroy(s.best);
		s.best = NULL;
	}
	free(units);
	free(s.allowed);
	hspmd_costs_destroy(s.costs);
	return s.best;
}
