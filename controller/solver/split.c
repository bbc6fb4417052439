/* SPDX-License-Identifier: Apache-2.0 */
/* The least possible time of the slowest stage, by parametric search (Alpa, OSDI'22, section 5.2, enumerates the bound in the same way): a stage's cost
 * only grows with its last layer, so for a given bound it is best to let every stage take as many layers as the bound and its memory allow; the
 * bound is then narrowed to the least for which that reaches the last layer. Work O(stages log layers) a bound. With few micro-batches the slowest
 * stage is not all that counts: hspmd_shape_settle
 * looks for the split with the shortest simulated step.
 *
 * A stage's cost is its passes and all four transfers of a micro-batch, one after another, as the simulator has them. Stages of one kind that
 * follow one another share nodes as far as they go; a transfer that leaves the node queues with those of the other pipelines that fit beside it.
 */
#include "controller/solver/split.h"

#include <math.h>

#include "controller/solver/simulate.h"

#define SPLITS_ALL 300 /* splits up to which all are looked at */
#define WIDEN 1.02 /* first guess of the bound over the least conceivable one */

struct problem {
	struct hspmd_tables *t;
	const struct hspmd_row *row;
	int in_flight[HSPMD_STAGES_MAX];
	int apart[HSPMD_STAGES_MAX]; /* micro-batches whose gradients of weights are put off */
	bool same_node[HSPMD_STAGES_MAX]; /* as the stage before */
	int queue[HSPMD_STAGES_MAX];      /* pipelines that send from this stage's node at once */
	double state_bytes[HSPMD_UNITS_MAX]; /* of one weight, by unit */
	double end_bytes;                 /* at the step's end alone */
	double crossing[HSPMD_STAGES_MAX][HSPMD_SIZES_MAX]; /* into the stage, by what is handed on */
};

/* Stages of one kind that follow one another fill a node before they start another; a stage of another kind of the same node class joins its
 * neighbour's node. */
static void lay_out(struct problem *p)
{
	const struct hspmd_kind *kinds = p->t->kinds->kinds;
	int first = 0, used = 0; /* of the node at hand: its first stage, devices taken of the last one's kind */
	for (int s = 0; s <= p->row->stages; s++) {
		const struct hspmd_unit *u = s < p->row->stages ? &p->t->units[p->row->unit[s]] : NULL;
		const struct hspmd_unit *before = s > 0 ? &p->t->units[p->row->unit[s - 1]] : NULL;
		bool fresh = !u || !before || kinds[u->kind].node_class != kinds[before->kind].node_class;
		fresh = fresh || (u->kind == before->kind && used + u->tp > kinds[u->kind].per_node);
		if (fresh) {
			for (int i = first; i < s; i++)
				p->queue[i] = kinds[before->kind].per_node / used;
			first = s;
		}
		if (!u)
			break;
		p->same_node[s] = !fresh;
		used = fresh || u->kind != before->kind ? u->tp : used + u->tp;
	}
}

/* The recompute kind with which layers [a, b) fit on stage s, least work first; -1: none. */
static int fits(const struct problem *p, const struct hspmd_unit *u, int s, int a, int b)
{
	int j = 31 - __builtin_clz((unsigned)(b - a));
	double working = fmax(u->working[j][a], u->working[j][b - (1 << j)]);
	double params = p->t->costs->borrower_count ? hspmd_stage_params(p->t->costs, a, b) * u->share : u->params[b] - u->params[a];
	double room = u->fillable - params * p->state_bytes[u - p->t->units], left = room - working - (u->lasting[b] - u->lasting[a]);
	if (params * p->end_bytes > room)
		return -1;
	double sent = b < p->t->layers ? p->t->size_bytes[p->t->size_of[b - 1]] : 0;
	for (int r = 0; r < HSPMD_RECOMPUTE_KINDS; r++) {
		double kept = u->kept[r][b] - u->kept[r][a], anew = u->kept[HSPMD_RECOMPUTE_NONE][b] - u->kept[HSPMD_RECOMPUTE_NONE][a] - kept;
		if ((p->t->exec->recompute & 1u << r) && p->in_flight[s] * (kept + sent) + u->again[r] + p->apart[s] * anew <= left)
			return r;
	}
	return -1;
}

/* Seconds of the transfers into a stage whose first layer is the one behind `layer`. */
static double border(const struct problem *p, int stage, int layer)
{
	return p->crossing[stage][p->t->size_of[layer]];
}

static double work(const struct problem *p, int s, int a, int b, int recompute)
{
	const double *sums = p->t->units[p->row->unit[s]].work[recompute];
	return sums[b] - sums[a];
}

/* Seconds of a micro-batch on stage s with layers [a, b); INFINITY when they do not fit. */
static double cost(const struct problem *p, int s, int a, int b, int *recompute)
{
	const struct hspmd_unit *u = &p->t->units[p->row->unit[s]];
	*recompute = fits(p, u, s, a, b);
	if (*recompute < 0)
		return INFINITY;
	double seconds = work(p, s, a, b, *recompute);
	if (s > 0)
		seconds += border(p, s, a - 1);
	if (s < p->row->stages - 1)
		seconds += border(p, s + 1, b - 1);
	return seconds;
}

/* Let every stage take all it can within the bound. The slowest stage's cost, or INFINITY when the last layer is not reached. */
static double fill(const struct problem *p, double bound, struct hspmd_shape *out)
{
	int layers = p->t->layers, stages = p->row->stages, at = 0;
	double slowest = 0;
	for (int s = 0; s < stages; s++) {
		int low = at + 1, high = layers - (stages - 1 - s), recompute;
		if (s == stages - 1)
			low = high;
		double seconds = cost(p, s, at, low, &recompute);
		if (seconds > bound)
			return INFINITY;
		out->recompute[s] = (unsigned char)recompute;
		while (low < high) {
			int middle = (low + high + 1) / 2, with;
			double more = cost(p, s, at, middle, &with);
			if (more <= bound) {
				low = middle;
				seconds = more;
				out->recompute[s] = (unsigned char)with;
			} else {
				high = middle - 1;
			}
		}
		slowest = fmax(slowest, seconds);
		out->ends[s] = (short)low;
		at = low;
	}
	return slowest;
}

/* Seconds of a step of m micro-batches. */
static double step(const struct problem *p, const struct hspmd_shape *shape, int m)
{
	struct hspmd_sim_stage sim[HSPMD_STAGES_MAX];
	struct hspmd_sim_result result = { 0 };
	int stages = p->row->stages;
	for (int s = 0, a = 0; s < stages; a = shape->ends[s++]) {
		const struct hspmd_unit *u = &p->t->units[p->row->unit[s]];
		double all = work(p, s, a, shape->ends[s], shape->recompute[s]);
		double forward = u->forward[shape->ends[s]] - u->forward[a], both = s ? border(p, s, a - 1) : 0;
		sim[s] = (struct hspmd_sim_stage){ .forward = forward, .backward = all - forward, .weights = hspmd_sim_weights(forward, all - forward),
						   .send_backward = both / 2 };
		if (s > 0)
			sim[s - 1].send_forward = both / 2;
	}
	return hspmd_simulate(sim, stages, m, p->t->schedule, &result) ? INFINITY : result.end;
}

static void prepare(struct problem *p, struct hspmd_tables *t, const struct hspmd_row *row, const struct hspmd_copies *copies, int at_most)
{
	p->t = t;
	p->row = row;
	for (int i = 0; i < t->unit_count; i++) {
		const struct hspmd_device_type *type = &t->costs->cluster->types[t->kinds->kinds[t->units[i].kind].type];
		p->state_bytes[i] = hspmd_state_bytes(t->costs, copies) + hspmd_image_bytes(t->costs, type, copies);
	}
	p->end_bytes = hspmd_end_bytes(t->costs, copies);
	for (int s = 0; s < row->stages; s++) {
		p->in_flight[s] = hspmd_in_flight(s, row->stages, at_most, t->schedule);
		p->apart[s] = hspmd_put_off(s, at_most, t->schedule);
	}
	lay_out(p);
	for (int s = 1; s < row->stages; s++)
		for (int size = 0; size < t->size_count; size++)
			p->crossing[s][size] = hspmd_crossing(t, row->unit[s - 1], row->unit[s], p->same_node[s], p->queue[s - 1], size);
}

/* Seconds of one micro-batch through all stages and back. */
static double through(const struct problem *p, const struct hspmd_shape *shape)
{
	double seconds = 0;
	for (int s = 0, a = 0; s < p->row->stages; a = shape->ends[s++]) {
		const double *work = p->t->units[p->row->unit[s]].work[shape->recompute[s]];
		seconds += work[shape->ends[s]] - work[a] + (s ? border(p, s, a - 1) : 0);
	}
	return seconds;
}

/* Cycle, and what fill and drain add to one for each micro-batch but one: by simulation where m of them are few, else what they add at most. */
static bool finish(const struct problem *p, int at_most, int m, struct hspmd_shape *out)
{
	int few = HSPMD_FEW * p->row->stages;
	m = m < at_most ? m : at_most;
	out->row = *p->row;
	out->at_most = at_most;
	out->cycle = 0;
	for (int s = 0, a = 0, recompute; s < p->row->stages; a = out->ends[s++])
		out->cycle = fmax(out->cycle, cost(p, s, a, out->ends[s], &recompute));
	if (p->t->schedule == HSPMD_SCHEDULE_ZB_H1) {
		/* Gradients of weights fill what messages and neighbours leave; there is no simple sum for either. */
		m = m < few ? m : few;
		out->cycle = m > 1 ? (step(p, out, m) - step(p, out, m / 2)) / (m - m / 2) : out->cycle;
	}
	out->once = m <= few ? step(p, out, m) - (m - 1) * out->cycle : through(p, out);
	return !isinf(out->once);
}

bool hspmd_split(struct hspmd_tables *t, const struct hspmd_row *row, const struct hspmd_copies *copies, int at_most, double precision,
		 struct hspmd_shape *out)
{
	struct problem p;
	struct hspmd_shape now;
	double rates = 0, high = INFINITY;
	if (row->stages > t->layers)
		return false;
	for (int s = 0; s < row->stages; s++)
		rates += t->units[row->unit[s]].rate;
	prepare(&p, t, row, copies, at_most);
	/* Widen from below until a bound is met, the last time without one, then narrow. */
	double low = 1 / rates;
	for (double factor = WIDEN; isinf(high); factor *= factor) {
		double bound = factor < 1e3 ? low * factor : 1e300;
		high = fill(&p, bound, out);
		if (isinf(high) && bound == 1e300)
			return false;
		low = isinf(high) ? bound : low;
	}
	while (high - low > precision * high) {
		double middle = (low + high) / 2, reached = fill(&p, middle, &now);
		if (isinf(reached)) {
			low = middle;
		} else {
			high = reached;
			*out = now;
		}
	}
	return finish(&p, at_most, at_most, out);
}

/* Move border s by `by` layers if it leaves both stages some and they fit. */
static bool move(const struct problem *p, struct hspmd_shape *x, int s, int by)
{
	int first = s ? x->ends[s - 1] : 0, end = x->ends[s + 1], at = x->ends[s] + by, a, b;
	if (at <= first || at >= end || isinf(cost(p, s, first, at, &a)) || isinf(cost(p, s + 1, at, end, &b)))
		return false;
	x->ends[s] = (short)at;
	x->recompute[s] = (unsigned char)a;
	x->recompute[s + 1] = (unsigned char)b;
	return true;
}

/* The best split that single moves lead to. */
static void descend(const struct problem *p, int m, double best, struct hspmd_shape *shape)
{
	for (bool again = true; again;) {
		again = false;
		for (int i = 0; i < 2 * (p->row->stages - 1); i++) {
			struct hspmd_shape other = *shape;
			if (!move(p, &other, i / 2, i % 2 ? 1 : -1))
				continue;
			double seconds = step(p, &other, m);
			if (seconds < best) {
				best = seconds;
				*shape = other;
				again = true;
			}
		}
	}
}

/* The best of all splits of the layers from `first` on over the stages from s on. A stage's m cycles come after the first micro-batch has passed
 * the stages before it and before its gradients pass them, which bounds what is worth simulating. With ZB-H1 only forward passes are sure to come before, and
 * messages may pass while gradients of weights are computed. */
static void enumerate(const struct problem *p, int s, int first, double before, int m, struct hspmd_shape *now, double *best, struct hspmd_shape *out)
{
	int stages = p->row->stages, layers = p->t->layers, recompute;
	bool apart = p->t->schedule == HSPMD_SCHEDULE_ZB_H1;
	for (int end = s == stages - 1 ? layers : first + 1; end <= layers - (stages - 1 - s); end++) {
		double here = cost(p, s, first, end, &recompute);
		if (before + m * (apart && !isinf(here) ? work(p, s, first, end, recompute) : here) >= *best)
			return;
		now->ends[s] = (short)end;
		now->recompute[s] = (unsigned char)recompute;
		if (s < stages - 1) {
			const double *forward = p->t->units[p->row->unit[s]].forward;
			double passed = apart ? forward[end] - forward[first] : here - border(p, s + 1, end - 1);
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

static double splits(int layers, int stages)
{
	double n = 1;
	for (int i = 1; i < stages; i++)
		n = n * (layers - i) / i;
	return n;
}

void hspmd_shape_settle(struct hspmd_tables *t, const struct hspmd_copies *copies, int m, struct hspmd_shape *shape)
{
	struct problem p;
	const struct hspmd_row row = shape->row;
	struct hspmd_shape now = *shape;
	int at_most = shape->at_most;
	prepare(&p, t, &row, copies, at_most);
	double best = step(&p, shape, m);
	if (splits(t->layers, row.stages) <= SPLITS_ALL)
		enumerate(&p, 0, 0, 0, m, &now, &best, shape);
	else
		descend(&p, m, best, shape);
	finish(&p, at_most, m, shape);
}
