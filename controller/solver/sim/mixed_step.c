/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/solver/sim/mixed_step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/plan_lengths.h"
#include "common/format/plan_rates.h"
#include "controller/solver/sim/evaluate.h"

#define DRAWS 8               /* steps whose mean is expected */
#define MICRO_BATCH_MOST 1024 /* samples */

struct hspmd_mixed_costs {
	const struct hspmd_cluster *cluster;
	const struct hspmd_step_share *shares;
	int count;
	double sum; /* of shares */
	int64_t *lengths;
	struct hspmd_costs **costs; /* by length */
};

struct hspmd_mixed_costs *hspmd_mixed_costs_create(const struct hspmd_cluster *cluster, const struct hspmd_step_share *shares, int count,
                                                   enum hspmd_precision precision, const struct hspmd_plan *plan, struct hspmd_error *err)
{
	struct hspmd_mixed_costs *m = calloc(1, sizeof *m);
	int status = -1;
	if (m) {
		*m = (struct hspmd_mixed_costs){ .cluster = cluster, .shares = shares, .count = count };
		m->lengths = hspmd_calloc((size_t)count, sizeof *m->lengths);
		m->costs = hspmd_calloc((size_t)count, sizeof(*m->costs));
		status = m->lengths && m->costs ? 0 : -1;
	}
	if (status)
		hspmd_fail_memory(err, "predicting steps of mixed lengths");
	struct hspmd_plan *at = status ? NULL : hspmd_plan_copy(plan);
	for (int l = 0; !status && l < count; l++) {
		m->sum += shares[l].share;
		m->lengths[l] = shares[l].seq_len;
		if (at)
			at->seq_len = shares[l].seq_len;
		m->costs[l] = at ? hspmd_costs_of_plan(cluster, shares[l].facts, NULL, precision, at, err) : NULL;
		status = m->costs[l] ? 0 : -1;
		if (!at)
			hspmd_fail_memory(err, "predicting steps of mixed lengths");
	}
	hspmd_plan_destroy(at);
	if (!status)
		return m;
	hspmd_mixed_costs_destroy(m);
	return NULL;
}

void hspmd_mixed_costs_destroy(struct hspmd_mixed_costs *m)
{
	if (!m)
		return;
	for (int l = 0; m->costs && l < m->count; l++)
		hspmd_costs_destroy(m->costs[l]);
	free(m->costs);
	free(m->lengths);
	free(m);
}

/* ---- what fits, and how long it takes */

/* The micro-batch of a pipeline at a length fits into its devices' memory, however many of them a step has. */
static bool fits(const struct hspmd_mixed_costs *m, struct hspmd_plan *v, int pipeline, int length, int micro_batch)
{
	struct hspmd_pipeline *p = &v->pipelines[pipeline];
	v->seq_len = m->shares[length].seq_len;
	p->micro_batch = micro_batch;
	p->micro_batches = v->global_batch;
	for (int s = 0; s < p->stage_count / v->virtual_stages; s++)
		for (int d = 0; d < p->stages[s].device_count; d++)
			if (hspmd_plan_memory(m->costs[length], v, pipeline, s, d) >
			    (double)m->cluster->types[m->cluster->devices[p->stages[s].devices[d]].type].memory_bytes)
				return false;
	return true;
}

static int set_sizes(const struct hspmd_mixed_costs *m, struct hspmd_plan *v, int pipeline, double part, struct hspmd_pipeline *to)
{
	int longest = m->count - 1, most = 1, limit = v->global_batch < MICRO_BATCH_MOST ? v->global_batch : MICRO_BATCH_MOST;
	while (longest >= 0 && !fits(m, v, pipeline, longest, 1))
		longest--;
	while (longest >= 0 && 2 * most <= limit && fits(m, v, pipeline, longest, 2 * most))
		most *= 2;
	int64_t tokens = longest < 0 ? 0 : (int64_t)fmax(1, most * part) * m->lengths[longest];
	free(to->lengths);
	to->length_count = 0;
	to->lengths = hspmd_calloc((size_t)m->count, sizeof *to->lengths);
	for (int l = 0; to->lengths && l <= longest; l++) {
		int64_t size = tokens / m->lengths[l];
		size = size < limit ? size : limit;
		while (size > 1 && !fits(m, v, pipeline, l, (int)size))
			size /= 2;
		to->lengths[to->length_count++] = (struct hspmd_pipeline_length){ (int)m->lengths[l], (int)size, 1 };
	}
	return to->lengths ? 0 : -1;
}

/* The timing of all pipelines' full micro-batches of each length. Those of lengths that a pipeline does not take mean nothing. */
static int time_lengths(const struct hspmd_mixed_costs *m, const struct hspmd_plan *plan, const struct hspmd_pipeline_rates *rates,
                        struct hspmd_timing *t, struct hspmd_error *err)
{
	struct hspmd_plan *v = hspmd_plan_copy(plan);
	int status = v ? 0 : hspmd_fail_memory(err, "predicting steps of mixed lengths");
	for (int l = 0; !status && l < m->count; l++) {
		v->seq_len = m->shares[l].seq_len;
		for (int i = 0; i < v->pipeline_count; i++) {
			v->pipelines[i].micro_batch = rates[i].length[l].most > 0 ? rates[i].length[l].most : 1;
			v->pipelines[i].micro_batches = 1;
		}
		status = hspmd_timing_compute(m->costs[l], v, &t[l], err);
	}
	hspmd_plan_destroy(v);
	return status;
}

static double busiest_stage(const struct hspmd_plan *p, const struct hspmd_timing *t, int pipeline)
{
	double most = 0;
	for (int s = 0; s < p->pipelines[pipeline].stage_count / p->virtual_stages; s++) {
		struct hspmd_stage_timing sum = hspmd_timing_all_chunks(p, t, pipeline, s);
		most = fmax(most, sum.cost.forward + sum.cost.backward + sum.send_forward + sum.send_backward);
	}
	return most;
}

/* One prediction. */
struct mixed {
	struct hspmd_mixed_costs *m;
	const struct hspmd_plan *plan;
	struct hspmd_pipeline_rates *rates;
	struct hspmd_timing *timing; /* by length */
	double step_s, busy_s;       /* mean: of the passes; of the busiest stage of the pipeline that ends last */
	double *parts, *busy;        /* as hspmd_mixed_parts, summed up; NULL: not wanted */
};

static int open_mixed(struct mixed *x, struct hspmd_mixed_costs *m, const struct hspmd_plan *plan, struct hspmd_error *err)
{
	*x = (struct mixed){ .m = m, .plan = plan };
	x->timing = hspmd_calloc((size_t)m->count, sizeof *x->timing);
	if (!x->timing)
		return hspmd_fail_memory(err, "predicting steps of mixed lengths");
	x->rates = hspmd_plan_rates(plan, m->lengths, m->count, err);
	return x->rates ? time_lengths(m, plan, x->rates, x->timing, err) : -1;
}

static void close_mixed(struct mixed *x)
{
	for (int l = 0; x->timing && l < x->m->count; l++)
		hspmd_timing_clear(&x->timing[l]);
	free(x->timing);
	hspmd_plan_rates_free(x->rates, x->plan->pipeline_count);
}

int hspmd_mixed_set_lengths(struct hspmd_mixed_costs *m, struct hspmd_plan *plan, double part, struct hspmd_error *err)
{
	struct hspmd_plan *v = hspmd_plan_copy(plan);
	struct mixed x = { .m = m, .plan = plan };
	int status = v ? 0 : -1;
	bool taken = true;
	for (int i = 0; !status && i < plan->pipeline_count; i++) {
		status = set_sizes(m, v, i, part, &plan->pipelines[i]);
		taken = taken && plan->pipelines[i].length_count;
	}
	hspmd_plan_destroy(v);
	if (status)
		return hspmd_fail_memory(err, "predicting steps of mixed lengths");
	if (!taken || !hspmd_plan_takes(plan, m->lengths[m->count - 1]))
		return 0;
	status = open_mixed(&x, m, plan, err);
	for (int i = 0; !status && i < plan->pipeline_count; i++)
		for (int l = 0; l < plan->pipelines[i].length_count; l++)
			plan->pipelines[i].lengths[l].micro_batch_s = busiest_stage(plan, &x.timing[l], i);
	close_mixed(&x);
	return status ? -1 : 1;
}

/* ---- steps */

static uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static int draw_length(const struct hspmd_mixed_costs *m, uint64_t number)
{
	double at = (double)(mix((number + 1) * UINT64_C(0x9e3779b97f4a7c15)) >> 11) * 0x1p-53 * m->sum;
	int l = 0;
	for (; l < m->count - 1 && at >= m->shares[l].share; l++)
		at -= m->shares[l].share;
	return l;
}

/* The end of a pipeline's passes in a step; -1: memory. *busy: of its busiest stage. */
static double simulate(const struct mixed *x, const struct hspmd_step_batches *b, int pipeline, double *busy)
{
	const struct hspmd_plan *p = x->plan;
	const struct hspmd_pipeline *pipe = &p->pipelines[pipeline];
	int count = b->begin[pipeline + 1] - b->begin[pipeline], stages = pipe->stage_count, ranks = stages / p->virtual_stages;
	/* Interleaved micro-batches come in groups: those that are missing take no time. */
	int all = p->virtual_stages > 1 ? (count + ranks - 1) / ranks * ranks : count;
	struct hspmd_sim_stage *sim = hspmd_calloc((size_t)all * (size_t)stages, sizeof *sim);
	struct hspmd_pipeline_sim result = { .stride = stages };
	*busy = 0;
	for (int k = 0; sim && k < count; k++) {
		const struct hspmd_micro_batch *mb = &b->batches[b->begin[pipeline] + k];
		const struct hspmd_timing *t = &x->timing[mb->length];
		double part = (double)mb->samples / x->rates[pipeline].length[mb->length].most;
		*busy += part * busiest_stage(p, t, pipeline);
		for (int s = 0; s < stages; s++) {
			struct hspmd_sim_stage *to = &sim[k * stages + s];
			*to = hspmd_sim_stage_of(&t->stages[t->first_stage[pipeline] + s]);
			to->forward *= part;
			to->backward *= part;
			to->weight_grads *= part;
			to->send_forward *= part;
			to->send_backward *= part;
		}
	}
	int status = !sim                    ? -1
	             : p->virtual_stages > 1 ? hspmd_simulate_interleaved(sim, stages, p->virtual_stages, all, &result)
	                                     : hspmd_simulate(sim, stages, all, p->schedule, &result);
	free(sim);
	return status ? -1 : result.end;
}

static void count_parts(struct mixed *x, const struct hspmd_step_batches *b)
{
	for (int i = 0; x->parts && i < b->pipeline_count; i++)
		for (int k = b->begin[i]; k < b->begin[i + 1]; k++)
			if (b->batches[k].first >= 0)
				x->parts[i * x->m->count + b->batches[k].length] += b->batches[k].samples;
}

static int one_step(struct mixed *x, int draw, int *length_of, struct hspmd_error *err)
{
	struct hspmd_step_batches b;
	int samples = x->plan->global_batch, status = 0;
	double last = 0, busy_of_last = 0;
	for (int i = 0; i < samples; i++)
		length_of[i] = draw_length(x->m, (uint64_t)draw * (uint64_t)samples + (uint64_t)i);
	if (hspmd_step_batches_make(x->rates, x->plan->pipeline_count, x->m->count, length_of, samples, &b, err))
		return -1;
	for (int i = 0; !status && i < x->plan->pipeline_count; i++) {
		double busy, end = simulate(x, &b, i, &busy);
		status = end < 0 ? hspmd_fail_memory(err, "predicting steps of mixed lengths") : 0;
		if (end > last) {
			last = end;
			busy_of_last = busy;
		}
		if (x->busy)
			x->busy[i] += busy / DRAWS;
	}
	x->step_s += last / DRAWS;
	x->busy_s += busy_of_last / DRAWS;
	count_parts(x, &b);
	hspmd_step_batches_clear(&b);
	return status;
}

static int all_steps(struct mixed *x, struct hspmd_error *err)
{
	int *length_of = hspmd_calloc((size_t)x->plan->global_batch, sizeof *length_of), status = 0;
	if (!length_of)
		return hspmd_fail_memory(err, "predicting steps of mixed lengths");
	for (int k = 0; !status && k < DRAWS; k++)
		status = one_step(x, k, length_of, err);
	free(length_of);
	return status;
}

/* Memory is that of each pipeline's longest samples. */
static int fill_memory(struct hspmd_mixed_costs *m, struct hspmd_plan *plan, const struct hspmd_pipeline_rates *rates,
                       struct hspmd_error *err)
{
	struct hspmd_plan *v = hspmd_plan_copy(plan);
	int at = 0, status = v ? hspmd_predicted_resize(&plan->predicted, hspmd_plan_device_count(plan), err)
	                       : hspmd_fail_memory(err, "predicting memory");
	for (int i = 0; !status && i < plan->pipeline_count; i++) {
		int longest = m->count - 1;
		while (!rates[i].length[longest].most)
			longest--;
		v->seq_len = m->shares[longest].seq_len;
		v->pipelines[i].micro_batch = rates[i].length[longest].most;
		v->pipelines[i].micro_batches = plan->global_batch;
		for (int s = 0; s < plan->pipelines[i].stage_count / plan->virtual_stages; s++)
			for (int d = 0; d < plan->pipelines[i].stages[s].device_count; d++, at++) {
				plan->predicted.devices[at] = plan->pipelines[i].stages[s].devices[d];
				plan->predicted.memory_bytes[at] = hspmd_plan_memory(m->costs[longest], v, i, s, d);
			}
	}
	hspmd_plan_destroy(v);
	return status;
}

int hspmd_mixed_predict(struct hspmd_mixed_costs *m, struct hspmd_plan *plan, struct hspmd_error *err)
{
	struct mixed x;
	int status = open_mixed(&x, m, plan, err) || all_steps(&x, err) || fill_memory(m, plan, x.rates, err) ? -1 : 0;
	if (!status) {
		const struct hspmd_timing *t = &x.timing[m->count - 1];
		struct hspmd_predicted *p = &plan->predicted;
		p->sync_s = t->sync_end - t->compute_end;
		p->compute_s = x.busy_s + t->optimizer_s;
		p->bubble_s = fmax(0, x.step_s - x.busy_s);
		p->communication_s = 0; /* messages between stages are in what their stages take */
		p->step_s = x.step_s + p->sync_s + t->optimizer_s;
	}
	close_mixed(&x);
	return status;
}

int hspmd_mixed_parts(struct hspmd_mixed_costs *m, const struct hspmd_plan *plan, double *parts, double *busy, struct hspmd_error *err)
{
	struct mixed x;
	memset(parts, 0, (size_t)plan->pipeline_count * (size_t)m->count * sizeof *parts);
	memset(busy, 0, (size_t)plan->pipeline_count * sizeof *busy);
	int status = open_mixed(&x, m, plan, err);
	x.parts = parts;
	x.busy = busy;
	status = status || all_steps(&x, err) ? -1 : 0;
	for (int l = 0; l < m->count; l++) {
		double all = 0;
		for (int i = 0; i < plan->pipeline_count; i++)
			all += parts[i * m->count + l];
		for (int i = 0; i < plan->pipeline_count && all > 0; i++)
			parts[i * m->count + l] /= all;
	}
	for (int i = 0; i < plan->pipeline_count && x.step_s > 0; i++)
		busy[i] /= x.step_s;
	close_mixed(&x);
	return status;
}
