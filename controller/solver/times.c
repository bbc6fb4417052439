/* SPDX-License-Identifier: Apache-2.0 */
/* Seconds of each layer on one device that holds a share of it.
 *
 * Measured where the profile has the device type: over micro-batches straight lines between the measured ones (a layer's time is a constant
 * part, launching and reading weights, and a part in proportion), over shares straight lines in 1 / tp. Else a roofline (Williams et al., 2009):
 *     forward = flops share micro_batch / rate + bytes moved / memory rate + kernels * launch
 * with the rate of a large matrix product as measured on the device, or SUSTAINED of its data sheet. Backward is twice forward: each product has
 * two gradients of the same size (Megatron-LM, arXiv 2104.04473, appendix).
 */
#include "controller/solver/costs.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/solver/physics.h"

static size_t slot_of(const struct hspmd_costs *c, int type, double share, int micro_batch)
{
	uint64_t bits;
	memcpy(&bits, &share, sizeof bits);
	bits ^= (uint64_t)type * 0x9e3779b97f4a7c15u ^ (uint64_t)micro_batch * 0xc2b2ae3d27d4eb4fu;
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
				for (size_t s = slot_of(c, old[i]->type, old[i]->share, old[i]->micro_batch);; s = (s + 1) & (size - 1))
					if (!bigger[s]) {
						bigger[s] = old[i];
						break;
					}
		free(old);
	}
	size_t s = slot_of(c, t->type, t->share, t->micro_batch);
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
	free(t->forward); /* one block for all sums */
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
		t->rerun[k] = sums + (3 + (size_t)k) * n;
	return t;
}

double hspmd_device_flops(const struct hspmd_device_type *t, enum hspmd_precision precision)
{
	/* A device without the precision's own units computes in the next wider one it has. */
	static const enum hspmd_precision instead[HSPMD_PRECISION_COUNT][4] = {
		{ HSPMD_PRECISION_FP32, HSPMD_PRECISION_FP32, HSPMD_PRECISION_FP32, HSPMD_PRECISION_FP32 },
		{ HSPMD_PRECISION_TF32, HSPMD_PRECISION_FP32, HSPMD_PRECISION_FP32, HSPMD_PRECISION_FP32 },
		{ HSPMD_PRECISION_BF16, HSPMD_PRECISION_FP16, HSPMD_PRECISION_TF32, HSPMD_PRECISION_FP32 },
		{ HSPMD_PRECISION_FP16, HSPMD_PRECISION_BF16, HSPMD_PRECISION_TF32, HSPMD_PRECISION_FP32 },
		{ HSPMD_PRECISION_FP8, HSPMD_PRECISION_BF16, HSPMD_PRECISION_FP16, HSPMD_PRECISION_FP32 },
		{ HSPMD_PRECISION_FP64, HSPMD_PRECISION_FP64, HSPMD_PRECISION_FP64, HSPMD_PRECISION_FP64 },
	};
	for (int i = 0; i < 4; i++) {
		enum hspmd_precision p = instead[precision][i];
		if (t->tflops[p] > 0)
			return t->tflops[p] * 1e12;
		if (t->peak_tflops[p] > 0)
			return t->peak_tflops[p] * 1e12 * HSPMD_SUSTAINED;
	}
	return 0;
}

/* ---- roofline */

static int fill_roofline(struct hspmd_costs *c, struct hspmd_layer_times *t, struct hspmd_error *err)
{
	const struct hspmd_device_type *type = &c->cluster->types[t->type];
	double rate = hspmd_device_flops(type, c->precision), memory_rate = type->gbytes_per_s * 1e9;
	if (rate <= 0)
		return hspmd_fail(err, "device type %s: neither tflops nor peak_tflops for %s", type->name, hspmd_precision_words[c->precision]);
	double launch = type->kind == HSPMD_DEVICE_CUDA ? HSPMD_LAUNCH_S : 0;
	for (int l = 0; l < c->layer_count; l++) {
		const struct hspmd_layer_fact *f = &c->layers[l];
		double work = t->micro_batch * f->flops * t->share / rate;
		double whole = fmin(f->whole_bytes, f->moved_bytes), split = f->moved_bytes - whole;
		double weights = f->flops > 0 ? f->params * t->share * c->param_bytes : 0;
		double moved = memory_rate > 0 ? (t->micro_batch * (whole + split * t->share) + weights) / memory_rate : 0;
		double forward = work + moved + launch * (f->flops > 0 ? HSPMD_BLOCK_KERNELS : 2);
		double update = memory_rate > 0 ? f->params * t->share * HSPMD_ADAM_BYTES / memory_rate : 0;
		t->forward[l + 1] = forward;
		t->backward[l + 1] = 2 * forward;
		t->optimizer[l + 1] = update;
		for (int k = 0; k < HSPMD_RECOMPUTE_KINDS; k++)
			t->rerun[k][l + 1] = forward * f->rerun[k];
	}
	return 0;
}

/* ---- profile */

enum column { FORWARD, BACKWARD, OPTIMIZER };

static double measured(const struct hspmd_profile_times *e, enum column column, int layer)
{
	const double *x = column == FORWARD ? e->forward_s : column == BACKWARD ? e->backward_s : e->optimizer_s;
	return x ? x[layer] : NAN;
}

/* Value of one layer at (tp, micro_batch) from the entries of a type and tp: on the line through the two nearest micro-batches. */
static double over_micro_batch(const struct hspmd_costs *c, const char *type, int tp, int micro_batch, enum column column, int layer)
{
	const struct hspmd_profile_times *lo = NULL, *hi = NULL, *second = NULL;
	for (int i = 0; i < c->profile->times_count; i++) {
		const struct hspmd_profile_times *e = &c->profile->times[i];
		if (e->tp != tp || strcmp(e->device_type, type) || isnan(measured(e, column, layer)))
			continue;
		if (e->micro_batch == micro_batch)
			return measured(e, column, layer);
		if (e->micro_batch < micro_batch && (!lo || e->micro_batch > lo->micro_batch)) {
			second = lo;
			lo = e;
		} else if (e->micro_batch < micro_batch && (!second || e->micro_batch > second->micro_batch)) {
			second = e;
		} else if (e->micro_batch > micro_batch && (!hi || e->micro_batch < hi->micro_batch)) {
			hi = e;
		}
	}
	if (!lo && !hi)
		return NAN;
	if (column == OPTIMIZER)
		return measured(lo ? lo : hi, column, layer);
	if (lo && hi) {
		double a = measured(lo, column, layer), b = measured(hi, column, layer);
		return a + (b - a) * (micro_batch - lo->micro_batch) / (hi->micro_batch - lo->micro_batch);
	}
	if (lo && second) {
		double a = measured(second, column, layer), b = measured(lo, column, layer);
		return fmax(b, b + (b - a) * (micro_batch - lo->micro_batch) / (lo->micro_batch - second->micro_batch));
	}
	const struct hspmd_profile_times *one = lo ? lo : hi;
	return measured(one, column, layer) * micro_batch / one->micro_batch;
}

/* The measured tensor-parallel degrees of a type next to 1 / share: *below <= 1 / share <= *above; 0 where there is none. */
static void degrees_around(const struct hspmd_costs *c, const char *type, double share, int *below, int *above)
{
	*below = *above = 0;
	for (int i = 0; i < c->profile->times_count; i++) {
		const struct hspmd_profile_times *e = &c->profile->times[i];
		if (strcmp(e->device_type, type))
			continue;
		if (e->tp <= 1 / share + 1e-9 && e->tp > *below)
			*below = e->tp;
		if (e->tp >= 1 / share - 1e-9 && (!*above || e->tp < *above))
			*above = e->tp;
	}
}

static double from_profile(const struct hspmd_costs *c, const char *type, int below, int above, double share, int mb, enum column column, int layer)
{
	if (below == above || !below || !above) {
		int tp = below ? below : above;
		double t = over_micro_batch(c, type, tp, mb, column, layer);
		return below == above ? t : t * share * tp; /* beyond what was measured: in proportion to the work */
	}
	double a = over_micro_batch(c, type, below, mb, column, layer), b = over_micro_batch(c, type, above, mb, column, layer);
	double part = (1.0 / below - share) / (1.0 / below - 1.0 / above);
	return a + (b - a) * part;
}

static bool was_measured(const struct hspmd_costs *c, const char *type, int tp, int micro_batch)
{
	for (int i = 0; i < c->profile->times_count; i++) {
		const struct hspmd_profile_times *e = &c->profile->times[i];
		if (e->tp == tp && e->micro_batch == micro_batch && !strcmp(e->device_type, type))
			return true;
	}
	return false;
}

/* Fill from the profile; false when it has nothing on the type. */
static bool fill_profile(struct hspmd_costs *c, struct hspmd_layer_times *t)
{
	const char *type = c->cluster->types[t->type].name;
	int below = 0, above = 0;
	if (!c->profile)
		return false;
	degrees_around(c, type, t->share, &below, &above);
	if (!below && !above)
		return false;
	double memory_rate = c->cluster->types[t->type].gbytes_per_s * 1e9;
	for (int l = 0; l < c->layer_count; l++) {
		const struct hspmd_layer_fact *f = &c->layers[l];
		double forward = from_profile(c, type, below, above, t->share, t->micro_batch, FORWARD, l);
		double backward = from_profile(c, type, below, above, t->share, t->micro_batch, BACKWARD, l);
		double optimizer = from_profile(c, type, below, above, t->share, t->micro_batch, OPTIMIZER, l);
		t->forward[l + 1] = forward;
		t->backward[l + 1] = isnan(backward) ? 2 * forward : backward;
		t->optimizer[l + 1] = !isnan(optimizer) ? optimizer
			: memory_rate > 0 ? f->params * t->share * HSPMD_ADAM_BYTES / memory_rate : 0;
		for (int k = 0; k < HSPMD_RECOMPUTE_KINDS; k++)
			t->rerun[k][l + 1] = forward * f->rerun[k];
	}
	int tp = (int)lround(1 / t->share);
	if (fabs(tp * t->share - 1) > 1e-9)
		hspmd_costs_warn(c, "%s: unequal shards interpolated over the profile's tensor-parallel degrees", type);
	else if (!was_measured(c, type, tp, t->micro_batch))
		hspmd_costs_warn(c, "%s: tp %d, micro-batch %d is not in the profile: interpolated", type, tp, t->micro_batch);
	t->measured = true;
	return true;
}

const struct hspmd_layer_times *hspmd_costs_times(struct hspmd_costs *c, int type, double share, int micro_batch, struct hspmd_error *err)
{
	if (c->times_size)
		for (size_t s = slot_of(c, type, share, micro_batch); c->times[s]; s = (s + 1) & (c->times_size - 1))
			if (c->times[s]->type == type && c->times[s]->share == share && c->times[s]->micro_batch == micro_batch)
				return c->times[s];
	struct hspmd_layer_times *t = times_new(c->layer_count);
	if (!t) {
		hspmd_fail_memory(err, "computing layer times");
		return NULL;
	}
	t->type = type;
	t->share = share;
	t->micro_batch = micro_batch;
	if (!fill_profile(c, t) && fill_roofline(c, t, err)) {
		hspmd_layer_times_destroy(t);
		return NULL;
	}
	if (!c->profile || t->measured || c->model)
		goto sum;
	hspmd_fail(err, "the profile has no times for device type %s and no model is given to compute them from", c->cluster->types[type].name);
	hspmd_layer_times_destroy(t);
	return NULL;
sum:;
	double *columns[3 + HSPMD_RECOMPUTE_KINDS] = { t->forward, t->backward, t->optimizer };
	memcpy(columns + 3, t->rerun, sizeof t->rerun);
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
