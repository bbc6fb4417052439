/* SPDX-License-Identifier: Apache-2.0 */
/* The least possible time of the slowest stage, by parametric search (Alpa, OSDI'22, section 5.2, enumerates the bound in the same way).
 * A stage's cost only grows with its last layer, so for a given bound it is best if every stage takes as many layers as the bound and its
 * memory allow; the bound is then narrowed to the least one with which the last layer is reached. The work per bound is O(stages log
 * layers). With few micro-batches the slowest stage alone does not decide: hspmd_partition_rebalance searches for the partition with the
 * shortest simulated step.
 *
 * A stage's cost is its passes and all four transfers of a micro-batch, one after another, as the simulator has them; but under ZB-H1 the
 * transfers with the stage before it pass while it computes gradients of weights, and only what they take longer counts. Consecutive stages
 * of one device class share nodes as far as these have devices; a transfer that leaves the node queues with those of the other pipelines
 * that fit into the same node. */
#include "controller/solver/search/partition.h"

#include <math.h>
#include <string.h>

#include "controller/solver/cost/cost_constants.h"
#include "controller/solver/search/partition_internal.h"
#include "controller/solver/search/partition_range.h"
#include "controller/solver/sim/simulate.h"

#define PARTITIONS_ALL 300 /* up to so many partitions, all are tried */
#define WIDEN 1.02      /* first bound tried, as a factor over the least conceivable one */
#define UNBOUNDED 1e300 /* only memory limits the stages */
#define ROUNDING 1e-9   /* relative precision of sums of rates */
#define GUESS 0.997     /* a bound that is guessed is lower by this factor */
#define BOUNDS 10       /* bounds that are tried until one is met, at most */

/* The copies of every stage are together: no two stages of a pipeline are. */
static void lay_out_apart(struct hspmd_partition_problem *p)
{
	for (int s = 0; s < p->sequence->stages; s++) {
		const struct hspmd_submesh *u = &p->t->submeshes[p->sequence->submesh[s]];
		p->same_node[s] = false;
		p->queue[s] = p->t->device_classes->list[u->device_class].per_node / u->tp;
	}
}

/* Assign stages to nodes: consecutive stages of one device class fill a node before they start another; a stage of another device class
 * of the same node class joins its neighbour's node. */
static void lay_out(struct hspmd_partition_problem *p)
{
	const struct hspmd_device_class *device_classes = p->t->device_classes->list;
	int first = 0, used = 0; /* of the current node: its first stage, and the devices used of the last stage's device class */
	for (int s = 0; s <= p->sequence->stages; s++) {
		const struct hspmd_submesh *u = s < p->sequence->stages ? &p->t->submeshes[p->sequence->submesh[s]] : NULL;
		const struct hspmd_submesh *before = s > 0 ? &p->t->submeshes[p->sequence->submesh[s - 1]] : NULL;
		bool fresh = !u || !before || device_classes[u->device_class].node_class != device_classes[before->device_class].node_class;
		fresh = fresh || (u->device_class == before->device_class && used + u->tp > device_classes[u->device_class].per_node);
		if (fresh) {
			for (int i = first; i < s; i++)
				p->queue[i] = device_classes[before->device_class].per_node / used;
			first = s;
		}
		if (!u)
			break;
		p->same_node[s] = !fresh;
		used = fresh || u->device_class != before->device_class ? u->tp : used + u->tp;
	}
}

/* Seconds of the transfers into a stage whose first layer is the one after `layer`. */
static double border(const struct hspmd_partition_problem *p, int stage, int layer)
{
	return p->boundary_s[stage][p->t->size_of[layer]];
}

static double work(const struct hspmd_partition_problem *p, int s, int a, int b, int way)
{
	const double *sums = p->t->submeshes[p->sequence->submesh[s]].work[way];
	return sums[b] - sums[a];
}

/* A micro-batch on one stage from layer `first` on, in one way. */
struct clock {
	const double *sums, *forward; /* seconds of passes; of forward passes behind which transfers hide, NULL: none hides */
	const double *after;          /* per activation size: transfers to the next stage; NULL: there is none */
	const int *size_of;
	double before; /* transfers from the stage before */
	int first;
};

static struct clock clock_of(const struct hspmd_partition_problem *p, int s, int first, int way)
{
	const struct hspmd_submesh *u = &p->t->submeshes[p->sequence->submesh[s]];
	double before = s > 0 ? border(p, s, first - 1) : 0;
	return (struct clock){ u->work[way],
		               p->hides && before > 0 ? u->forward : NULL,
		               s < p->sequence->stages - 1 ? p->boundary_s[s + 1] : NULL,
		               p->t->size_of,
		               before,
		               first };
}

/* Seconds with layers [first, end), whether they fit or not. */
static inline double seconds_to(const struct clock *c, int end)
{
	double passes = c->sums[end] - c->sums[c->first], before = c->before;
	if (c->forward) {
		double own = c->forward[end] - c->forward[c->first];
		before = larger(before - hspmd_sim_weight_grads(own, passes - own), 0);
	}
	return passes + before + (c->after ? c->after[c->size_of[end - 1]] : 0);
}

/* Seconds of a micro-batch on stage s with layers [a, b), whether they fit or not. */
static double period(const struct hspmd_partition_problem *p, int s, int a, int b, int way)
{
	struct clock c = clock_of(p, s, a, way);
	return seconds_to(&c, b);
}

/* The same; INFINITY if they do not fit. */
static double cost(const struct hspmd_partition_problem *p, int s, int a, int b, int *way)
{
	*way = hspmd_partition_fitting(p, s, a, b);
	return *way < 0 ? INFINITY : period(p, s, a, b, *way);
}

/* How far each stage gets by a bound, as far as that is known. Higher bounds get as far or farther. */
struct reach {
	int stages;
	short ends[HSPMD_STAGES_MAX];
};

/* By the highest bound tried that is not met, and the least one that is. */
struct range {
	struct reach low, high;
};

/* The most layers, with end from `low` to `high`, that stage s may have by the bound if it has the memory. *more: seconds with one more; it
 * stays as it is if there may be no more. */
static int most_in_time(const struct clock *c, double bound, const struct range *known, int s, int low, int high, double *more)
{
	int least = s < known->low.stages ? known->low.ends[s] : low, most = s < known->high.stages ? known->high.ends[s] : high;
	double seconds;
	if (least > low && least <= high && seconds_to(c, least) <= bound)
		low = least;
	if (most >= low && most < high && (seconds = seconds_to(c, most + 1)) > bound) {
		high = most;
		*more = seconds;
	}
	/* Layers are mostly alike: first look where the bound would be met if all took as long as the next one. */
	double each = low < high ? c->sums[low + 1] - c->sums[low] : 0, left = low < high ? bound - seconds_to(c, low) : 0;
	int middle = each > 0 && left >= 0 && left < each * (high - low) ? low + (int)(left / each) : (low + high + 1) / 2;
	middle = middle > low ? middle : low + 1;
	for (bool next = true; low < high; next = false) {
		seconds = seconds_to(c, middle);
		if (seconds <= bound) {
			low = middle;
		} else {
			high = middle - 1;
			*more = seconds;
		}
		middle = next ? seconds <= bound ? low + 1 : high : (low + high + 1) / 2;
		middle = middle > low ? middle : low + 1;
	}
	return low;
}

/* If stages up to s have the layers before `at`, no bound that is lower than this is met: those after s have no time for the rest. */
static double least_bound_after(const struct hspmd_partition_problem *p, int s, int at)
{
	return (1 - p->t->weights[at] + p->parts_after[s]) / p->rates_after[s] * (1 - ROUNDING);
}

/* Give every stage as many layers as the bound allows. Returns the slowest stage's cost, or INFINITY if the last layer is not reached.
 * *reach: how far the stages got before that was certain. *next: no bound below this one is met. */
static double fill(const struct hspmd_partition_problem *p, double bound, const struct range *known, struct reach *reach, double *next,
                   struct hspmd_pipeline_partition *out)
{
	int layers = p->t->layers, stages = p->sequence->stages, at = 0;
	double slowest = 0;
	reach->stages = 0;
	*next = INFINITY;
	for (int s = 0; s < stages; s++) {
		int low = at + 1, high = layers - (stages - 1 - s), way;
		struct clock clock = clock_of(p, s, at, p->t->submeshes[p->sequence->submesh[s]].ways[0]);
		if (s == stages - 1)
			low = high;
		double seconds = seconds_to(&clock, low), more = INFINITY;
		if (seconds > bound) {
			*next = smaller(*next, seconds);
			return INFINITY;
		}
		/* Mostly memory suffices for as many layers as time does. */
		high = most_in_time(&clock, bound, known, s, low, high, &more);
		seconds = cost(p, s, at, high, &way);
		if (seconds <= bound) {
			low = high;
		} else {
			more = seconds;
			high--;
			seconds = cost(p, s, at, low, &way);
		}
		if (seconds > bound) {
			*next = smaller(*next, seconds);
			return INFINITY;
		}
		out->way[s] = (unsigned char)way;
		while (low < high) {
			int middle = (low + high + 1) / 2, with;
			double longer = cost(p, s, at, middle, &with);
			if (longer <= bound) {
				low = middle;
				seconds = longer;
				out->way[s] = (unsigned char)with;
			} else {
				high = middle - 1;
				more = longer;
			}
		}
		*next = smaller(*next, more);
		slowest = larger(slowest, seconds);
		out->ends[s] = reach->ends[reach->stages++] = (short)low;
		at = low;
		double least = s < stages - 1 ? least_bound_after(p, s, at) : 0;
		if (least > bound) {
			*next = smaller(*next, least);
			return INFINITY;
		}
	}
	return slowest;
}

/* Seconds of a step of m micro-batches. */
static double step(const struct hspmd_partition_problem *p, const struct hspmd_pipeline_partition *partition, int m)
{
	struct hspmd_sim_stage sim[HSPMD_STAGES_MAX];
	struct hspmd_pipeline_sim result = { 0 };
	int stages = p->sequence->stages;
	for (int s = 0, a = 0; s < stages; a = partition->ends[s++]) {
		const struct hspmd_submesh *u = &p->t->submeshes[p->sequence->submesh[s]];
		double all = work(p, s, a, partition->ends[s], partition->way[s]);
		double forward = u->forward[partition->ends[s]] - u->forward[a], both = s ? border(p, s, a - 1) : 0;
		sim[s] = (struct hspmd_sim_stage){ .forward = forward,
			                           .backward = all - forward,
			                           .weight_grads = hspmd_sim_weight_grads(forward, all - forward),
			                           .send_backward = both / 2 };
		if (s > 0)
			sim[s - 1].send_forward = both / 2;
	}
	return hspmd_simulate(sim, stages, m, p->t->schedule, &result) ? INFINITY : result.end;
}

static void prepare(struct hspmd_partition_problem *p, struct hspmd_submesh_tables *t, const struct hspmd_stage_sequence *sequence,
                    const struct hspmd_layer_copies *copies, int max_micro_batches, struct hspmd_partition_slack *slack)
{
	p->t = t;
	p->sequence = sequence;
	p->slack = slack;
	*slack = (struct hspmd_partition_slack){ false, INFINITY, INFINITY };
	p->hides = false;
	for (int i = 0; i < t->submesh_count; i++) {
		const struct hspmd_device_type *type =
		        &t->costs->cluster->types[t->device_classes->list[t->submeshes[i].device_class].type];
		struct hspmd_layer_copies own = *copies;
		own.offload = t->offload == HSPMD_DRAFT_OFFLOADS_ALL && t->submeshes[i].host_bytes > 0;
		const struct hspmd_layer_copies whole = own.zero == 1 ? hspmd_vector_copies(&own) : own;
		p->host_bytes[i] = HSPMD_HOST_COPIES * hspmd_offloaded_bytes(t->costs, &own);
		p->state_bytes[i] = hspmd_state_bytes(t->costs, &own) + hspmd_image_bytes(t->costs, type, copies);
		p->vector_bytes[i] = hspmd_state_bytes(t->costs, &whole) + hspmd_image_bytes(t->costs, type, &whole) - p->state_bytes[i];
	}
	p->end_bytes = hspmd_step_end_bytes(t->costs, copies);
	for (int s = 0; s < sequence->stages; s++) {
		p->in_flight[s] = hspmd_in_flight(s, sequence->stages, max_micro_batches, t->schedule);
		p->deferred[s] = hspmd_deferred_weight_grads(s, max_micro_batches, t->schedule);
	}
	hspmd_partition_find_rooms(p, copies);
	if (t->placement == HSPMD_PLACE_STAGES)
		lay_out_apart(p);
	else
		lay_out(p);
	for (int s = 1; s < sequence->stages; s++)
		for (int size = 0; size < t->size_count; size++)
			p->boundary_s[s][size] = hspmd_boundary_seconds(t, sequence->submesh[s - 1], sequence->submesh[s], p->same_node[s],
			                                                p->queue[s - 1], size);
}

/* Seconds of one micro-batch through all stages and back. */
static double through(const struct hspmd_partition_problem *p, const struct hspmd_pipeline_partition *partition)
{
	double seconds = 0;
	for (int s = 0, a = 0; s < p->sequence->stages; a = partition->ends[s++]) {
		const double *work = p->t->submeshes[p->sequence->submesh[s]].work[partition->way[s]];
		seconds += work[partition->ends[s]] - work[a] + (s ? border(p, s, a - 1) : 0);
	}
	return seconds;
}

/* Fill in period_s and fill_drain_s, the latter by simulation if m micro-batches are few or the schedule is ZB-H1, otherwise its upper
 * bound. Returns false if the partition does not fit. */
static bool finish(const struct hspmd_partition_problem *p, int max_micro_batches, int m, struct hspmd_pipeline_partition *out)
{
	int few = HSPMD_FEW_MICRO_BATCHES * p->sequence->stages;
	m = m < max_micro_batches ? m : max_micro_batches;
	out->sequence = *p->sequence;
	out->max_micro_batches = max_micro_batches;
	out->period_s = 0;
	for (int s = 0, a = 0; s < p->sequence->stages; a = out->ends[s++])
		out->period_s = larger(out->period_s, period(p, s, a, out->ends[s], out->way[s]));
	if (p->t->schedule == HSPMD_SCHEDULE_ZB_H1) /* there is no simple sum */
		m = m < few ? m : few;
	out->fill_drain_s = m <= few ? step(p, out, m) - (m - 1) * out->period_s : through(p, out);
	return !isinf(out->fill_drain_s);
}

/* Least seconds of the transfers into a stage, of any layer's activation. */
static double least_border(const struct hspmd_partition_problem *p, int s)
{
	double least = INFINITY;
	for (int size = 0; size < p->t->size_count; size++)
		least = fmin(least, p->boundary_s[s][size]);
	return least;
}

/* No partition has a slowest stage that is faster. By the rates of submesh.c a stage's part of a pass through all layers is at most its
 * rate times what its period leaves to passes; all parts together are the whole. Also fills in rates_after and parts_after. */
static double least_slowest(struct hspmd_partition_problem *p)
{
	double rates = 0, parts = 1;
	for (int s = 0; s < p->sequence->stages; s++) {
		double rate = p->t->submeshes[p->sequence->submesh[s]].rate;
		rates += rate;
		parts += rate * (s > 0 && !p->hides ? least_border(p, s) : 0);
		parts += rate * (s < p->sequence->stages - 1 ? least_border(p, s + 1) : 0);
		p->rates_after[s] = -rates;
		p->parts_after[s] = -parts;
	}
	for (int s = 0; s < p->sequence->stages; s++) {
		p->rates_after[s] += rates;
		p->parts_after[s] += parts;
	}
	return parts / rates;
}

/* Bounds that have been tried. */
struct tried_bounds {
	struct range known;
	double met;     /* no bound below is met; */
	double reached; /* ... this one and those above are */
};

/* Returns the slowest stage's cost; INFINITY: the bound is not met. */
static double try_bound(const struct hspmd_partition_problem *p, double bound, struct tried_bounds *tried,
                        struct hspmd_pipeline_partition *out)
{
	struct reach reach;
	double next, slowest = bound < tried->met ? INFINITY : fill(p, bound, &tried->known, &reach, &next, out);
	if (!isinf(slowest)) {
		tried->known.high = reach;
		tried->reached = smaller(tried->reached, slowest);
	} else if (bound >= tried->met) {
		tried->known.low = reach;
		tried->met = next;
	}
	return slowest;
}

/* Widen the bound from below, the last time to none, until it is met: *out. Returns the slowest stage's cost; INFINITY: there is no
 * partition. *low: the last bound that is not met. What is known of bounds saves trying most of them. */
static double widen(const struct hspmd_partition_problem *p, double *low, struct tried_bounds *tried, struct hspmd_pipeline_partition *out)
{
	struct hspmd_pipeline_partition now;
	double bounds[BOUNDS], factor = WIDEN, slowest = INFINITY;
	int first = 0;
	for (int i = 0; i < BOUNDS; i++, factor *= factor)
		bounds[i] = factor < 1e3 ? (i ? bounds[i - 1] : *low) * factor : UNBOUNDED;
	while (first < BOUNDS - 1 && bounds[first] < tried->reached)
		first++;
	if (isinf(tried->reached))
		first = 0;
	for (int i = first - 1; i >= 0; i--) {
		double less = try_bound(p, bounds[i], tried, &now);
		if (isinf(less))
			break;
		*out = now;
		slowest = less;
		first = i;
	}
	while (isinf(slowest)) {
		slowest = try_bound(p, bounds[first], tried, out);
		if (isinf(slowest) && ++first == BOUNDS)
			return INFINITY;
	}
	*low = first ? bounds[first - 1] : *low;
	return slowest;
}

/* Find the partition whose slowest stage is as fast as possible. high: that stage's seconds in *out; INFINITY: *out is not filled in yet.
 * Returns false if there is no partition. The first bound tried is a guess from the last sequence of so many stages, by how much its
 * slowest stage was slower than conceivable; it only tells which of the other bounds need not be tried. */
static bool search_bounds(struct hspmd_partition_problem *p, double high, double precision, struct hspmd_pipeline_partition *out)
{
	struct hspmd_pipeline_partition now;
	struct tried_bounds tried = { .met = 0, .reached = INFINITY };
	double *guess = &p->t->guess[p->hides][p->t->placement][p->sequence->stages], low = least_slowest(p), least = low;
	tried.known.low.stages = tried.known.high.stages = 0;
	if (isinf(low))
		return false;
	double first = isinf(*guess) ? UNBOUNDED : low * *guess * GUESS;
	if (first > 0 && first < high)
		try_bound(p, first, &tried, &now);
	if (isinf(high))
		high = first == UNBOUNDED && isinf(tried.reached) ? INFINITY : widen(p, &low, &tried, out);
	*guess = high / least;
	if (isinf(high))
		return false;
	while (high - low > precision * high && tried.met < high) {
		double middle = (low + high) / 2, reached = try_bound(p, middle, &tried, &now);
		if (!isinf(reached)) {
			high = reached;
			*out = now;
			continue;
		}
		low = middle;
	}
	*guess = high / least;
	return true;
}

/* Seconds of the pipeline's step, if its micro-batches are not many. */
static double short_step(const struct hspmd_pipeline_partition *x)
{
	int few = HSPMD_FEW_MICRO_BATCHES * x->sequence.stages;
	return x->fill_drain_s + ((x->max_micro_batches < few ? x->max_micro_batches : few) - 1) * x->period_s;
}

/* Under ZB-H1 a period that is as short as can be may come with a long fill and drain, or with several stages that wait for one another. So
 * *out, for which no transfer was hidden, is only replaced by a partition that is faster with few micro-batches. */
static bool hide_transfers(struct hspmd_partition_problem *p, int max_micro_batches, double precision, struct hspmd_pipeline_partition *out)
{
	p->hides = true;
	bool fits = finish(p, max_micro_batches, max_micro_batches, out);
	struct hspmd_pipeline_partition other = *out;
	if (!search_bounds(p, out->period_s, precision, &other) ||
	    !memcmp(other.ends, out->ends, (size_t)p->sequence->stages * sizeof *other.ends))
		return fits;
	if (finish(p, max_micro_batches, max_micro_batches, &other) && (!fits || short_step(&other) < short_step(out))) {
		*out = other;
		fits = true;
	}
	return fits;
}

bool hspmd_partition_layers(struct hspmd_submesh_tables *t, const struct hspmd_stage_sequence *sequence,
                            const struct hspmd_layer_copies *copies, int max_micro_batches, double precision,
                            struct hspmd_pipeline_partition *out)
{
	struct hspmd_partition_problem p;
	struct hspmd_partition_slack slack;
	out->limited = false;
	out->least = out->most = copies->pipelines;
	if (sequence->stages > t->layers)
		return false;
	prepare(&p, t, sequence, copies, max_micro_batches, &slack);
	bool there = search_bounds(&p, INFINITY, precision, out);
	if (there)
		there = t->schedule == HSPMD_SCHEDULE_ZB_H1 && sequence->stages > 1 ? hide_transfers(&p, max_micro_batches, precision, out)
		                                                                    : finish(&p, max_micro_batches, max_micro_batches, out);
	out->limited = slack.limited;
	hspmd_partition_find_range(t, copies, &slack, out);
	return there;
}

bool hspmd_partition_fits(struct hspmd_submesh_tables *t, const struct hspmd_stage_sequence *sequence,
                          const struct hspmd_layer_copies *copies, int max_micro_batches)
{
	struct hspmd_partition_problem p;
	struct hspmd_pipeline_partition any;
	struct range none;
	struct reach reach;
	struct hspmd_partition_slack slack;
	double next;
	if (sequence->stages > t->layers)
		return false;
	none.low.stages = none.high.stages = 0;
	prepare(&p, t, sequence, copies, max_micro_batches, &slack);
	return !isinf(least_slowest(&p)) && !isinf(fill(&p, UNBOUNDED, &none, &reach, &next, &any));
}

/* Move boundary s by `by` layers, if that leaves both stages some layers and they fit. Returns false if not. */
static bool move(const struct hspmd_partition_problem *p, struct hspmd_pipeline_partition *x, int s, int by)
{
	int first = s ? x->ends[s - 1] : 0, end = x->ends[s + 1], at = x->ends[s] + by, a, b;
	if (at <= first || at >= end || isinf(cost(p, s, first, at, &a)) || isinf(cost(p, s + 1, at, end, &b)))
		return false;
	x->ends[s] = (short)at;
	x->way[s] = (unsigned char)a;
	x->way[s + 1] = (unsigned char)b;
	return true;
}

/* No step of m micro-batches is shorter than this. A stage's m periods come after the first micro-batch has passed the stages before it,
 * and before its gradients pass them. With ZB-H1 only forward passes are sure to come before, and messages may pass while weight gradients
 * are computed. */
static double least_step(const struct hspmd_partition_problem *p, const struct hspmd_pipeline_partition *x, int m)
{
	bool split_backward = p->t->schedule == HSPMD_SCHEDULE_ZB_H1;
	double before = 0, least = 0;
	for (int s = 0, first = 0; s < p->sequence->stages; first = x->ends[s++]) {
		const double *forward = p->t->submeshes[p->sequence->submesh[s]].forward;
		double own = work(p, s, first, x->ends[s], x->way[s]), in = s ? border(p, s, first - 1) : 0;
		double out = s < p->sequence->stages - 1 ? border(p, s + 1, x->ends[s] - 1) : 0;
		least = fmax(least, before + m * (split_backward ? own : own + in + out));
		before += split_backward ? forward[x->ends[s]] - forward[first] : own + in;
	}
	return least;
}

/* Find the best partition that single moves lead to. Most moves only make a slow stage slower, and need not be simulated. */
static void descend(const struct hspmd_partition_problem *p, int m, double best, struct hspmd_pipeline_partition *partition)
{
	for (bool again = true; again;) {
		again = false;
		for (int i = 0; i < 2 * (p->sequence->stages - 1); i++) {
			struct hspmd_pipeline_partition other = *partition;
			if (!move(p, &other, i / 2, i % 2 ? 1 : -1) || least_step(p, &other, m) >= best)
				continue;
			double seconds = step(p, &other, m);
			if (seconds < best) {
				best = seconds;
				*partition = other;
				again = true;
			}
		}
	}
}

/* Find the best of all partitions of the layers from `first` on over the stages from s on; which are worth simulating is bounded as in
 * least_step. */
static void enumerate(const struct hspmd_partition_problem *p, int s, int first, double before, int m, struct hspmd_pipeline_partition *now,
                      double *best, struct hspmd_pipeline_partition *out)
{
	int stages = p->sequence->stages, layers = p->t->layers, way;
	bool split_backward = p->t->schedule == HSPMD_SCHEDULE_ZB_H1;
	for (int end = s == stages - 1 ? layers : first + 1; end <= layers - (stages - 1 - s); end++) {
		double here = cost(p, s, first, end, &way);
		if (before + m * (split_backward && !isinf(here) ? work(p, s, first, end, way) : here) >= *best)
			return;
		now->ends[s] = (short)end;
		now->way[s] = (unsigned char)way;
		if (s < stages - 1) {
			const double *forward = p->t->submeshes[p->sequence->submesh[s]].forward;
			double passed = split_backward ? forward[end] - forward[first] : here - border(p, s + 1, end - 1);
			enumerate(p, s + 1, end, before + passed, m, now, best, out);
			continue;
		}
		double seconds = step(p, now, m);
		if (seconds < *best) {
			*best = seconds;
			*out = *now;
		}
	}
}

void hspmd_partition_rebalance(struct hspmd_submesh_tables *t, const struct hspmd_layer_copies *copies, int m,
                               struct hspmd_pipeline_partition *partition)
{
	struct hspmd_partition_problem p;
	struct hspmd_partition_slack slack;
	const struct hspmd_stage_sequence sequence = partition->sequence;
	struct hspmd_pipeline_partition now = *partition;
	int max_micro_batches = partition->max_micro_batches;
	bool limited = partition->limited;
	prepare(&p, t, &sequence, copies, max_micro_batches, &slack);
	p.hides = t->schedule == HSPMD_SCHEDULE_ZB_H1;
	double best = step(&p, partition, m);
	if (hspmd_partition_count(t->layers, sequence.stages) <= PARTITIONS_ALL)
		enumerate(&p, 0, 0, 0, m, &now, &best, partition);
	else
		descend(&p, m, best, partition);
	finish(&p, max_micro_batches, m, partition);
	partition->limited = limited || slack.limited;
	partition->least = partition->most = copies->pipelines;
}
