/* SPDX-License-Identifier: Apache-2.0 */
/* All that one device measures. The result:
 *   device     its number
 *   layers     [{ tp, micro_batch, seconds: [[forward, backward, optimizer] of embedding, block, head] }]
 *   kept       bytes of a sample kept from forward to backward, whole layers: [embedding, block, head], or null
 *   links      [{ to: device, points: [[bytes, seconds], ...] }], from the device that led
 *   notes      what could not be measured and why
 *
 * Devices of a type on a node agree on every trial: what each can do, and how long it takes the slowest. Nodes do not wait for one another
 * before the links. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "runtime/measure/measure.h"

#define AGREE_TAG (HSPMD_TAG_LIMIT - 3072)
#define ROUND_TAG (HSPMD_TAG_LIMIT - 3328)

/* Of the time there is, what links may take; the rest is for layers. */
#define LINKS_SHARE 0.3
#define PAIR_S 2.0 /* at most, and what a pair needs to be measured well */

#define STEPS_MIN 3
#define STEPS_MAX 15

struct session {
	const struct hspmd_measure_place *place;
	const struct hspmd_measure_wishes *wishes;
	int *peers;                          /* devices of this type on this node, ascending */
	int peer_count, self;                /* which peer */
	double until;                        /* of the layers */
	double step_s[HSPMD_MEASURE_WISHES]; /* by tp: of the last trial, 0: none; negative: no larger one */
	int step_of[HSPMD_MEASURE_WISHES];   /* its micro-batch */
	json_t *layers, *links, *notes, *kept;
};

static int find_peers(struct session *s, struct hspmd_error *err)
{
	const struct hspmd_cluster *c = s->place->cluster;
	const struct hspmd_device_at *own = &c->devices[s->place->device];
	const struct hspmd_node *node = &c->nodes[own->node];
	s->peers = hspmd_calloc((size_t)node->device_count, sizeof *s->peers);
	if (!s->peers)
		return hspmd_fail_memory(err, "measuring");
	for (int d = node->first_device; d < node->first_device + node->device_count; d++)
		if (c->devices[d].type == own->type) {
			if (d == s->place->device)
				s->self = s->peer_count;
			s->peers[s->peer_count++] = d;
		}
	return 0;
}

/* The largest of all peers' values. */
static int agree(struct session *s, double *value, struct hspmd_error *err)
{
	if (s->peer_count == 1)
		return 0;
	double *all = hspmd_calloc((size_t)s->peer_count, sizeof *all);
	int rv = all ? hspmd_transport_gather(s->place->transport, s->peers, s->peer_count, AGREE_TAG, value, sizeof *value, all, err)
	             : hspmd_fail_memory(err, "measuring");
	for (int i = 0; !rv && i < s->peer_count; i++)
		*value = fmax(*value, all[i]);
	free(all);
	return rv;
}

static void note(struct session *s, int tp, int micro_batch, const char *why)
{
	char text[HSPMD_ERROR_MAX + 64];
	snprintf(text, sizeof text, "tp %d, micro-batch %d: %s", tp, micro_batch, why);
	json_array_append_new(s->notes, json_string(text));
}

/* ---- layers */

static int keep_result(struct session *s, const struct hspmd_trial *t, int tp, int micro_batch, struct hspmd_error *err)
{
	struct hspmd_trial_result r;
	json_t *seconds = json_array();
	if (hspmd_trial_result(t, &r, err)) {
		json_decref(seconds);
		return -1;
	}
	int bad = !seconds;
	for (int k = 0; k < HSPMD_LAYER_KIND_COUNT; k++)
		bad |= json_array_append_new(seconds, json_pack("[f,f,f]", r.seconds[k][0], r.seconds[k][1], r.seconds[k][2]));
	json_t *row = json_pack("{si,si,so}", "tp", tp, "micro_batch", micro_batch, "seconds", seconds);
	bad |= !row || json_array_append_new(s->layers, row);
	if (tp == 1 && !s->kept) {
		s->kept = json_pack("[f,f,f]", r.kept_bytes[0], r.kept_bytes[1], r.kept_bytes[2]);
		bad |= !s->kept;
	}
	return bad ? hspmd_fail_memory(err, "measuring layers") : 0;
}

/* Run as many steps as there is time for. The first is cold, the second tells how long one takes. */
static int run_steps(struct session *s, struct hspmd_trial *t, double allotted, double *step_s, struct hspmd_error *err)
{
	double took[2] = { 0 };
	for (int i = 0; t && i < 2; i++)
		if (hspmd_trial_step(t, &took[i], err))
			return -1;
	double spent = took[0] + took[1];
	*step_s = took[1];
	if (agree(s, &spent, err) || agree(s, step_s, err))
		return -1;
	double more = *step_s > 0 ? (allotted - spent) / *step_s : 0;
	int steps = more < STEPS_MIN ? STEPS_MIN : more > STEPS_MAX ? STEPS_MAX : (int)more;
	for (int i = 0; t && i < steps; i++)
		if (hspmd_trial_step(t, &took[0], err))
			return -1;
	return 0;
}

static int run_trial(struct session *s, int which, int micro_batch, double allotted, struct hspmd_error *err)
{
	int tp = s->wishes->tps[which], first = s->self / tp * tp;
	bool takes_part = first + tp <= s->peer_count;
	struct hspmd_error why = { "" };
	struct hspmd_trial *t = takes_part ? hspmd_trial_create(s->place, s->peers + first, tp, micro_batch, &why) : NULL;
	double failed = takes_part && !t;
	int rv = agree(s, &failed, err);
	if (!rv && failed > 0) {
		if (takes_part && !t)
			note(s, tp, micro_batch, why.text);
		s->step_s[which] = -1;
	} else if (!rv) {
		rv = run_steps(s, t, allotted, &s->step_s[which], err);
		s->step_of[which] = micro_batch;
		if (!rv && t)
			rv = keep_result(s, t, tp, micro_batch, err);
	}
	hspmd_trial_destroy(t);
	return rv;
}

/* Whether to try this one, by what the last micro-batch of the same group took; everyone comes to the same answer. */
static int has_time(struct session *s, int which, int micro_batch, int left, double *allotted, struct hspmd_error *err)
{
	double late = hspmd_now() - s->until, last = s->step_s[which];
	if (s->wishes->tps[which] > s->peer_count || last < 0)
		return 0;
	if (agree(s, &late, err))
		return -1;
	double steps = STEPS_MIN + 2, expected = last > 0 ? steps * last * micro_batch / s->step_of[which] : 0;
	*allotted = fmax(-late, 0) / left;
	if (late < 0 && expected <= -late)
		return 1;
	if (last > 0) {
		note(s, s->wishes->tps[which], micro_batch, "left out for lack of time (--budget)");
		s->step_s[which] = -1;
		return 0;
	}
	return 1; /* the smallest is measured whatever it takes */
}

static int measure_layers(struct session *s, struct hspmd_error *err)
{
	const struct hspmd_measure_wishes *w = s->wishes;
	int tps = 0;
	for (int i = 0; i < w->tp_count; i++)
		tps += w->tps[i] <= s->peer_count;
	int left = tps * w->micro_batch_count;
	for (int m = 0; m < w->micro_batch_count; m++)
		for (int i = 0; i < tps; i++, left--) {
			double allotted;
			int go = has_time(s, i, w->micro_batches[m], left, &allotted, err);
			if (go < 0 || (go && run_trial(s, i, w->micro_batches[m], allotted, err)))
				return -1;
		}
	return 0;
}

/* ---- links */

static int keep_points(struct session *s, const struct hspmd_pair *pair, double (*points)[2], int count, struct hspmd_error *err)
{
	json_t *list = json_array();
	int bad = !list;
	for (int i = 0; i < count; i++)
		bad |= json_array_append_new(list, json_pack("[f,f]", points[i][0], points[i][1]));
	json_t *row = json_pack("{si,so}", "to", pair->to, "points", list);
	bad |= !row || json_array_append_new(s->links, row);
	return bad ? hspmd_fail_memory(err, "measuring links") : 0;
}

/* Everybody waits for everybody, so that pairs of different rounds do not disturb one another. */
static int end_round(struct session *s, struct hspmd_error *err)
{
	size_t n = (size_t)s->place->cluster->device_count;
	char own = 0, *all = hspmd_calloc(n, 1);
	int rv = all ? hspmd_transport_gather(s->place->transport, NULL, (int)n, ROUND_TAG, &own, 1, all, err)
	             : hspmd_fail_memory(err, "measuring links");
	free(all);
	return rv;
}

static int measure_links(struct session *s, double seconds, struct hspmd_error *err)
{
	struct hspmd_pair *pairs;
	int count = hspmd_measure_pairs(s->place->cluster, &pairs, err), self = s->place->device, rv = count < 0 ? -1 : 0;
	int rounds = count > 0 ? pairs[count - 1].round + 1 : 0;
	double each = rounds ? fmin(PAIR_S, seconds / rounds) : 0;
	if (rounds)
		rv = end_round(s, err);
	for (int round = 0, i = 0; !rv && round < rounds; round++) {
		for (; !rv && i < count && pairs[i].round == round; i++) {
			double points[HSPMD_MEASURE_POINTS][2];
			if (pairs[i].from != self && pairs[i].to != self)
				continue;
			int n = hspmd_measure_pair(s->place, &pairs[i], each, points, err);
			rv = n < 0 ? -1 : n > 0 ? keep_points(s, &pairs[i], points, n, err) : 0;
		}
		if (!rv)
			rv = end_round(s, err);
	}
	if (count >= 0)
		free(pairs);
	return rv;
}

/* ---- all of it */

json_t *hspmd_measure_device(const struct hspmd_measure_place *place, const struct hspmd_measure_wishes *wishes, struct hspmd_error *err)
{
	struct session s = { .place = place, .wishes = wishes, .layers = json_array(), .links = json_array(), .notes = json_array() };
	double links = place->cluster->device_count > 1 ? LINKS_SHARE * wishes->budget_s : 0;
	json_t *result = NULL;
	s.until = hspmd_now() + wishes->budget_s - links;
	int rv = s.layers && s.links && s.notes ? find_peers(&s, err) : hspmd_fail_memory(err, "measuring");
	if (!rv)
		rv = measure_layers(&s, err);
	if (!rv && place->transport)
		rv = measure_links(&s, links, err);
	if (!rv) {
		result = json_pack("{si,sO,sO,sO,so}", "device", place->device, "layers", s.layers, "links", s.links, "notes", s.notes,
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
