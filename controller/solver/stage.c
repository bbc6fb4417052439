/* SPDX-License-Identifier: Apache-2.0 */
/* What one micro-batch costs on one stage.
 *
 * A group runs at the pace of its slowest device: devices differ in type, share and slowdown. Layers that were measured bring their
 * tensor-parallel communication along; computed ones, and groups that span nodes, add two all-reduces forward and two backward a block
 * (Megatron-LM, arXiv 1909.08053).
 */
#include "controller/solver/costs.h"

#include <math.h>

#include "controller/solver/physics.h"

double hspmd_stage_share(const struct hspmd_stage *s, int which)
{
	int tp = s->device_count / s->context;
	return s->shard_ratio ? s->shard_ratio[which % tp] : 1.0 / tp;
}

double hspmd_stage_part(const struct hspmd_stage *s, int which)
{
	int tp = s->device_count / s->context;
	return s->context_ratio ? s->context_ratio[which / tp] : 1.0 / s->context;
}

/* Expected maximum of n standard normal draws, after Blom (1958): the quantile of (n - 0.375) / (n + 0.25), by Newton's method on the
 * normal distribution. */
static double expected_maximum(int n)
{
	double p = (n - 0.375) / (n + 0.25), x = 0;
	if (n < 2)
		return 0;
	for (int i = 0; i < 50; i++) {
		double step = (0.5 * erfc(-x / M_SQRT2) - p) / (exp(-x * x / 2) / sqrt(2 * M_PI));
		x -= step;
		if (fabs(step) < 1e-12)
			break;
	}
	return x;
}

static double remembered_maximum(struct hspmd_costs *c, int n)
{
	if (n > HSPMD_MAX_TP)
		return expected_maximum(n);
	if (n > 1 && !(c->variation[n] > 0))
		c->variation[n] = expected_maximum(n);
	return c->variation[n];
}

double hspmd_variation(struct hspmd_costs *c, int devices, int group)
{
	if (devices != c->last_devices) {
		c->last_devices = devices;
		c->last_maximum = remembered_maximum(c, devices);
	}
	return 1 + HSPMD_DEVICE_DEVIATION * (c->last_maximum - remembered_maximum(c, group));
}

static bool in_one_node(const struct hspmd_cluster *c, const struct hspmd_stage *s)
{
	for (int i = 1; i < s->device_count; i++)
		if (c->devices[s->devices[i]].node != c->devices[s->devices[0]].node)
			return false;
	return true;
}

/* Seconds of one pass's all-reduces for a micro-batch: two a layer, each of half the bytes. */
static double communication(struct hspmd_costs *c, const struct hspmd_stage *s, int micro_batch, struct hspmd_error *err)
{
	double seconds = 0, known_bytes = -1, known = 0;
	for (int l = s->layers[0]; l < s->layers[1]; l++) {
		double bytes = c->layers[l].reduced_bytes * micro_batch / s->context;
		if (bytes != known_bytes) {
			known = hspmd_costs_all_reduce(c, s->devices, s->device_count / s->context, bytes / 2, err);
			known_bytes = bytes;
		}
		if (known < 0)
			return -1;
		seconds += 2 * known;
	}
	return seconds;
}

int hspmd_costs_stage(struct hspmd_costs *c, const struct hspmd_stage *s, int micro_batch, struct hspmd_stage_cost *out, struct hspmd_error *err)
{
	bool inside = in_one_node(c->cluster, s), measured = inside;
	int a = s->layers[0], b = s->layers[1];
	*out = (struct hspmd_stage_cost){ 0 };
	for (int i = 0; i < s->device_count; i++) {
		const struct hspmd_device_at *d = &c->cluster->devices[s->devices[i]];
		const struct hspmd_layer_times *t = hspmd_costs_times(c, d->type, hspmd_stage_share(s, i), micro_batch, err);
		if (!t)
			return -1;
		const double *rerun = t->rerun[s->recompute];
		double slow = c->cluster->nodes[d->node].slowdown, part = slow * hspmd_stage_part(s, i);
		out->forward = fmax(out->forward, part * (t->forward[b] - t->forward[a]));
		out->backward = fmax(out->backward, part * (t->backward[b] - t->backward[a] + rerun[b] - rerun[a]));
		out->optimizer = fmax(out->optimizer, slow * (t->optimizer[b] - t->optimizer[a]));
		measured = measured && t->measured;
	}
	if (s->device_count == s->context || measured)
		return 0;
	double seconds = communication(c, s, micro_batch, err);
	if (seconds < 0)
		return -1;
	out->forward += seconds;
	out->backward += seconds * (s->recompute == HSPMD_RECOMPUTE_FULL ? 2 : 1);
	return 0;
}
