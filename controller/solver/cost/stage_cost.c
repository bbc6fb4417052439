/* SPDX-License-Identifier: Apache-2.0 */
/* Cost of one micro-batch on one stage.
 *
 * A group runs at the pace of its slowest device: devices differ in type, share and slowdown. Layer times that were measured in a group
 * contain its all-reduces within a node. Otherwise the messages of each pass are added, two sums for each transformer block (Megatron-LM,
 * arXiv 1909.08053) or, with sequence parallelism, their halves (2205.05198), and rows of experts; for groups that span nodes, only what
 * these take longer there. Context groups gather keys and values before attention, and sum their gradients after it. Offloaded activations
 * are copied while the layer behind computes. */
#include "controller/solver/cost/costs.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/expert_rows.h"
#include "controller/solver/cost/cost_constants.h"

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

/* Returns true if every tensor-parallel group of the stage is within one node. */
static bool in_one_node(const struct hspmd_cluster *c, const struct hspmd_stage *s)
{
	int tp = s->device_count / s->context;
	for (int i = 0; i < s->device_count; i++)
		if (c->devices[s->devices[i]].node != c->devices[s->devices[i / tp * tp]].node)
			return false;
	return true;
}

/* Which part of a layer's work a stage does: a pass, or what its recomputation repeats. */
enum stage_pass { FORWARD, BACKWARD, AGAIN };

static const struct hspmd_layer_pass *pass_of(const struct hspmd_costs *c, const struct hspmd_stage *s, int l, enum stage_pass pass)
{
	const struct hspmd_layer_info *f = &c->layers[l];
	return pass == FORWARD ? &f->forward : pass == BACKWARD ? &f->backward : &f->again[s->recompute];
}

static const struct hspmd_facts_messages *messages_of(const struct hspmd_costs *c, const struct hspmd_stage *s, int l, enum stage_pass pass)
{
	return &pass_of(c, s, l, pass)->messages[s->sequence_parallel];
}

/* Seconds of one message of experts' rows in the tensor-parallel group that begins with device `first`. bytes: of all rows. -1 with err. */
static double send_experts(struct hspmd_costs *c, const struct hspmd_stage *s, int first, const struct hspmd_facts_tensors *of,
                           double bytes, struct hspmd_error *err)
{
	int tp = s->device_count / s->context;
	double *parts = hspmd_calloc((size_t)tp, sizeof *parts), before = 0; /* whole experts: bounds are rounded to the nearest */
	for (int i = 0; parts && i < tp; i++) {
		double after = before + hspmd_stage_share(s, first + i) * of->experts;
		parts[i] = bytes * hspmd_expert_row_share((int64_t)(floor(after + 0.5) - floor(before + 0.5)), of->experts, of->per_token);
		before = after;
	}
	double seconds = parts ? hspmd_costs_experts(c, s->devices + first, tp, of->kind, parts, bytes, err)
	                       : hspmd_fail_memory(err, "predicting a stage");
	free(parts);
	return seconds;
}

/* Seconds in which the group gathers its devices' shares of a tensor. -1 with err. */
static double gather_shares(struct hspmd_costs *c, const struct hspmd_stage *s, int first, double bytes, struct hspmd_error *err)
{
	int tp = s->device_count / s->context;
	double *parts = hspmd_calloc((size_t)tp, sizeof *parts);
	for (int i = 0; parts && i < tp; i++)
		parts[i] = bytes * hspmd_stage_share(s, first + i);
	double seconds =
	        parts ? hspmd_costs_gather(c, s->devices + first, 1, tp, parts, err) : hspmd_fail_memory(err, "predicting a stage");
	free(parts);
	return seconds;
}

/* Seconds of a message that is not of experts' rows. Without sequence parallelism all that is gathered is divided as weights are. */
static double send_one(struct hspmd_costs *c, const struct hspmd_stage *s, int first, const struct hspmd_facts_tensors *of, double bytes,
                       struct hspmd_error *err)
{
	bool shares = s->shard_ratio && of->kind == HSPMD_FACTS_GATHERED && (of->by_share || !s->sequence_parallel);
	return shares ? gather_shares(c, s, first, bytes, err)
	              : hspmd_costs_collective(c, s->devices + first, s->device_count / s->context, of->kind, bytes, err);
}

/* Returns true if all devices of the stage send the message together. */
static bool is_by_all(const struct hspmd_stage *s, const struct hspmd_facts_tensors *of)
{
	return of->by_all && s->sequence_parallel && s->context > 1 && s->device_count > s->context;
}

/* Seconds in which all devices of the stage gather their parts of the sequence. -1 with err. */
static double gather_by_all(struct hspmd_costs *c, const struct hspmd_stage *s, double bytes, struct hspmd_error *err)
{
	int n = s->device_count, tp = n / s->context;
	double *parts = hspmd_calloc((size_t)n, sizeof *parts);
	for (int i = 0; parts && i < n; i++)
		parts[i] = bytes * hspmd_stage_context_share(s, i) / tp;
	double seconds = parts ? hspmd_costs_gather(c, s->devices, 1, n, parts, err) : hspmd_fail_memory(err, "predicting a stage");
	free(parts);
	return seconds;
}

/* Seconds of what all devices of the stage gather together in one pass. -1 with err. */
static double gathering_by_all(struct hspmd_costs *c, const struct hspmd_stage *s, int micro_batch, enum stage_pass pass,
                               struct hspmd_error *err)
{
	double seconds = 0;
	for (int l = s->layers[0]; l < s->layers[1]; l++) {
		const struct hspmd_facts_messages *m = messages_of(c, s, l, pass);
		for (int i = 0; i < m->count; i++) {
			double each = is_by_all(s, &m->of[i]) ? gather_by_all(c, s, micro_batch * m->of[i].bytes, err) : 0;
			if (each < 0)
				return -1;
			seconds += m->of[i].count * each;
		}
	}
	return seconds;
}

/* Seconds of all messages of a layer in that group; `scale`: samples of a micro-batch. -1 with err. */
static double send_all(struct hspmd_costs *c, const struct hspmd_stage *s, int first, const struct hspmd_facts_messages *of, double scale,
                       struct hspmd_error *err)
{
	double sum = 0;
	for (int i = 0; i < of->count; i++) {
		const struct hspmd_facts_tensors *tensors = &of->of[i];
		double bytes = scale * tensors->bytes;
		double each = is_by_all(s, tensors) ? 0
		              : tensors->experts    ? send_experts(c, s, first, tensors, bytes, err)
		                                    : send_one(c, s, first, tensors, bytes, err);
		if (each < 0)
			return -1;
		sum += tensors->count * each;
	}
	return sum;
}

/* The bytes of as many all-reduces. */
static double reduced_bytes(const struct hspmd_facts_messages *m)
{
	return hspmd_facts_messages_bytes(m, HSPMD_FACTS_REDUCED) +
	       (hspmd_facts_messages_bytes(m, HSPMD_FACTS_SCATTERED) + hspmd_facts_messages_bytes(m, HSPMD_FACTS_GATHERED)) / 2;
}

/* Seconds of one pass's messages for a micro-batch, in the slowest of the stage's tensor-parallel groups. Only the time beyond `per_byte`
 * counts. Returns -1 with err if there is no link. */
static double communication(struct hspmd_costs *c, const struct hspmd_stage *s, int micro_batch, enum stage_pass pass, double per_byte,
                            struct hspmd_error *err)
{
	int tp = s->device_count / s->context;
	double slowest = 0;
	for (int group = 0; group < s->context; group++) {
		double seconds = 0, known = 0, scale = micro_batch * hspmd_stage_context_share(s, group * tp);
		const struct hspmd_facts_messages *last = NULL;
		for (int l = s->layers[0]; l < s->layers[1]; l++) {
			const struct hspmd_facts_messages *m = messages_of(c, s, l, pass);
			if ((!last || !hspmd_facts_messages_equal(m, last)) && (known = send_all(c, s, group * tp, m, scale, err)) < 0)
				return -1;
			last = m;
			seconds += fmax(known - per_byte * scale * reduced_bytes(m), 0);
		}
		slowest = fmax(slowest, seconds);
	}
	return slowest;
}

/* Seconds of a message of `bytes` among the devices of all context groups that hold share `which`. -1 with err. */
static double send_between_groups(struct hspmd_costs *c, const struct hspmd_stage *s, int which, enum hspmd_facts_message kind,
                                  double bytes, struct hspmd_error *err)
{
	int tp = s->device_count / s->context, *members = hspmd_calloc((size_t)s->context, sizeof *members);
	double *parts = hspmd_calloc((size_t)s->context, sizeof *parts), seconds = -1;
	for (int g = 0; members && parts && g < s->context; g++) {
		members[g] = s->devices[which + g * tp];
		parts[g] = bytes * hspmd_stage_context_share(s, g * tp);
	}
	if (!members || !parts)
		hspmd_fail_memory(err, "predicting a stage");
	else if (s->context_ratio && kind != HSPMD_FACTS_REDUCED)
		seconds = hspmd_costs_gather(c, members, 1, s->context, parts, err);
	else
		seconds = hspmd_costs_collective(c, members, s->context, kind, bytes, err);
	free(members);
	free(parts);
	return seconds;
}

/* Seconds of a layer's messages between context groups in one pass. -1 with err. */
static double send_in_context(struct hspmd_costs *c, const struct hspmd_stage *s, const struct hspmd_facts_messages *of, int micro_batch,
                              struct hspmd_error *err)
{
	double slowest = 0;
	for (int which = 0; which < s->device_count / s->context; which++) {
		double sum = 0;
		for (int i = 0; i < of->count; i++) {
			double bytes = micro_batch * of->of[i].bytes * (of->of[i].whole ? 1 : hspmd_stage_share(s, which));
			double each = is_by_all(s, &of->of[i]) ? 0 : send_between_groups(c, s, which, of->of[i].kind, bytes, err);
			if (each < 0)
				return -1;
			sum += of->of[i].count * each;
		}
		slowest = fmax(slowest, sum);
	}
	return slowest;
}

/* Seconds of one pass in which a context group gathers keys and values or, backward, sums their gradients: each device of the
 * tensor-parallel group communicates with the devices of the other groups that hold the same share. Returns -1 with err if there is no
 * link. */
static double gathering(struct hspmd_costs *c, const struct hspmd_stage *s, int micro_batch, enum stage_pass pass, struct hspmd_error *err)
{
	double seconds = 0, known = 0;
	const struct hspmd_facts_messages *last = NULL;
	for (int l = s->layers[0]; l < s->layers[1]; l++) {
		const struct hspmd_facts_messages *m = &pass_of(c, s, l, pass)->context;
		if ((!last || !hspmd_facts_messages_equal(m, last)) && (known = send_in_context(c, s, m, micro_batch, err)) < 0)
			return -1;
		last = m;
		seconds += known;
	}
	return seconds;
}

/* Seconds of all messages within the stage in one pass; -1 with err. */
static double messages(struct hspmd_costs *c, const struct hspmd_stage *s, int micro_batch, enum stage_pass pass, bool sums,
                       double per_byte, struct hspmd_error *err)
{
	double summed = sums ? communication(c, s, micro_batch, pass, per_byte, err) : 0;
	double gathered = s->context > 1 ? gathering(c, s, micro_batch, pass, err) : 0;
	double by_all = s->context > 1 && s->sequence_parallel ? gathering_by_all(c, s, micro_batch, pass, err) : 0;
	return summed < 0 || gathered < 0 || by_all < 0 ? -1 : summed + gathered + by_all;
}

/* Seconds of a layer's pass on device `which`, without messages. */
static double layer_seconds(const struct hspmd_layer_times *t, const struct hspmd_stage *s, int l, bool backward, double part)
{
	const double *again = t->recompute_s[s->recompute], *pass = backward ? t->backward : t->forward;
	return part * (pass[l + 1] - pass[l] + (backward ? again[l + 1] - again[l] : 0));
}

/* Add the seconds by which copies of offloaded activations exceed what the device computes beside them (offload_activations.c). A layer's
 * go to the host's memory during the next layer's forward pass, and come back during its backward pass. The last layer's do so during its
 * own pass in the other direction; the sum of both is the same. part: of the layers' times that the device has. */
static void add_copies(const struct hspmd_costs *c, const struct hspmd_stage *s, int which, int micro_batch,
                       const struct hspmd_layer_times *t, double part, double waits[2])
{
	const struct hspmd_device_share device = hspmd_stage_device(c, s, which);
	double rate = 1e9 * c->cluster->types[t->type].host.gbytes_per_s;
	for (int l = s->layers[0]; rate > 0 && l < s->layers[1]; l++) {
		double copy = micro_batch * hspmd_stage_offloaded(c, s, l, &device).all / rate;
		for (int backward = 0; copy > 0 && backward < 2; backward++) {
			int beside = l + 1 < s->layers[1] ? l + 1 : l;
			waits[backward] += fmax(0, copy - layer_seconds(t, s, beside, backward, part));
		}
	}
}

static int cost_stage(struct hspmd_costs *c, const struct hspmd_stage *s, int micro_batch, struct hspmd_stage_cost *out,
                      struct hspmd_error *err)
{
	bool reduced = true;
	double per_byte = 0;
	int a = s->layers[0], b = s->layers[1];
	*out = (struct hspmd_stage_cost){ 0 };
	for (int i = 0; i < s->device_count; i++) {
		const struct hspmd_cluster_device *d = &c->cluster->devices[s->devices[i]];
		const struct hspmd_layer_times *t =
		        hspmd_costs_times(c, d->type, hspmd_stage_share(s, i), s->sequence_parallel, micro_batch, err);
		if (!t)
			return -1;
		const double *recompute_s = t->recompute_s[s->recompute];
		double slow = c->cluster->nodes[d->node].slowdown, part = slow * hspmd_stage_context_share(s, i);
		double waits[2] = { 0 };
		if (s->offload_activations)
			add_copies(c, s, i, micro_batch, t, part, waits);
		out->forward = fmax(out->forward, part * (t->forward[b] - t->forward[a]) + waits[0]);
		out->backward = fmax(out->backward, part * (t->backward[b] - t->backward[a] + recompute_s[b] - recompute_s[a]) + waits[1]);
		out->optimizer = fmax(out->optimizer, slow * (t->optimizer[b] - t->optimizer[a]));
		if (s->offload)
			out->optimizer =
			        fmax(out->optimizer, slow * hspmd_costs_offloaded_update(c, d->type, hspmd_stage_share(s, i), a, b));
		reduced = reduced && t->reduced;
		per_byte = fmax(per_byte, t->per_byte);
	}
	bool sums = s->device_count > s->context && !(reduced && in_one_node(c->cluster, s));
	double seconds[3];
	for (int pass = FORWARD; pass <= AGAIN; pass++)
		if ((seconds[pass] = messages(c, s, micro_batch, (enum stage_pass)pass, sums, reduced ? per_byte : 0, err)) < 0)
			return -1;
	out->forward += seconds[FORWARD];
	out->backward += seconds[BACKWARD] + seconds[AGAIN];
	out->group_comm = seconds[FORWARD] + seconds[BACKWARD] + seconds[AGAIN];
	return 0;
}

/* ---- stages that were costed */

/* All that the cost of an evenly divided stage in one node depends on, if links are not given for single nodes. */
struct stage_key {
	double slowdown;
	int layers[2], device_count, type, context, micro_batch;
	int kept; /* how it keeps what forward passes save, and the optimizer's state */
};

/* A table in which each stage has one place, by a hash of its key. One that comes to a place takes it. device_count 0: free. */
struct hspmd_costed_stage {
	struct stage_key key;
	struct hspmd_stage_cost cost;
};

#define PLACES 2048

/* Returns false if the stage has no key. */
static bool find_key(const struct hspmd_costs *c, const struct hspmd_stage *s, int micro_batch, struct stage_key *key)
{
	const struct hspmd_cluster_device *first = &c->cluster->devices[s->devices[0]];
	if (s->shard_ratio || s->context_ratio || hspmd_cluster_names_nodes(c->cluster))
		return false;
	for (int i = 1; i < s->device_count; i++) {
		const struct hspmd_cluster_device *d = &c->cluster->devices[s->devices[i]];
		if (d->node != first->node || d->type != first->type)
			return false;
	}
	*key = (struct stage_key){ .slowdown = c->cluster->nodes[first->node].slowdown,
		                   .layers = { s->layers[0], s->layers[1] },
		                   .device_count = s->device_count,
		                   .type = first->type,
		                   .context = s->context,
		                   .micro_batch = micro_batch,
		                   .kept = ((int)s->recompute * 2 + s->sequence_parallel) * 2 + (s->offload != HSPMD_OFFLOAD_NONE) };
	key->kept += s->offload_activations * 4 * HSPMD_RECOMPUTE_KINDS;
	return true;
}

static bool is_key(const struct stage_key *a, const struct stage_key *b)
{
	return a->slowdown == b->slowdown && a->layers[0] == b->layers[0] && a->layers[1] == b->layers[1] &&
	       a->device_count == b->device_count && a->type == b->type && a->context == b->context && a->micro_batch == b->micro_batch &&
	       a->kept == b->kept;
}

static size_t place_of(const struct stage_key *k)
{
	const int parts[] = { k->layers[0], k->layers[1], k->device_count, k->type, k->context, k->micro_batch, k->kept };
	uint64_t hash = 0;
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		hash = (hash ^ (uint64_t)parts[i]) * UINT64_C(0x9e3779b97f4a7c15);
	return (hash >> 32) % PLACES;
}

/* The stage's cost, if these costs know it; NULL: they do not. */
static const struct hspmd_stage_cost *find_stage(const struct hspmd_costs *c, const struct stage_key *key, size_t place)
{
	const struct hspmd_costed_stage *known = c->costed_stages ? &c->costed_stages[place] : NULL;
	return known && is_key(&known->key, key) ? &known->cost : NULL;
}

int hspmd_costs_stage(struct hspmd_costs *c, const struct hspmd_stage *s, int micro_batch, struct hspmd_stage_cost *out,
                      struct hspmd_error *err)
{
	struct stage_key key;
	if (!c->costed_stages)
		c->costed_stages = hspmd_calloc(PLACES, sizeof *c->costed_stages);
	if (!c->costed_stages || !find_key(c, s, micro_batch, &key))
		return cost_stage(c, s, micro_batch, out, err);
	size_t place = place_of(&key);
	const struct hspmd_stage_cost *known = find_stage(c, &key, place);
	known = known || !c->base ? known : find_stage(c->base, &key, place);
	if (known) {
		*out = *known;
		return 0;
	}
	if (cost_stage(c, s, micro_batch, out, err))
		return -1;
	c->costed_stages[place] = (struct hspmd_costed_stage){ key, *out };
	return 0;
}
