/* SPDX-License-Identifier: Apache-2.0 */
/* How near the solver's plans for hundreds of devices are to what a long search finds. Random problems of 64 to 512 GPUs of one to four
 * types in nodes of 4 or 8; the plan that the solver finds without a time limit is then changed at random for a long time, and each change
 * is kept unless it is much worse than the plan before (threshold accepting, Dueck and Scheuer 1990; the threshold falls to 0). Both are
 * timed by the solver's cost model. Arguments: FIRST and LAST problem, SECONDS of processor time each (60), restarts (3). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/recompute_sets.h"
#include "controller/solver/search/device_classes.h"
#include "controller/solver/search/search_internal.h"
#include "controller/solver/solver.h"
#include "runtime/facts/facts.h"
#include "runtime/model/model.h"
#include "tests/bench/processor_time.h"
#include "tests/bench/solver/dice.h"

#define THRESHOLD 0.01 /* by which a step may get longer at the beginning */
#define LEVELS 40      /* micro-batches moved after a change */

/* ---- problems */

struct problem {
	struct hspmd_cluster *cluster;
	struct hspmd_model *model;
	struct hspmd_model_facts *facts;
	struct hspmd_solve_request request;
};

static const struct {
	const char *name;
	double memory, rate, tflops;
} types[] = {
	{ "H20", 96e9, 4000, 148 },     { "H800", 80e9, 3350, 990 }, { "A100", 80e9, 2039, 312 },
	{ "A100-40", 40e9, 1555, 312 }, { "L40", 48e9, 864, 181 },   { "V100", 32e9, 900, 125 },
};
#define TYPES ((int)(sizeof types / sizeof *types))

static json_t *random_cluster(struct dice *d)
{
	json_t *described = json_object(), *nodes = json_array(), *links = json_array();
	int count = pick(d, 1, 4), first = pick(d, 0, TYPES - 1), devices = (int)between(d, 64, 512);
	double left = 1;
	for (int t = 0; t < count; t++) {
		int type = (first + t) % TYPES, per_node = pick(d, 0, 2) ? 8 : 4;
		double part = t == count - 1 ? left : left * between(d, 0.2, 0.7);
		int n = (int)fmax(1, round(part * devices / per_node));
		char *name = hspmd_asprintf("%s-[0-%d]", types[type].name, n - 1);
		left -= part;
		json_object_set_new(described, types[type].name,
		                    json_pack("{s:s, s:I, s:f, s:{s:f}}", "kind", "cuda", "memory_bytes", (json_int_t)types[type].memory,
		                              "gbytes_per_s", types[type].rate, "peak_tflops", "bf16", types[type].tflops));
		json_array_append_new(
		        nodes, json_pack("{s:s, s:[{s:s, s:i}]}", "name", name, "devices", "type", types[type].name, "count", per_node));
		free(name);
	}
	json_array_append_new(links, json_pack("{s:s, s:f, s:f}", "scope", "node", "alpha_s", 5e-6, "gbytes_per_s", between(d, 20, 300)));
	json_array_append_new(links, json_pack("{s:s, s:f, s:f}", "scope", "cluster", "alpha_s", 1e-5, "gbytes_per_s", between(d, 3, 100)));
	return json_pack("{s:s, s:o, s:o, s:o}", "format", HSPMD_CLUSTER_FORMAT, "device_types", described, "nodes", nodes, "links", links);
}

static json_t *random_model(struct dice *d)
{
	int heads = pick(d, 2, 8) * 8, width = heads * 128;
	int words = pick(d, 0, 1) ? 32000 : 128000, blocks = pick(d, 24, 80);
	return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "model_type", "llama", "hidden_size", width, "intermediate_size",
	                 width * 11 / 4, "num_hidden_layers", blocks, "num_attention_heads", heads, "num_key_value_heads", 8, "vocab_size",
	                 words, "max_position_embeddings", 4096);
}

static int problem_new(unsigned seed, struct problem *p, struct hspmd_error *err)
{
	struct dice d = { seed * 7919u + 1 };
	json_t *cluster = random_cluster(&d), *model = random_model(&d);
	*p = (struct problem){ .cluster = hspmd_cluster_from_json(cluster, "cluster", err) };
	p->model = p->cluster ? hspmd_model_from_json(model, "model", err) : NULL;
	p->request =
	        (struct hspmd_solve_request){ .global_batch = 1 << pick(&d, 8, 11), .seq_len = 4096, .precision = HSPMD_PRECISION_BF16 };
	p->facts = p->model ? hspmd_model_facts_of(p->model, p->request.seq_len, err) : NULL;
	json_decref(cluster);
	json_decref(model);
	return p->facts ? 0 : -1;
}

static void problem_free(struct problem *p)
{
	hspmd_model_facts_destroy(p->facts);
	hspmd_model_destroy(p->model);
	hspmd_cluster_destroy(p->cluster);
}

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
static change *const changes[] = { move_border, move_border, move_border, swap_stages, widen, narrow, drop_stage, add_stage };
#define CHANGES ((int)(sizeof changes / sizeof *changes))

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
			any = changes[what](w, &p->pipelines[k], s, by) || any;
	return any;
}

/* ---- the search */

static struct hspmd_plan *walk_from(struct walk *w, const struct hspmd_plan *start, double seconds, double *best_s)
{
	struct hspmd_plan *now = hspmd_plan_copy(start), *best = hspmd_plan_copy(start);
	double began = processor_time(), now_s = time_plan(w, now), part;
	*best_s = now_s;
	while ((part = (processor_time() - began) / seconds) < 1) {
		struct hspmd_plan *p = hspmd_plan_copy(now);
		int count = pick(&w->dice, 1, 2);
		bool changed = false;
		while (count--)
			changed = change_plan(w, p) || changed;
		double next_s = changed && recompute_least(w, p) ? level(w, p, time_plan(w, p)) : INFINITY;
		if (next_s > now_s * (1 + THRESHOLD * (1 - part) * (1 - part))) {
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

/* Where a walk begins: at our plan, or at the one found with micro-batches of twice or half its size. Interleaved plans are not changed. */
static struct hspmd_plan *start_of(const struct problem *p, const struct hspmd_plan *ours, int restart)
{
	struct hspmd_runtime_caps caps = hspmd_runtime_caps_default();
	struct hspmd_solve_request r = p->request;
	struct hspmd_error err;
	if (restart % 3 == 0 && ours->virtual_stages == 1)
		return hspmd_plan_copy(ours);
	r.micro_batch = restart % 3 == 1 ? 2 * ours->micro_batch : ours->micro_batch / (restart % 3 ? 2 : 1);
	r.micro_batch = r.micro_batch < 1 ? 1 : r.micro_batch;
	caps.schedules &= ~(1u << HSPMD_SCHEDULE_INTERLEAVED);
	r.caps = &caps;
	return hspmd_solve(p->cluster, p->facts, NULL, &r, NULL, &err);
}

static int compare(unsigned seed, double seconds, int restarts)
{
	struct hspmd_error err = { "" };
	struct problem p;
	if (problem_new(seed, &p, &err)) {
		fprintf(stderr, "problem %u: %s\n", seed, err.text);
		return -1;
	}
	double began = processor_time();
	struct hspmd_plan *ours = hspmd_solve(p.cluster, p.facts, NULL, &p.request, NULL, &err);
	double took = processor_time() - began;
	if (!ours) {
		printf("problem %u (%d devices): %s\n", seed, p.cluster->device_count, err.text);
		problem_free(&p);
		return 0;
	}
	bool allowed[8] = { true, true, true, true, true, true, true, true };
	struct walk w = { .of = &p, .dice = { seed } };
	w.costs = hspmd_costs_new(p.cluster, p.facts, NULL, p.request.precision, p.request.seq_len, &err);
	w.classes = hspmd_device_classes_new(p.cluster, allowed, &err);
	w.ends = hspmd_calloc((size_t)p.cluster->device_count, sizeof *w.ends);
	w.used = hspmd_calloc((size_t)p.cluster->device_count, sizeof *w.used);
	struct hspmd_plan *best = NULL;
	double best_s = ours->predicted.step_s;
	for (int i = 0; i < restarts; i++) {
		double found_s = INFINITY;
		struct hspmd_plan *start = start_of(&p, ours, i),
		                  *found = start ? walk_from(&w, start, seconds / restarts, &found_s) : NULL;
		hspmd_plan_destroy(start);
		if (found_s < best_s) {
			hspmd_plan_destroy(best);
			best = found;
			best_s = found_s;
		} else {
			hspmd_plan_destroy(found);
		}
	}
	printf("problem %u: %d devices of %d types, %d layers, batch %d: %.6g s found in %.2f s; %.6g s after %ld more: %.2f %%\n", seed,
	       p.cluster->device_count, p.cluster->type_count, p.facts->layer_count, p.request.global_batch, ours->predicted.step_s, took,
	       best_s, w.timed, 100 * (ours->predicted.step_s / best_s - 1));
	say("ours", ours, p.cluster);
	if (best)
		say("best", best, p.cluster);
	fflush(stdout);
	hspmd_plan_destroy(best);
	hspmd_plan_destroy(ours);
	free(w.ends);
	free(w.used);
	hspmd_device_classes_destroy(w.classes);
	hspmd_costs_destroy(w.costs);
	problem_free(&p);
	return 0;
}

int main(int argc, char **argv)
{
	unsigned first = argc > 1 ? (unsigned)atoi(argv[1]) : 1, last = argc > 2 ? (unsigned)atoi(argv[2]) : 50;
	double seconds = argc > 3 ? atof(argv[3]) : 60;
	int restarts = argc > 4 ? atoi(argv[4]) : 3;
	for (unsigned seed = first; seed <= last; seed++)
		if (compare(seed, seconds, restarts))
			return 1;
	return 0;
}
