/* SPDX-License-Identifier: Apache-2.0 */
/* Seconds of each layer on one device that holds a share of it.
 *
 * Work is a lower bound given by the hardware, a roofline (Williams et al., 2009) over one sample:
 *     work = flops share / rate + bytes moved / memory rate
 * with the rate of a large matrix product as measured on the device, or the part of a data sheet's peak that is sustained. Products read
 * their weights while they compute, so that only matters if it takes longer; but a device that packs weights does so before, for each
 * micro-batch. The rest of a layer's time is what every operator takes beside its work, as measured, or launching kernels that the
 * device finishes before the host can start the next, and does not grow with the micro-batch. Of a layer known only by its profile, the
 * backward pass has two products for each one of the forward pass (Megatron-LM, arXiv 2104.04473, appendix).
 *
 * From a profile, if it has the device type:
 * - micro-batch between measured ones: on the straight line between them; outside, on the line through the last two
 * - only one micro-batch measured: work (and the group's all-reduce) for each additional sample, but never more than the time per
 *   measured sample
 * - tp between measured degrees: on the straight line over 1 / tp
 * - tp above the measured degrees: only the work is saved; but on a CPU, which launches nothing, the whole measured time shrinks in
 *   proportion to the work
 * - backward not measured: forward, and its work once more. Backward times that are exactly twice the forward time in every layer count
 *   as not measured, if the forward times come from a clock (equal layers differ), only one micro-batch was measured, and the optimizer
 *   was not measured: then the author of the profile had no others. Any other numbers are used as they are
 *
 * Without a profile: work and launches. */
#include "controller/solver/cost/costs.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/device_speed.h"
#include "common/format/device_traits.h"
#include "controller/solver/cost/cost_constants.h"

static size_t slot_of(const struct hspmd_costs *c, int type, double share, bool sequence, int micro_batch)
{
	uint64_t bits;
	memcpy(&bits, &share, sizeof bits);
	bits ^= (uint64_t)type * 0x9e3779b97f4a7c15u ^ (2 * (uint64_t)micro_batch + sequence) * 0xc2b2ae3d27d4eb4fu;
	bits ^= bits >> 29;
	bits *= 0xbf58476d1ce4e5b9u;
	return (size_t)(bits ^ bits >> 32) & (c->times_size - 1);
}

static int cache_insert(struct hspmd_costs *c, struct hspmd_layer_times *t)
{
	if (c->times_count * 2 >= c->times_size) {
		size_t old_size = c->times_size;
		struct hspmd_layer_times **old = c->times;
		size_t size = old_size ? old_size * 2 : 64;
		struct hspmd_layer_times **bigger = hspmd_calloc(size, sizeof(struct hspmd_layer_times *));
		if (!bigger)
			return -1;
		c->times = bigger;
		c->times_size = size;
		for (size_t i = 0; i < old_size; i++)
			if (old[i])
				for (size_t s = slot_of(c, old[i]->type, old[i]->share, old[i]->sequence, old[i]->micro_batch);;
				     s = (s + 1) & (size - 1))
					if (!bigger[s]) {
						bigger[s] = old[i];
						break;
					}
		free(old);
	}
	size_t s = slot_of(c, t->type, t->share, t->sequence, t->micro_batch);
	while (c->times[s])
		s = (s + 1) & (c->times_size - 1);
	c->times[s] = t;
	c->times_count++;
	return 0;
}

void hspmd_layer_times_destroy(struct hspmd_layer_times *t)
{
	if (!t)
		return;
	free(t->forward); /* one allocation for all sums */
	free(t);
}

static struct hspmd_layer_times *times_new(int layers)
{
	struct hspmd_layer_times *t = hspmd_calloc(1, sizeof *t);
	size_t n = (size_t)layers + 1;
	double *sums = t ? hspmd_calloc((3 + HSPMD_RECOMPUTE_KINDS) * n, sizeof *sums) : NULL;
	if (!sums) {
		free(t);
		return NULL;
	}
	t->forward = sums;
	t->backward = sums + n;
	t->optimizer = sums + 2 * n;
	for (int k = 0; k < HSPMD_RECOMPUTE_KINDS; k++)
		t->recompute_s[k] = sums + (3 + (size_t)k) * n;
	return t;
}

/* A profile does not say in which precision it was measured: the fastest precision that the device could have used gives a lower bound on
 * its work. */
static double fastest_units(const struct hspmd_device_type *t)
{
	double most = 0;
	for (int p = HSPMD_PRECISION_FP32; p <= HSPMD_PRECISION_FP16; p++)
		most = fmax(most, hspmd_device_flops(t, (enum hspmd_precision)p));
	return most;
}

/* ---- work */

static double memory_rate_of(const struct hspmd_costs *c, int type)
{
	return hspmd_device_memory_rate(&c->cluster->types[type]);
}

static double on_share(const struct hspmd_facts_work *w, double share)
{
	return w->replicated + w->sharded * share;
}

/* The part of an operation's time that is saved if its operands are FP8 numbers. */
static double saved_by_fp8(const struct hspmd_costs *c, int type, bool of_experts)
{
	const struct hspmd_device_type *t = &c->cluster->types[type];
	double fp8 = hspmd_device_fp8_flops(t, c->precision, of_experts);
	return fp8 > 0 ? 1 - hspmd_device_flops(t, c->precision) / fp8 : 0;
}

/* Seconds of one sample's work of a pass, at `rate` operations per second. */
static double pass_work(const struct hspmd_costs *c, int type, double share, bool sequence, double rate,
                        const struct hspmd_layer_pass *pass)
{
	double memory_rate = memory_rate_of(c, type), flops = on_share(sequence ? &pass->parted_flops : &pass->flops, share),
	       bytes = on_share(sequence ? &pass->parted_bytes : &pass->bytes, share);
	if (c->fp8) {
		double experts = on_share(&pass->fp8_experts, share);
		flops -= (on_share(&pass->fp8, share) - experts) * saved_by_fp8(c, type, false) + experts * saved_by_fp8(c, type, true);
	}
	bytes += hspmd_device_window_traffic(&c->cluster->types[type], on_share(&pass->windows, share));
	return (rate > 0 ? flops / rate : 0) + (memory_rate > 0 ? bytes / memory_rate : 0);
}

/* Seconds of forward work of one sample of layer l. */
static double forward_work(const struct hspmd_costs *c, int type, double share, double rate, int l)
{
	return pass_work(c, type, share, false, rate, &c->layers[l].forward);
}

/* Seconds of a pass over a micro-batch: its samples' work, but at least the time in which its weights are read, or that and the time in
 * which they are packed; and what every operator takes. */
static double pass_time(const struct hspmd_costs *c, const struct hspmd_layer_times *t, double rate, const struct hspmd_layer_pass *pass)
{
	double operators = hspmd_device_operator_seconds(&c->cluster->types[t->type]) * pass->kernels;
	double memory_rate = memory_rate_of(c, t->type), weights = memory_rate > 0 ? on_share(&pass->weights, t->share) / memory_rate : 0;
	double work = t->micro_batch * pass_work(c, t->type, t->share, t->sequence, rate, pass);
	return (hspmd_device_packs(&c->cluster->types[t->type]) ? work + weights : fmax(work, weights)) + operators;
}

double hspmd_costs_update(const struct hspmd_costs *c, int type, double params)
{
	double memory_rate = memory_rate_of(c, type);
	double bytes = params * ((c->master_bytes > 0 ? HSPMD_UPDATE_BYTES_MIXED : HSPMD_UPDATE_BYTES) + 2 * c->moment_bytes);
	return memory_rate > 0 ? bytes / memory_rate : 0;
}

double hspmd_costs_offloaded_update(const struct hspmd_costs *c, int type, double share, int first, int end)
{
	double replicated = c->replicated_sum[end] - c->replicated_sum[first];
	double params = replicated + (c->params_sum[end] - c->params_sum[first] - replicated) * share;
	double rate = 1e9 * c->cluster->types[type].host.gbytes_per_s, bytes = params * (c->master_bytes + c->moment_bytes);
	return fmax(hspmd_costs_update(c, type, params), rate > 0 ? bytes / rate : 0);
}

/* Seconds of the update over the share of the layer. */
static double update_time(const struct hspmd_costs *c, int type, double share, int l)
{
	return hspmd_costs_update(c, type, c->layers[l].replicated_params + (c->layers[l].params - c->layers[l].replicated_params) * share);
}

/* Seconds of forward work that the backward pass repeats: of sets and full recomputation, the same part of the layer's time as of its work.
 * What selective recomputation repeats is limited by the memory's rate, and is too small a part to be inferred from the layer's time. */
static double recompute_time(const struct hspmd_costs *c, const struct hspmd_layer_times *t, enum hspmd_recompute recompute, int l)
{
	const struct hspmd_layer_info *f = &c->layers[l];
	double rate = hspmd_device_flops(&c->cluster->types[t->type], c->precision);
	double all = pass_work(c, t->type, t->share, t->sequence, rate, &f->forward),
	       again = pass_work(c, t->type, t->share, t->sequence, rate, &f->again[recompute]);
	if (recompute > HSPMD_RECOMPUTE_SELECTIVE)
		return f->recomputable ? t->forward[l + 1] * (all > 0 && again < all ? again / all : 1) : 0;
	return fmin(t->micro_batch * again, t->forward[l + 1]);
}

static int fill_roofline(struct hspmd_costs *c, struct hspmd_layer_times *t, struct hspmd_error *err)
{
	const struct hspmd_device_type *type = &c->cluster->types[t->type];
	double rate = hspmd_device_flops(type, c->precision);
	if (rate <= 0)
		return hspmd_fail(err, "device type %s: neither tflops nor peak_tflops for %s", type->name,
		                  hspmd_precision_names[c->precision]);
	for (int l = 0; l < c->layer_count; l++) {
		t->forward[l + 1] = pass_time(c, t, rate, &c->layers[l].forward);
		t->backward[l + 1] = pass_time(c, t, rate, &c->layers[l].backward);
		t->optimizer[l + 1] = update_time(c, t->type, t->share, l);
	}
	return 0;
}

/* ---- profile */

enum column { FORWARD, BACKWARD, OPTIMIZER };

/* The profile's entries of one device type and tp, ascending by micro-batch. */
struct measurements {
	int tp, count;
	struct {
		const struct hspmd_profile_times *times;
		bool made_up; /* its backward times count as not measured */
	} entries[HSPMD_MEASURED_BATCHES_MAX];
};

/* Seconds that one more sample adds to a layer: forward work, and the all-reduces of one pass. */
struct sample {
	double work, reduce;
};

/* Ratio of one layer's work at the requested share to its work at the highest degree measured below it; NaN if the time need not be
 * proportional to the work. */
static double part_left(const struct hspmd_costs *c, const struct hspmd_layer_times *t, const struct measurements *below, double rate,
                        int l)
{
	double before = below->count ? forward_work(c, t->type, 1.0 / below->tp, rate, l) : 0;
	bool follows = hspmd_device_traits(c->cluster->types[t->type].kind)->launch_s == 0 && before > 0;
	return follows ? forward_work(c, t->type, t->share, rate, l) / before : NAN;
}

/* Returns true if equal layers have different forward times. Times from a person or a formula are equal for equal layers; those of a
 * clock are not. */
static bool forward_was_timed(const struct hspmd_profile *p, const struct hspmd_profile_times *e)
{
	for (int l = 1; l < p->layer_count; l++) {
		const struct hspmd_profile_layer *a = &p->layers[l - 1], *b = &p->layers[l];
		if (a->params == b->params && a->output_elems == b->output_elems && a->activation_bytes == b->activation_bytes &&
		    e->forward_s[l - 1] != e->forward_s[l])
			return true;
	}
	return false;
}

static bool one_micro_batch(const struct hspmd_profile *p)
{
	for (int i = 1; i < p->times_count; i++)
		if (p->times[i].micro_batch != p->times[0].micro_batch)
			return false;
	return true;
}

static bool backward_was_made_up(const struct hspmd_profile *p, const struct hspmd_profile_times *e)
{
	bool any = false;
	if (!e->backward_s || e->optimizer_s || !one_micro_batch(p) || !forward_was_timed(p, e))
		return false;
	for (int l = 0; l < p->layer_count; l++) {
		if (isnan(e->backward_s[l]))
			continue;
		/* A profile is printed with six significant digits. */
		if (fabs(e->backward_s[l] - 2 * e->forward_s[l]) > 2e-5 * e->forward_s[l])
			return false;
		any = any || e->forward_s[l] > 0;
	}
	return any;
}

static void collect_measurements(const struct hspmd_profile *p, const char *type, int tp, struct measurements *s)
{
	s->tp = tp;
	s->count = 0;
	for (int i = 0; i < p->times_count && s->count < HSPMD_MEASURED_BATCHES_MAX; i++) {
		const struct hspmd_profile_times *e = &p->times[i];
		if (e->tp != tp || strcmp(e->device_type, type))
			continue;
		int at = s->count++;
		for (; at > 0 && s->entries[at - 1].times->micro_batch > e->micro_batch; at--)
			s->entries[at] = s->entries[at - 1];
		s->entries[at].times = e;
		s->entries[at].made_up = backward_was_made_up(p, e);
	}
}

/* Time of one layer in entry i; NaN if it was not measured and cannot be derived from what was measured. */
static double known_time(const struct measurements *s, int i, enum column column, int layer, const struct sample *x)
{
	const struct hspmd_profile_times *e = s->entries[i].times;
	double forward = e->forward_s[layer];
	if (column == FORWARD)
		return forward;
	if (column == OPTIMIZER)
		return e->optimizer_s ? e->optimizer_s[layer] : NAN;
	if (e->backward_s && !isnan(e->backward_s[layer]) && !s->entries[i].made_up)
		return e->backward_s[layer];
	return fmin(2 * forward, forward + x->work * e->micro_batch);
}

/* Time of one layer at a micro-batch; NaN as in known_time. */
static double over_micro_batch(const struct measurements *s, int micro_batch, enum column column, int layer, const struct sample *x)
{
	int above = 0;
	while (above < s->count && s->entries[above].times->micro_batch < micro_batch)
		above++;
	int low = above == s->count ? above - 1 : above; /* the measured micro-batch to start from */
	if (low < 0)
		return NAN;
	double at = known_time(s, low, column, layer, x), from = s->entries[low].times->micro_batch;
	if (column == OPTIMIZER || from == micro_batch)
		return at;
	if (above > 0 && above < s->count) {
		double before = known_time(s, above - 1, column, layer, x), start = s->entries[above - 1].times->micro_batch;
		return before + (at - before) * (micro_batch - start) / (from - start);
	}
	int other = above ? low - 1 : low + 1;
	double slope = (column == BACKWARD ? 2 : 1) * x->work + x->reduce;
	if (other >= 0 && other < s->count)
		slope = (known_time(s, other, column, layer, x) - at) / (s->entries[other].times->micro_batch - from);
	return at + (micro_batch - from) * fmin(fmax(slope, 0), at / from);
}

/* Collect the measured degrees of a type next to 1 / share: below <= 1 / share <= above; count 0 if there is none. Returns false if the
 * type was not measured. */
static bool measurements_around(const struct hspmd_costs *c, const char *type, double share, struct measurements *below,
                                struct measurements *above)
{
	int low = 0, high = 0;
	below->count = above->count = 0;
	for (int i = 0; i < c->profile->times_count; i++) {
		const struct hspmd_profile_times *e = &c->profile->times[i];
		if (strcmp(e->device_type, type))
			continue;
		if (e->tp <= 1 / share + 1e-9 && e->tp > low)
			low = e->tp;
		if (e->tp >= 1 / share - 1e-9 && (!high || e->tp < high))
			high = e->tp;
	}
	if (low)
		collect_measurements(c->profile, type, low, below);
	if (high && high != low)
		collect_measurements(c->profile, type, high, above);
	return low || high;
}

/* Time of one layer at a share and micro-batch; `left` as in part_left. */
static double over_share(const struct measurements *below, const struct measurements *above, double share, int micro_batch,
                         enum column column, int layer, const struct sample *whole, double left)
{
	struct sample low = { below->count ? whole->work / below->tp : 0, whole->reduce };
	struct sample high = { above->count ? whole->work / above->tp : 0, whole->reduce };
	double a = below->count ? over_micro_batch(below, micro_batch, column, layer, &low) : NAN;
	double b = above->count ? over_micro_batch(above, micro_batch, column, layer, &high) : NAN;
	if (below->count && above->count)
		return a + (b - a) * (1.0 / below->tp - share) / (1.0 / below->tp - 1.0 / above->tp);
	if (above->count) /* a lower degree than any measured one: the whole time grows with the share */
		return b * share * above->tp;
	if (fabs(below->tp * share - 1) < 1e-9)
		return a;
	if (column != OPTIMIZER && !isnan(left))
		return a * left;
	double factor = column == FORWARD ? micro_batch : column == BACKWARD ? 2 * micro_batch : 0;
	double saved = column == OPTIMIZER ? a * (1 - share * below->tp) : factor * whole->work * (1.0 / below->tp - share);
	return fmax(a - saved, a * share * below->tp);
}

static bool has_micro_batch(const struct measurements *s, int micro_batch)
{
	for (int i = 0; i < s->count; i++)
		if (s->entries[i].times->micro_batch == micro_batch)
			return true;
	return false;
}

/* Seconds per byte of an all-reduce among 1 / share devices of a type in one node; 0 if no node has that many. */
static double reduce_rate(const struct hspmd_costs *c, int type, double share)
{
	const struct hspmd_cluster *cl = c->cluster;
	int n = (int)lround(1 / share);
	const double probe = 1 << 22; /* large enough that latency does not matter: only what grows with the micro-batch is wanted */
	for (int i = 0; n > 1 && i < cl->node_count; i++) {
		int first = cl->nodes[i].first_device;
		if (cl->nodes[i].device_count < n || cl->devices[first].type != type || cl->devices[first + n - 1].type != type)
			continue;
		double low = hspmd_costs_transfer(c, first, first + 1, 1, 1, probe, NULL);
		double high = hspmd_costs_transfer(c, first, first + 1, 1, 1, 2 * probe, NULL);
		return low < 0 || high < low ? 0 : 2 * (n - 1) * (high - low) / probe / n;
	}
	return 0;
}

/* Fill the times from the profile. Returns false if it has nothing about the type. */
static bool fill_profile(struct hspmd_costs *c, struct hspmd_layer_times *t)
{
	const char *type = c->cluster->types[t->type].name;
	struct measurements below, above;
	if (!c->profile || !measurements_around(c, type, t->share, &below, &above))
		return false;
	bool made_up = false;
	double reduce = reduce_rate(c, t->type, t->share), rate = fastest_units(&c->cluster->types[t->type]);
	for (int l = 0; l < c->layer_count; l++) {
		struct sample whole = { forward_work(c, t->type, 1, rate, l),
			                reduce * hspmd_facts_messages_bytes(&c->layers[l].forward.messages[0], HSPMD_FACTS_REDUCED) };
		double left = part_left(c, t, &below, rate, l);
		t->forward[l + 1] = over_share(&below, &above, t->share, t->micro_batch, FORWARD, l, &whole, left);
		t->backward[l + 1] = over_share(&below, &above, t->share, t->micro_batch, BACKWARD, l, &whole, left);
		double optimizer = over_share(&below, &above, t->share, t->micro_batch, OPTIMIZER, l, &whole, left);
		t->optimizer[l + 1] = isnan(optimizer) ? update_time(c, t->type, t->share, l) : optimizer;
	}
	for (int i = 0; i < below.count; i++)
		made_up = made_up || below.entries[i].made_up;
	bool in_steps = fabs(lround(1 / t->share) * t->share - 1) < 1e-9;
	t->origins |= made_up ? HSPMD_TIME_BACKWARD_MODELLED : 0;
	t->origins |= !in_steps ? HSPMD_TIME_SHARE_INTERPOLATED : !below.count || !above.count ? 0 : HSPMD_TIME_TP_INTERPOLATED;
	t->origins |= in_steps && !above.count && below.tp != lround(1 / t->share) ? HSPMD_TIME_TP_EXTRAPOLATED : 0;
	t->origins |= !below.count ? HSPMD_TIME_TP_EXTRAPOLATED : 0;
	if (!t->origins || t->origins == HSPMD_TIME_BACKWARD_MODELLED)
		t->origins |= has_micro_batch(&below, t->micro_batch) ? 0
		              : below.count > 1                       ? HSPMD_TIME_BATCH_INTERPOLATED
		                                                      : HSPMD_TIME_BATCH_EXTRAPOLATED;
	t->measured = true;
	t->reduced = t->share < 1 && (above.count || below.tp > 1);
	t->per_byte = reduce;
	return true;
}

void hspmd_costs_warn_origins(struct hspmd_costs *c, const struct hspmd_layer_times *t)
{
	const char *type = c->cluster->types[t->type].name;
	int tp = (int)lround(1 / t->share);
	if (t->origins & HSPMD_TIME_SHARE_INTERPOLATED)
		hspmd_costs_warn(c, "%s: unequal shards: layer times interpolated between the profile's tensor-parallel degrees", type);
	if (t->origins & (HSPMD_TIME_TP_INTERPOLATED | HSPMD_TIME_TP_EXTRAPOLATED))
		hspmd_costs_warn(c, "%s: tp %d is not in the profile: %s", type, tp,
		                 t->origins & HSPMD_TIME_TP_INTERPOLATED ? "interpolated" : "extrapolated");
	if (t->origins & (HSPMD_TIME_BATCH_INTERPOLATED | HSPMD_TIME_BATCH_EXTRAPOLATED))
		hspmd_costs_warn(c, "%s, tp %d: micro-batch %d is not in the profile: %s", type, tp, t->micro_batch,
		                 t->origins & HSPMD_TIME_BATCH_INTERPOLATED ? "interpolated"
		                                                            : "extrapolated from the one that was measured");
	if (t->origins & HSPMD_TIME_BACKWARD_MODELLED)
		hspmd_costs_warn(
		        c, "%s: the profile's backward times are exactly twice its forward times: treated as not measured, and modelled",
		        type);
}

/* The times that are known; NULL: none. */
static const struct hspmd_layer_times *find_times(const struct hspmd_costs *c, int type, double share, bool sequence, int micro_batch)
{
	if (c->times_size)
		for (size_t s = slot_of(c, type, share, sequence, micro_batch); c->times[s]; s = (s + 1) & (c->times_size - 1))
			if (c->times[s]->type == type && c->times[s]->share == share && c->times[s]->sequence == sequence &&
			    c->times[s]->micro_batch == micro_batch)
				return c->times[s];
	return c->base ? find_times(c->base, type, share, sequence, micro_batch) : NULL;
}

const struct hspmd_layer_times *hspmd_costs_times(struct hspmd_costs *c, int type, double share, bool sequence, int micro_batch,
                                                  struct hspmd_error *err)
{
	sequence = sequence && share < 1;
	const struct hspmd_layer_times *known = find_times(c, type, share, sequence, micro_batch);
	if (known)
		return known;
	struct hspmd_layer_times *t = times_new(c->layer_count);
	if (!t) {
		hspmd_fail_memory(err, "computing layer times");
		return NULL;
	}
	t->type = type;
	t->share = share;
	t->sequence = sequence;
	t->micro_batch = micro_batch;
	if (!fill_profile(c, t) && fill_roofline(c, t, err)) {
		hspmd_layer_times_destroy(t);
		return NULL;
	}
	if (!c->profile || t->measured || c->facts)
		goto sum;
	hspmd_fail(err, "the profile has no times for device type %s and no model is given to compute them from",
	           c->cluster->types[type].name);
	hspmd_layer_times_destroy(t);
	return NULL;
sum:
	for (int k = 0; k < HSPMD_RECOMPUTE_KINDS; k++)
		for (int l = 0; l < c->layer_count; l++)
			t->recompute_s[k][l + 1] = recompute_time(c, t, (enum hspmd_recompute)k, l);
	double *columns[3 + HSPMD_RECOMPUTE_KINDS] = { t->forward, t->backward, t->optimizer };
	memcpy(columns + 3, t->recompute_s, sizeof t->recompute_s);
	for (int k = 0; k < 3 + HSPMD_RECOMPUTE_KINDS; k++)
		for (int l = 0; l < c->layer_count; l++)
			columns[k][l + 1] += columns[k][l];
	if (cache_insert(c, t)) {
		hspmd_layer_times_destroy(t);
		hspmd_fail_memory(err, "computing layer times");
		return NULL;
	}
	return t;
}
