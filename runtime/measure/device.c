/* SPDX-License-Identifier: Apache-2.0 */
/* The measurements of one device. The result:
 *   device     its number
 *   layers     [{ tp, micro_batch, seconds: [[forward, backward, optimizer] of a layer of each kind] }]
 *   kept       bytes per sample kept from forward to backward by a full layer of each kind: [bytes], or null
 *   links      [{ to: device, points: [[bytes, seconds], ...] }], from the first device of the pair
 *   notes      what could not be measured and why
 *
 * Devices of a type on a node agree on every trial: whether all can run it, and the time of the slowest. Nodes do not wait for each other
 * before the links. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "runtime/measure/measure.h"

#define AGREE_TAG (HSPMD_TAG_LIMIT - 3072)
#define ROUND_TAG (HSPMD_TAG_LIMIT - 3328)

/* The share of the remaining time that links may take; the rest is for layers. And the share of the budget that remains for both,
 * however long starting took. */
#define LINKS_SHARE 0.3
#define LEAST_SHARE 0.25
#define PAIR_S 2.0 /* upper limit for one pair, and sufficient for a good measurement */

struct session {
	const struct hspmd_measure_context *context;
	int *peers;                /* devices of this type on this node, ascending */
	int peer_count, self;      /* index of this device among the peers */
	struct hspmd_trial *trial; /* in progress; NULL: none, or this device does not take part */
	json_t *layers, *links, *notes, *kept;
};

static int find_peers(struct session *s, struct hspmd_error *err)
{
	const struct hspmd_cluster *c = s->context->cluster;
	const struct hspmd_cluster_device *own = &c->devices[s->context->device];
	const struct hspmd_node *node = &c->nodes[own->node];
	s->peers = hspmd_calloc((size_t)node->device_count, sizeof *s->peers);
	if (!s->peers)
		return hspmd_fail_memory(err, "measuring");
	for (int d = node->first_device; d < node->first_device + node->device_count; d++)
		if (c->devices[d].type == own->type) {
			if (d == s->context->device)
				s->self = s->peer_count;
			s->peers[s->peer_count++] = d;
		}
	return 0;
}

/* ---- layers */

static double now(void *context)
{
	(void)context;
	return hspmd_now();
}

/* The largest value of all peers. */
static int agree(void *context, double *value, struct hspmd_error *err)
{
	struct session *s = context;
	if (s->peer_count == 1)
		return 0;
	double *all = hspmd_calloc((size_t)s->peer_count, sizeof *all);
	int rv = all ? hspmd_transport_all_gather(s->context->transport, s->peers, s->peer_count, AGREE_TAG, value, sizeof *value, all, err)
	             : hspmd_fail_memory(err, "measuring");
	for (int i = 0; !rv && i < s->peer_count; i++)
		*value = fmax(*value, all[i]);
	free(all);
	return rv;
}

static void note(void *context, int tp, int micro_batch, const char *why)
{
	struct session *s = context;
	char text[HSPMD_ERROR_MAX + 64];
	snprintf(text, sizeof text, "tp %d, micro-batch %d: %s", tp, micro_batch, why);
	json_array_append_new(s->notes, json_string(text));
}

static struct hspmd_trial_estimate estimate(void *context, int tp, int micro_batch)
{
	struct session *s = context;
	return hspmd_trial_estimate(s->context, tp, micro_batch);
}

static int begin(void *context, int tp, int micro_batch, bool *able, struct hspmd_error *err)
{
	struct session *s = context;
	struct hspmd_error why = { "" };
	int first = s->self / tp * tp;
	(void)err;
	*able = true;
	if (first + tp > s->peer_count) /* left over when the peers form groups */
		return 0;
	s->trial = hspmd_trial_create(s->context, s->peers + first, tp, micro_batch, &why);
	if (!s->trial)
		note(s, tp, micro_batch, why.text);
	*able = s->trial;
	return 0;
}

static int step(void *context, double *took, struct hspmd_error *err)
{
	struct session *s = context;
	*took = 0;
	return s->trial ? hspmd_trial_step(s->trial, took, err) : 0;
}

static int store_result(struct session *s, int tp, int micro_batch, struct hspmd_error *err)
{
	int kinds = s->context->facts->kind_count;
	struct hspmd_trial_result *r = hspmd_calloc((size_t)kinds, sizeof *r);
	if (!r)
		return hspmd_fail_memory(err, "measuring layers");
	if (hspmd_trial_result(s->trial, r, err)) {
		free(r);
		return -1;
	}
	json_t *seconds = json_array(), *kept = json_array();
	int bad = !seconds || !kept;
	for (int k = 0; k < kinds; k++) {
		bad |= json_array_append_new(seconds, json_pack("[f,f,f]", r[k].seconds[0], r[k].seconds[1], r[k].seconds[2]));
		bad |= json_array_append_new(kept, json_real(r[k].kept_bytes));
	}
	json_t *row = json_pack("{si,si,so}", "tp", tp, "micro_batch", micro_batch, "seconds", seconds);
	bad |= !row || json_array_append_new(s->layers, row);
	if (tp == 1 && !s->kept)
		s->kept = json_incref(kept);
	json_decref(kept);
	free(r);
	return bad ? hspmd_fail_memory(err, "measuring layers") : 0;
}

static int end(void *context, int tp, int micro_batch, bool keep, struct hspmd_error *err)
{
	struct session *s = context;
	int rv = keep && s->trial ? store_result(s, tp, micro_batch, err) : 0;
	hspmd_trial_destroy(s->trial);
	s->trial = NULL;
	return rv;
}

/* ---- links */

static int store_points(struct session *s, const struct hspmd_link_pair *pair, double (*points)[2], int count, struct hspmd_error *err)
{
	json_t *list = json_array();
	int bad = !list;
	for (int i = 0; i < count; i++)
		bad |= json_array_append_new(list, json_pack("[f,f]", points[i][0], points[i][1]));
	json_t *row = json_pack("{si,so}", "to", pair->to, "points", list);
	bad |= !row || json_array_append_new(s->links, row);
	return bad ? hspmd_fail_memory(err, "measuring links") : 0;
}

/* All devices wait for each other, so that pairs of different rounds do not disturb each other. */
static int end_round(struct session *s, struct hspmd_error *err)
{
	size_t n = (size_t)s->context->cluster->device_count;
	char own = 0, *all = hspmd_calloc(n, 1);
	int rv = all ? hspmd_transport_all_gather(s->context->transport, NULL, (int)n, ROUND_TAG, &own, 1, all, err)
	             : hspmd_fail_memory(err, "measuring links");
	free(all);
	return rv;
}

/* Each round gets an equal part of the time that is left until `until`. */
static int measure_links(struct session *s, double until, struct hspmd_error *err)
{
	struct hspmd_link_pair *pairs;
	int count = hspmd_measure_pairs(s->context->cluster, &pairs, err), self = s->context->device, rv = count < 0 ? -1 : 0;
	int rounds = count > 0 ? pairs[count - 1].round + 1 : 0;
	if (rounds)
		rv = end_round(s, err);
	for (int round = 0, i = 0; !rv && round < rounds; round++) {
		double each = fmin(PAIR_S, fmax(until - hspmd_now(), 0) / (rounds - round));
		for (; !rv && i < count && pairs[i].round == round; i++) {
			double points[HSPMD_MEASURE_POINTS][2];
			if (pairs[i].from != self && pairs[i].to != self)
				continue;
			int n = hspmd_measure_pair(s->context, &pairs[i], each, points, err);
			rv = n < 0 ? -1 : n > 0 ? store_points(s, &pairs[i], points, n, err) : 0;
		}
		if (!rv)
			rv = end_round(s, err);
	}
	if (count >= 0)
		free(pairs);
	return rv;
}

/* ---- all of it */

json_t *hspmd_measure_device(const struct hspmd_measure_context *context, const struct hspmd_measure_options *options,
                             struct hspmd_error *err)
{
	struct session s = { .context = context, .layers = json_array(), .links = json_array(), .notes = json_array() };
	const struct hspmd_trial_ops ops = { &s, now, agree, estimate, begin, step, end, note };
	double here = hspmd_now(), until = fmax(context->began + options->budget_s, here + LEAST_SHARE * options->budget_s);
	double links = context->cluster->device_count > 1 ? LINKS_SHARE * (until - here) : 0;
	json_t *result = NULL;
	int rv = s.layers && s.links && s.notes ? find_peers(&s, err) : hspmd_fail_memory(err, "measuring");
	if (!rv)
		rv = hspmd_measure_trials(&ops, options, s.peer_count, until - links, err);
	if (!rv && context->transport)
		rv = measure_links(&s, until, err);
	if (!rv) {
		result = json_pack("{si,sO,sO,sO,so}", "device", context->device, "layers", s.layers, "links", s.links, "notes", s.notes,
		                   "kept", s.kept ? json_incref(s.kept) : json_null());
		if (!result)
			hspmd_fail_memory(err, "measuring");
	}
	json_decref(s.layers);
	json_decref(s.links);
	json_decref(s.notes);
	json_decref(s.kept);
	free(s.peers);
	return result;
}
