/* SPDX-License-Identifier: Apache-2.0 */
/* How near the solver's plans for hundreds of devices are to what a long search finds (random_problem.h). The plan that the solver finds,
 * and plans that it finds for other requests, are changed at random many times, and each change is kept unless it is much worse than the
 * plan before (threshold accepting, Dueck and Scheuer 1990; the threshold falls to 0). All are timed by the solver's cost model. The same
 * arguments find the same plans on any machine, but for LIMIT: FIRST and LAST problem, CHANGES of all walks together (200,000), WALKS
 * (8: one from each beginning), LIMIT (0: none), seconds after which the solver's own search ends. Prints a table, then how far the solver
 * is behind. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/format/recompute_sets.h"
#include "controller/solver/search/device_classes.h"
#include "controller/solver/search/search_internal.h"
#include "tests/bench/processor_time.h"
#include "tests/bench/solver/dice.h"
#include "tests/bench/solver/random_problem.h"

#define THRESHOLD 0.01 /* by which a step may get longer at the beginning */
#define LEVELS 40      /* micro-batches moved after a change */

/* ---- one plan */

struct walk {
	const struct problem *of;
	struct hspmd_costs *costs;
	struct hspmd_device_classes *classes;
	struct dice dice;
	double *ends; /* per pipeline of the plan timed last */
	bool *used;   /* per device */
	long timed;
};

static double time_plan(struct walk *w, const struct hspmd_plan *p)
{
	struct hspmd_timing t;
	w->timed++;
	if (!hspmd_plan_fits(w->costs, p) || hspmd_timing_compute(w->costs, p, &t, NULL))
		return INFINITY;
	for (int i = 0; i < p->pipeline_count; i++)
		w->ends[i] = t.stages[t.first_stage[i]].end;
	double seconds = t.step_s;
	hspmd_timing_clear(&t);
	return seconds;
}

/* Like stages on devices of like classes; micro-batches may differ in number. */
static bool alike(const struct walk *w, const struct hspmd_pipeline *a, const struct hspmd_pipeline *b)
{
	if (a->stage_count != b->stage_count || a->micro_batch != b->micro_batch)
		return false;
	for (int s = 0; s < a->stage_count; s++) {
		const struct hspmd_stage *x = &a->stages[s], *y = &b->stages[s];
		if (x->layers[1] != y->layers[1] || x->device_count != y->device_count ||
		    w->classes->class_of_device[x->devices[0]] != w->classes->class_of_device[y->devices[0]])
			return false;
	}
	return true;
}

/* Each stage recomputes as little as memory allows. */
static bool recompute_least(const struct walk *w, struct hspmd_plan *p)
{
	for (int i = 0; i < p->pipeline_count; i++) {
		if (i && alike(w, &p->pipelines[i], &p->pipelines[i - 1]) &&
		    p->pipelines[i].micro_batches <= p->pipelines[i - 1].micro_batches) {
			for (int s = 0; s < p->pipelines[i].stage_count; s++)
				p->pipelines[i].stages[s].recompute = p->pipelines[i - 1].stages[s].recompute;
			continue;
		}
		for (int s = 0; s < p->pipelines[i].stage_count; s++) {
			struct hspmd_stage *st = &p->pipelines[i].stages[s];
			unsigned kinds = hspmd_recompute_kinds(hspmd_costs_recompute_sets(w->costs));
			for (st->recompute = 0; !(kinds & 1u << st->recompute) || !hspmd_stage_fits(w->costs, p, i, s); st->recompute++)
				if (st->recompute == HSPMD_RECOMPUTE_KINDS - 1)
					return false;
		}
	}
	return true;
}

/* Move micro-batches from the pipeline that ends last to the one that ends first while that helps. */
static double level(struct walk *w, struct hspmd_plan *p, double seconds)
{
	for (int n = 0; n < LEVELS && !isinf(seconds) && p->pipeline_count > 1; n++) {
		int last = 0, first = 0;
		for (int i = 1; i < p->pipeline_count; i++) {
			last = w->ends[i] > w->ends[last] ? i : last;
			first = w->ends[i] < w->ends[first] ? i : first;
		}
		struct hspmd_pipeline *from = &p->pipelines[last], *to = &p->pipelines[first];
		if (from->micro_batches < 2 || from->micro_batch != to->micro_batch || first == last)
			break;
		from->micro_batches--;
		to->micro_batches++;
		double now = time_plan(w, p);
		if (!(now < seconds)) {
			from->micro_batches++;
			to->micro_batches--;
			break;
		}
		seconds = now;
	}
	return seconds;
}

/* ---- changes; each returns false if it is not possible */

static bool move_border(struct walk *w, struct hspmd_pipeline *x, int s, int by)
{
	(void)w;
	struct hspmd_stage *st = x->stages;
	if (s + 1 >= x->stage_count || st[s].layers[1] + by <= st[s].layers[0] || st[s].layers[1] + by >= st[s + 1].layers[1])
		return false;
	st[s].layers[1] += by;
	st[s + 1].layers[0] += by;
	return true;
}

static bool swap_stages(struct walk *w, struct hspmd_pipeline *x, int s, int by)
{
	(void)w;
	int t = s + (by < 0 ? -by : by);
	if (t >= x->stage_count)
		return false;
	struct hspmd_stage *a = &x->stages[s], *b = &x->stages[t], was = *a;
	a->devices = b->devices;
	a->device_count = b->device_count;
	b->devices = was.devices;
	b->device_count = was.device_count;
	return true;
}

static bool width_is_fine(const struct walk *w, int tp)
{
	return tp <= 8 && (tp & (tp - 1)) == 0 && hspmd_model_divides(w->of->facts, tp);
}

/* Two stages of one class in one node become one of twice the width. */
static bool widen(struct walk *w, struct hspmd_pipeline *x, int s, int by)
{
	(void)by;
	const struct hspmd_cluster_device *devices = w->of->cluster->devices;
	if (s + 1 >= x->stage_count)
		return false;
	struct hspmd_stage *a = &x->stages[s], *b = a + 1;
	if (!width_is_fine(w, a->device_count + b->device_count) || a->device_count != b->device_count ||
	    devices[a->devices[0]].node != devices[b->devices[0]].node || devices[a->devices[0]].type != devices[b->devices[0]].type)
		return false;
	int *grown = realloc(a->devices, 2 * (size_t)a->device_count * sizeof *grown);
	memcpy(grown + a->device_count, b->devices, (size_t)b->device_count * sizeof *grown);
	a->devices = grown;
	a->device_count *= 2;
	a->layers[1] = b->layers[1];
	free(b->devices);
	memmove(b, b + 1, (size_t)(--x->stage_count - s - 1) * sizeof *b);
	return true;
}

/* A stage becomes two of half the width. */
static bool narrow(struct walk *w, struct hspmd_pipeline *x, int s, int by)
{
	(void)w, (void)by;
	if (x->stages[s].device_count < 2 || x->stages[s].layers[1] - x->stages[s].layers[0] < 2 || x->stage_count >= 60)
		return false;
	struct hspmd_stage *grown = realloc(x->stages, (size_t)(x->stage_count + 1) * sizeof *grown);
	int half = grown[s].device_count / 2, *own = malloc((size_t)half * sizeof *own);
	x->stages = grown;
	memmove(&grown[s + 1], &grown[s], (size_t)(x->stage_count++ - s) * sizeof *grown);
	memcpy(own, grown[s].devices + half, (size_t)half * sizeof *own);
	grown[s].device_count = half;
	grown[s + 1].device_count = half;
	grown[s + 1].devices = own;
	grown[s].layers[1] = grown[s + 1].layers[0] = (grown[s].layers[0] + grown[s].layers[1]) / 2;
	return true;
}

/* A stage's devices become spare, its layers a neighbour's. */
static bool drop_stage(struct walk *w, struct hspmd_pipeline *x, int s, int by)
{
	(void)w;
	if (x->stage_count < 2)
		return false;
	struct hspmd_stage *st = &x->stages[s];
	if (s > 0 && (by > 0 || s == x->stage_count - 1))
		st[-1].layers[1] = st->layers[1];
	else
		st[1].layers[0] = st->layers[0];
	free(st->devices);
	memmove(st, st + 1, (size_t)(--x->stage_count - s) * sizeof *st);
	return true;
}

/* Spare devices of one node, as many as stage s has, become another stage before it. */
static bool add_stage(struct walk *w, struct hspmd_pipeline *x, int s, int by)
{
	const struct hspmd_cluster *c = w->of->cluster;
	int width = x->stages[s].device_count, found[8], n = 0, node = -1, start = pick(&w->dice, 0, c->node_count - 1);
	(void)by;
	if (x->stages[s].layers[1] - x->stages[s].layers[0] < 2 || x->stage_count >= 60)
		return false;
	for (int k = 0; k < c->node_count && n < width; k++) {
		node = (start + k) % c->node_count;
		n = 0;
		for (int d = c->nodes[node].first_device; d < c->nodes[node].first_device + c->nodes[node].device_count && n < width; d++)
			if (!w->used[d])
				found[n++] = d;
	}
	if (n < width)
		return false;
	struct hspmd_stage *grown = realloc(x->stages, (size_t)(x->stage_count + 1) * sizeof *grown);
	int *own = malloc((size_t)width * sizeof *own);
	x->stages = grown;
	memmove(&grown[s + 1], &grown[s], (size_t)(x->stage_count++ - s) * sizeof *grown);
	memcpy(own, found, (size_t)width * sizeof *own);
	for (int i = 0; i < width; i++)
		w->used[found[i]] = true;
	grown[s].devices = own;
	grown[s].layers[1] = grown[s + 1].layers[0] = (grown[s].layers[0] + grown[s].layers[1]) / 2;
	return true;
}

typedef bool change(struct walk *w, struct hspmd_pipeline *x, int s, int by);
static change *const kinds[] = { move_border, move_border, move_border, swap_stages, widen, narrow, drop_stage, add_stage };
#define CHANGES ((int)(sizeof kinds / sizeof *kinds))

static void mark_used(struct walk *w, const struct hspmd_plan *p)
{
	memset(w->used, 0, (size_t)w->of->cluster->device_count * sizeof *w->used);
	for (int i = 0; i < p->pipeline_count; i++)
		for (int s = 0; s < p->pipelines[i].stage_count; s++)
			for (int d = 0; d < p->pipelines[i].stages[s].device_count; d++)
				w->used[p->pipelines[i].stages[s].devices[d]] = true;
}

/* Stages of two pipelines trade devices: of equal width, in all pairs of pipelines like these. */
static bool trade(struct walk *w, struct hspmd_plan *p, int i, int k)
{
	if (i == k || alike(w, &p->pipelines[i], &p->pipelines[k]))
		return false;
	int s = pick(&w->dice, 0, p->pipelines[i].stage_count - 1), t = pick(&w->dice, 0, p->pipelines[k].stage_count - 1);
	if (p->pipelines[i].stages[s].device_count != p->pipelines[k].stages[t].device_count)
		return false;
	int *devices = p->pipelines[i].stages[s].devices;
	p->pipelines[i].stages[s].devices = p->pipelines[k].stages[t].devices;
	p->pipelines[k].stages[t].devices = devices;
	return true;
}

static bool drop_pipeline(struct hspmd_plan *p, int i)
{
	int samples = p->pipelines[i].micro_batches;
	if (p->pipeline_count < 2)
		return false;
	for (int s = 0; s < p->pipelines[i].stage_count; s++)
		free(p->pipelines[i].stages[s].devices);
	free(p->pipelines[i].stages);
	memmove(&p->pipelines[i], &p->pipelines[i + 1], (size_t)(--p->pipeline_count - i) * sizeof *p->pipelines);
	for (int k = 0; samples > 0; samples--, k = (k + 1) % p->pipeline_count)
		p->pipelines[k].micro_batches++;
	return true;
}

static bool double_micro_batches(struct hspmd_plan *p, bool larger)
{
	int all = p->global_batch / p->micro_batch, sum = 0;
	if (larger ? all % 2 || all / 2 < p->pipeline_count : p->micro_batch % 2)
		return false;
	p->micro_batch = larger ? p->micro_batch * 2 : p->micro_batch / 2;
	for (int i = 0; i < p->pipeline_count; i++) {
		p->pipelines[i].micro_batch = p->micro_batch;
		p->pipelines[i].micro_batches = larger ? (p->pipelines[i].micro_batches + 1) / 2 : p->pipelines[i].micro_batches * 2;
		sum += p->pipelines[i].micro_batches;
	}
	for (int i = 0; sum > p->global_batch / p->micro_batch; i = (i + 1) % p->pipeline_count)
		if (p->pipelines[i].micro_batches > 1) {
			p->pipelines[i].micro_batches--;
			sum--;
		}
	return true;
}

/* A change drawn at random. */
static bool change_plan(struct walk *w, struct hspmd_plan *p)
{
	int i = pick(&w->dice, 0, p->pipeline_count - 1), what = pick(&w->dice, 0, CHANGES + 3);
	mark_used(w, p);
	if (what == CHANGES)
		return trade(w, p, i, pick(&w->dice, 0, p->pipeline_count - 1));
	if (what == CHANGES + 1)
		return drop_pipeline(p, i);
	if (what == CHANGES + 2)
		return double_micro_batches(p, pick(&w->dice, 0, 1));
	if (what == CHANGES + 3) {
		p->schedule = p->schedule == HSPMD_SCHEDULE_1F1B ? HSPMD_SCHEDULE_ZB_H1 : HSPMD_SCHEDULE_1F1B;
		return true;
	}
	int s = pick(&w->dice, 0, p->pipelines[i].stage_count - 1), by = pick(&w->dice, 1, 3) * (pick(&w->dice, 0, 1) ? 1 : -1);
	bool all = pick(&w->dice, 0, 3) > 0, any = false, like[1024];
	for (int k = 0; k < p->pipeline_count; k++)
		like[k] = k == i || (all && alike(w, &p->pipelines[i], &p->pipelines[k]));
	for (int k = 0; k < p->pipeline_count; k++)
		if (like[k])
			any = kinds[what](w, &p->pipelines[k], s, by) || any;
	return any;
}

/* ---- the search */

/* The best plan of a walk of so many changes. */
static struct hspmd_plan *walk_from(struct walk *w, const struct hspmd_plan *start, long changes, double *best_s)
{
	struct hspmd_plan *now = hspmd_plan_copy(start), *best = hspmd_plan_copy(start);
	double now_s = time_plan(w, now);
	*best_s = now_s;
	for (long n = 0; n < changes; n++) {
		double left = 1 - (double)n / (double)changes;
		struct hspmd_plan *p = hspmd_plan_copy(now);
		int count = pick(&w->dice, 1, 2);
		bool changed = false;
		while (count--)
			changed = change_plan(w, p) || changed;
		double next_s = changed && recompute_least(w, p) ? level(w, p, time_plan(w, p)) : INFINITY;
		if (next_s > now_s * (1 + THRESHOLD * left * left)) {
			hspmd_plan_destroy(p);
			continue;
		}
		hspmd_plan_destroy(now);
		now = p;
		now_s = next_s;
		if (now_s < *best_s) {
			hspmd_plan_destroy(best);
			best = hspmd_plan_copy(now);
			*best_s = now_s;
		}
	}
	hspmd_plan_destroy(now);
	return best;
}

static void say(const char *what, const struct hspmd_plan *p, const struct hspmd_cluster *c)
{
	char *line = hspmd_plan_summary(p, c);
	printf("   %s: micro-batch %d, %s, zero %d, %.300s\n", what, p->micro_batch, hspmd_schedule_names[p->schedule], p->zero_stage,
	       line ? line : "");
	free(line);
}

/* Other requests, whose plans walks begin with: what the search chooses otherwise may lead to a better one. Factors of our plan's
 * micro-batch, largest tensor-parallel groups, schedules, stages of ZeRO; 0: as we choose. */
static const struct {
	const char *name;
	double micro_batch;
	int max_tp;
	unsigned schedules;
	bool no_zero;
} beginnings[] = {
	{ "our plan", 0, 0, 0, false },
	{ "micro-batches of twice the size", 2, 0, 0, false },
	{ "micro-batches of half the size", 0.5, 0, 0, false },
	{ "groups of at most 4", 0, 4, 0, false },
	{ "groups of at most 2", 0, 2, 0, false },
	{ "1F1B", 0, 0, 1u << HSPMD_SCHEDULE_1F1B, false },
	{ "ZB-H1", 0, 0, 1u << HSPMD_SCHEDULE_ZB_H1, false },
	{ "no ZeRO", 0, 0, 0, true },
};
#define BEGINNINGS ((int)(sizeof beginnings / sizeof *beginnings))

/* Interleaved plans are not changed: where ours is one, the best other one takes its place. */
static struct hspmd_plan *start_of(const struct problem *p, const struct hspmd_plan *ours, int number)
{
	struct hspmd_runtime_caps caps = hspmd_runtime_caps_default();
	struct hspmd_solve_request r = p->request;
	struct hspmd_error err;
	if (!number && ours->virtual_stages == 1)
		return hspmd_plan_copy(ours);
	if (beginnings[number].micro_batch > 0)
		r.micro_batch = (int)fmax(1, beginnings[number].micro_batch * ours->micro_batch);
	caps.schedules &= ~(1u << HSPMD_SCHEDULE_INTERLEAVED);
	caps.schedules = beginnings[number].schedules ? beginnings[number].schedules : caps.schedules;
	caps.max_tp = beginnings[number].max_tp ? beginnings[number].max_tp : caps.max_tp;
	caps.max_zero_stage = beginnings[number].no_zero ? 0 : caps.max_zero_stage;
	r.caps = &caps;
	return hspmd_solve(p->cluster, p->facts, NULL, &r, NULL, &err);
}

/* What a long search finds. */
struct found {
	struct hspmd_plan *plan; /* NULL: nothing faster than ours */
	double seconds;
	const char *from; /* the beginning of the walk */
};

static void search_long(struct walk *w, const struct hspmd_plan *ours, long changes, int walks, struct found *best)
{
	*best = (struct found){ NULL, ours->predicted.step_s, "" };
	for (int i = 0; i < walks; i++) {
		double seconds = INFINITY;
		struct hspmd_plan *start = start_of(w->of, ours, i % BEGINNINGS),
		                  *found = start ? walk_from(w, start, changes / walks, &seconds) : NULL;
		hspmd_plan_destroy(start);
		if (seconds < best->seconds) {
			hspmd_plan_destroy(best->plan);
			*best = (struct found){ found, seconds, beginnings[i % BEGINNINGS].name };
		} else {
			hspmd_plan_destroy(found);
		}
	}
}

/* Adds what our plan is behind to *behind. Returns 0 or -1. */
static int compare(unsigned seed, long changes, int walks, double limit_s, double *behind)
{
	struct hspmd_error err = { "" };
	struct problem p;
	if (problem_new(seed, &p, &err)) {
		fprintf(stderr, "problem %u: %s\n", seed, err.text);
		problem_free(&p);
		return -1;
	}
	p.request.time_limit_s = limit_s;
	double began = processor_time(), wall = hspmd_now();
	struct hspmd_plan *ours = hspmd_solve(p.cluster, p.facts, NULL, &p.request, NULL, &err);
	double took = processor_time() - began;
	wall = hspmd_now() - wall;
	p.request.time_limit_s = 0;
	if (!ours) {
		printf("problem %u (%d devices): %s\n", seed, p.cluster->device_count, err.text);
		problem_free(&p);
		return 0;
	}
	bool allowed[8] = { true, true, true, true, true, true, true, true };
	struct walk w = { .of = &p, .dice = { seed } };
	struct found best;
	w.costs = hspmd_costs_new(p.cluster, p.facts, NULL, p.request.precision, p.request.seq_len, &err);
	w.classes = hspmd_device_classes_new(p.cluster, allowed, &err);
	w.ends = hspmd_calloc((size_t)p.cluster->device_count, sizeof *w.ends);
	w.used = hspmd_calloc((size_t)p.cluster->device_count, sizeof *w.used);
	began = processor_time();
	search_long(&w, ours, changes, walks, &best);
	*behind = ours->predicted.step_s / best.seconds - 1;
	printf("| %u | %d | %d | %d | %d | %.6g | %.2f | %.2f | %.6g | %.1f | %ld | %.2f %% |\n", seed, p.cluster->device_count,
	       p.cluster->type_count, p.facts->layer_count, p.request.global_batch, ours->predicted.step_s, wall, took, best.seconds,
	       processor_time() - began, w.timed, 100 * *behind);
	if (best.plan) {
		say("ours", ours, p.cluster);
		say(best.from, best.plan, p.cluster);
	}
	fflush(stdout);
	hspmd_plan_destroy(best.plan);
	hspmd_plan_destroy(ours);
	free(w.ends);
	free(w.used);
	hspmd_device_classes_destroy(w.classes);
	hspmd_costs_destroy(w.costs);
	problem_free(&p);
	return 0;
}

static int by_size(const void *x, const void *y)
{
	double a = *(const double *)x, b = *(const double *)y;
	return a < b ? -1 : a > b;
}

int main(int argc, char **argv)
{
	unsigned first = argc > 1 ? (unsigned)atoi(argv[1]) : 1, last = argc > 2 ? (unsigned)atoi(argv[2]) : 50;
	long changes = argc > 3 ? atol(argv[3]) : 200000;
	int walks = argc > 4 ? atoi(argv[4]) : BEGINNINGS, far = 0;
	double limit_s = argc > 5 ? atof(argv[5]) : 0;
	size_t count = last >= first ? last - first + 1 : 0;
	double *behind = hspmd_calloc(count + 1, sizeof *behind), sum = 0;
	if (!behind || !count || walks < 0 || changes < 0 || limit_s < 0) {
		fprintf(stderr, "Usage: long_search [FIRST LAST [CHANGES [WALKS [LIMIT]]]]\n");
		return 2;
	}
	printf("| problem | devices | types | layers | batch | step, s | found in, s | processors, s | long search, s | took, s | timed | "
	       "behind |\n"
	       "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
	for (size_t i = 0; i < count; i++) {
		if (compare(first + (unsigned)i, changes, walks, limit_s, &behind[i]))
			return 1;
		sum += behind[i];
		far += behind[i] > 0.005;
	}
	qsort(behind, count, sizeof *behind, by_size);
	printf("%zu problems: behind by %.2f %% on average, %.2f %% in the median, %.2f %% at most; %d by more than 0.5 %%\n", count,
	       100 * sum / (double)count, 100 * behind[count / 2], 100 * behind[count - 1], far);
	free(behind);
	return 0;
}
