/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/ctld/peers.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/json.h"
#include "common/order.h"

#define CLAIM 2      /* a claim of more than so many times what is accepted is logged */
#define SLACK 1.05   /* a claim may exceed the measurement by this factor: noise */
#define PAUSE_S 60.0 /* bound of pause_s before any resize was measured */
#define FIGURE_MAX 1e100
#define SCALE_MOST 1000.0 /* on one node, the smallest models in use have about so many times the tokens per second of the largest */

int ctld_peers_find(const struct ctld_peers *p, uint32_t job)
{
	for (int i = 0; i < p->count; i++)
		if (p->peers[i].job == job)
			return i;
	return -1;
}

int ctld_peers_hello(struct ctld_peers *p, uint32_t job, uid_t uid)
{
	int at = ctld_peers_find(p, job);
	if (at >= 0) {
		p->peers[at].reachable = true;
		p->histories[at].risk_sent[0] = -1; /* it may be another incarnation, which knows of none */
		p->histories[at].figures_asked = false;
		return at;
	}
	if (hspmd_array_grow(&p->peers, &p->peer_capacity, (size_t)p->count, sizeof *p->peers) < 0 ||
	    hspmd_array_grow(&p->histories, &p->history_capacity, (size_t)p->count, sizeof *p->histories) < 0)
		return -1;
	p->peers[p->count] = (struct ctld_peer){ .job = job,
		                                 .uid = uid,
		                                 .reachable = true,
		                                 .min_nodes = 1,
		                                 .max_nodes = INT_MAX,
		                                 .pause_s = 5,
		                                 .resized_s = -INFINITY,
		                                 .declined_grow_until_s = -INFINITY,
		                                 .declined_shrink_until_s = -INFINITY,
		                                 .wait_until_s = NAN };
	p->histories[p->count] =
	        (struct ctld_peer_history){ .last_s = NAN, .risk_sent = { -1, 0 }, .min_nodes_bound = INT_MAX, .line_s = -INFINITY };
	return p->count++;
}

void ctld_peers_drop(struct ctld_peers *p, int at)
{
	free(p->peers[at].curve);
	p->count--;
	if (at == p->count)
		return;
	p->peers[at] = p->peers[p->count];
	p->histories[at] = p->histories[p->count];
}

void ctld_peers_clear(struct ctld_peers *p)
{
	while (p->count)
		ctld_peers_drop(p, p->count - 1);
	free(p->peers);
	free(p->histories);
	memset(p, 0, sizeof *p);
}

/* ---- state */

static void read_members(struct hspmd_json *obj, struct ctld_peer *p)
{
	struct hspmd_json array = hspmd_json_array_or_none(obj, "members", 0, CTLD_MEMBERS_MAX);
	p->member_count = (int)hspmd_json_length(&array);
	for (int i = 0; i < p->member_count; i++) {
		struct hspmd_json at = hspmd_json_at(&array, (size_t)i);
		p->members[i] = (uint32_t)hspmd_json_int_value(&at, 1, UINT32_MAX);
	}
}

static void read_relative_speed(struct hspmd_json *obj, struct ctld_peer *p)
{
	struct hspmd_json relative_speed = hspmd_json_object_or_none(obj, CTLD_KEY_RELATIVE_SPEED), at;
	const char *name;
	p->kind_count = 0;
	for (size_t i = 0; relative_speed.value && hspmd_json_member(&relative_speed, i, &name, &at); i++) {
		if (i == CTLD_KINDS_MAX || strlen(name) >= sizeof p->kinds[0]) {
			hspmd_json_fail(&relative_speed, "more than %d kinds of nodes, or a longer name than %zu", CTLD_KINDS_MAX,
			                sizeof p->kinds[0] - 1);
			return;
		}
		snprintf(p->kinds[i], sizeof p->kinds[i], "%s", name);
		p->relative_speed[i] = hspmd_json_number_value(&at, 0, 1000);
		p->kind_count++;
	}
}

static bool same_relative_speed(const struct ctld_peer *a, const struct ctld_peer *b)
{
	bool same = a->kind_count == b->kind_count;
	for (int i = 0; same && i < a->kind_count; i++)
		same = !strcmp(a->kinds[i], b->kinds[i]) && a->relative_speed[i] == b->relative_speed[i];
	return same;
}

static void read_curve(struct hspmd_json *obj, struct ctld_peer *p)
{
	struct hspmd_json array = hspmd_json_array_or_none(obj, "curve", 0, CTLD_CURVE_MAX);
	p->curve = NULL;
	p->curve_count = 0;
	size_t n = hspmd_json_length(&array);
	if (!n)
		return;
	p->curve = hspmd_calloc(n, sizeof *p->curve);
	if (!p->curve) {
		hspmd_json_fail_memory(&array);
		return;
	}
	p->curve_count = (int)n;
	for (size_t i = 0; i < n; i++) {
		struct hspmd_json at = hspmd_json_at(&array, i);
		p->curve[i] = hspmd_json_number_value(&at, 0, 1e15);
	}
}

/* Members that are not known here may come from a newer controller. */
static void read_figures(struct hspmd_json *obj, struct ctld_figures *f)
{
	struct hspmd_json at = hspmd_json_object_or_none(obj, "figures");
	if (!at.value)
		return;
	*f = (struct ctld_figures){
		.known = true,
		.step = hspmd_json_int_or(&at, "step", -1, INT64_MAX, -1),
		.generation = hspmd_json_int_or(&at, "generation", -1, INT64_MAX, -1),
		.tokens = hspmd_json_int_or(&at, "tokens", 0, INT64_MAX, 0),
		.resizes = hspmd_json_int_or(&at, "resizes", 0, INT64_MAX, 0),
		.steps_lost = hspmd_json_int_or(&at, "steps_lost", 0, INT64_MAX, 0),
		.devices = (int)hspmd_json_int_or(&at, "devices", 0, 1 << 20, 0),
		.loss = hspmd_json_number_or(&at, "loss", -FIGURE_MAX, FIGURE_MAX, NAN),
		.step_s = hspmd_json_number_or(&at, "step_s", 0, FIGURE_MAX, 0),
		.checkpoint_s = hspmd_json_number_or(&at, "checkpoint_s", 0, FIGURE_MAX, 0),
		.paused_s = hspmd_json_number_or(&at, "paused_s", 0, FIGURE_MAX, 0),
		.trained_device_s = hspmd_json_number_or(&at, "trained_device_s", 0, FIGURE_MAX, 0),
		.paused_device_s = hspmd_json_number_or(&at, "paused_device_s", 0, FIGURE_MAX, 0),
		.lost_device_s = hspmd_json_number_or(&at, "lost_device_s", 0, FIGURE_MAX, 0),
	};
}

static int read_state(struct hspmd_json *obj, struct ctld_peer *p, int *nodes, struct ctld_figures *figures)
{
	(void)hspmd_json_string(obj, "type");
	p->min_nodes = (int)hspmd_json_int(obj, "min_nodes", 1, 1 << 20);
	p->max_nodes = (int)hspmd_json_int(obj, "max_nodes", 1, INT_MAX);
	const char *policy = hspmd_json_string_or(obj, "policy", "");
	if (policy && strlen(policy) < sizeof p->policy)
		snprintf(p->policy, sizeof p->policy, "%s", policy);
	*nodes = (int)hspmd_json_int(obj, "nodes", 0, 1 << 20);
	p->tokens_per_s = hspmd_json_number_or(obj, "tokens_per_s", 0, 1e15, 0);
	p->pause_s = hspmd_json_number_or(obj, "pause_s", 0, 1e6, 5);
	p->lost_s = hspmd_json_number_or(obj, "lost_s", 0, 1e6, 0);
	p->step = hspmd_json_int_or(obj, "step", 0, INT64_MAX, 0);
	read_members(obj, p);
	read_relative_speed(obj, p);
	read_curve(obj, p);
	read_figures(obj, figures);
	hspmd_json_check_keys(obj);
	return hspmd_json_failed(obj) ? -1 : 0;
}

/* Keeps the newest sample per size; if the table is full, the sample of the nearest size is replaced. */
static void see(struct ctld_peer_history *r, int nodes, double tokens_per_s, double now_s)
{
	int at = 0, nearest = 0;
	for (; at < r->seen_count && r->seen[at].nodes != nodes; at++)
		if (abs(r->seen[at].nodes - nodes) < abs(r->seen[nearest].nodes - nodes))
			nearest = at;
	if (at == CTLD_SEEN_MAX)
		at = nearest;
	else if (at == r->seen_count)
		r->seen_count++;
	r->seen[at] = (struct hspmd_curve_sample){ nodes, tokens_per_s };
	r->seen_s[at] = now_s;
}

/* Forgets samples older than CTLD_SEEN_S, except the newest. */
static void forget_old(struct ctld_peer_history *r, double now_s)
{
	double newest_s = -INFINITY;
	int kept = 0;
	for (int i = 0; i < r->seen_count; i++)
		newest_s = fmax(newest_s, r->seen_s[i]);
	for (int i = 0; i < r->seen_count; i++) {
		if (r->seen_s[i] < newest_s && now_s - r->seen_s[i] > CTLD_SEEN_S)
			continue;
		r->seen[kept] = r->seen[i];
		r->seen_s[kept++] = r->seen_s[i];
	}
	r->seen_count = kept;
}

static void claim(struct ctld_peer_history *r, enum ctld_claim kind, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void claim(struct ctld_peer_history *r, enum ctld_claim kind, const char *fmt, ...)
{
	va_list ap;
	if (r->claim != CTLD_CLAIM_NONE || r->claims_logged >> kind & 1)
		return;
	r->claim = kind;
	va_start(ap, fmt);
	vsnprintf(r->claim_text, sizeof r->claim_text, fmt, ap);
	va_end(ap);
}

void ctld_peers_claim_logged(struct ctld_peers *p, int at)
{
	struct ctld_peer_history *r = &p->histories[at];
	r->claims_logged |= 1u << r->claim;
	r->claim = CTLD_CLAIM_NONE;
}

/* Bounds the curve, and notes a claim of more than CLAIM times the bound. */
static int bound(struct ctld_peer *p, struct ctld_peer_history *r)
{
	double *claimed = hspmd_calloc((size_t)p->curve_count, sizeof *claimed), most = CLAIM;
	int furthest = -1;
	if (!claimed)
		return -1;
	hspmd_curve_scale(p->curve, p->curve_count, r->seen, r->seen_count);
	memcpy(claimed, p->curve, sizeof *claimed * (size_t)p->curve_count);
	hspmd_curve_bound(p->curve, p->curve_count, r->seen, r->seen_count, SLACK);
	for (int i = 0; i < p->curve_count; i++)
		if (claimed[i] > most * p->curve[i]) {
			furthest = i;
			most = claimed[i] / p->curve[i];
		}
	if (furthest >= 0)
		claim(r, CTLD_CLAIM_CURVE, "claims %.4g tokens/s on %d nodes; by what was measured no more than %.4g are believed",
		      claimed[furthest], furthest + 1, p->curve[furthest]);
	free(claimed);
	return 0;
}

static void bound_rest(struct ctld_peer *p, struct ctld_peer_history *r, int nodes, int held)
{
	/* A job that has just lost nodes holds fewer than it needs and does not train: that is no evidence. */
	bool runs = r->min_nodes_bound == INT_MAX || (nodes == held && p->tokens_per_s > 0);
	int min_nodes_bound = held > 0 && runs && held < r->min_nodes_bound ? held : r->min_nodes_bound;
	double max_pause_s = fmax(r->max_pause_s, PAUSE_S);
	if (p->min_nodes > min_nodes_bound)
		claim(r, CTLD_CLAIM_MIN_NODES, "claims to need %d nodes; it has run on %d", p->min_nodes, min_nodes_bound);
	else
		min_nodes_bound = p->min_nodes;
	p->min_nodes = r->min_nodes_bound = min_nodes_bound;
	if (p->pause_s > CLAIM * max_pause_s)
		claim(r, CTLD_CLAIM_PAUSE, "claims a pause of %.4g s; it did what it was asked within %.4g s", p->pause_s, max_pause_s);
	p->pause_s = fmin(p->pause_s, max_pause_s);
}

int ctld_peers_state(struct ctld_peers *p, int at, json_t *message, int held, double size, double now_s, struct hspmd_error *err)
{
	struct ctld_peer *old = &p->peers[at], new = *old;
	struct hspmd_json_doc doc;
	int nodes = 0;
	if (hspmd_json_wrap(&doc, "state", message, err) < 0)
		return -1;
	struct hspmd_json root = hspmd_json_root(&doc);
	new.curve = NULL;
	struct ctld_figures figures = p->histories[at].figures;
	int rc = read_state(&root, &new, &nodes, &figures);
	hspmd_json_close(&doc);
	if (rc < 0) {
		free(new.curve);
		return -1;
	}
	/* The samples count nodes by the relative speeds that held when they were taken. */
	bool same = same_relative_speed(old, &new);
	if (!same)
		p->histories[at].seen_count = 0;
	if (same && nodes > 0 && nodes == held && new.tokens_per_s > 0 && size >= 0.5)
		see(&p->histories[at], (int)lround(size), new.tokens_per_s, now_s);
	forget_old(&p->histories[at], now_s);
	if (new.curve_count && bound(&new, &p->histories[at]) < 0) {
		free(new.curve);
		return hspmd_fail_memory(err, "taking a state");
	}
	bound_rest(&new, &p->histories[at], nodes, held);
	p->histories[at].figures = figures;
	bool changed = !same || new.min_nodes != old->min_nodes || new.max_nodes != old->max_nodes || new.curve_count != old->curve_count ||
	               new.member_count != old->member_count || strcmp(new.policy, old->policy) != 0;
	for (int i = 0; !changed && i < new.curve_count; i++)
		changed = fabs(new.curve[i] - old->curve[i]) > 0.01 * old->curve[i];
	free(old->curve);
	*old = new;
	return changed;
}

/* ---- comparison of the jobs */

/* The highest rate per node that the curve claims; 0: no curve. */
static double rate_per_node(const struct ctld_peer *p)
{
	double most = 0;
	for (int i = 0; i < p->curve_count; i++)
		most = fmax(most, p->curve[i] / (i + 1));
	return most;
}

void ctld_peers_compare(struct ctld_peers *p)
{
	double *rates = hspmd_calloc((size_t)p->count, sizeof *rates);
	int n = 0;
	for (int i = 0; rates && i < p->count; i++) {
		double rate = rate_per_node(&p->peers[i]);
		if (rate > 0)
			rates[n++] = rate;
	}
	if (n)
		qsort(rates, (size_t)n, sizeof *rates, hspmd_double_order);
	double most = n ? SCALE_MOST * rates[(n - 1) / 2] : INFINITY;
	for (int i = 0; i < p->count; i++) {
		double rate = rate_per_node(&p->peers[i]);
		p->peers[i].overclaim_factor = rate / most;
		if (rate > most)
			claim(&p->histories[i], CTLD_CLAIM_SCALE,
			      "claims %.4g tokens/s of a node; beside the other jobs' no more than %.4g are believed", rate, most);
	}
	free(rates);
}

/* ---- requests */

void ctld_peers_request_sent(struct ctld_peers *p, int at, int64_t id, bool grow, int nodes, double now_s)
{
	struct ctld_peer_history *r = &p->histories[at];
	r->request_id = id;
	r->requested_s = now_s;
	r->request_is_grow = grow;
	snprintf(r->request_text, sizeof r->request_text, "%s by %d", grow ? "grow" : "shrink", nodes);
	p->peers[at].request_pending = true;
}

int ctld_peers_answered(struct ctld_peers *p, int at, int64_t id, bool ok, const char *text, double now_s)
{
	struct ctld_peer_history *r = &p->histories[at];
	struct ctld_peer *peer = &p->peers[at];
	if (!r->request_id || r->request_id != id)
		return -1;
	r->request_id = 0;
	peer->request_pending = false;
	r->last_s = now_s;
	snprintf(r->last_reply, sizeof r->last_reply, "%s: %s%s%.120s", r->request_text, ok ? "done" : "declined", *text ? ": " : "", text);
	int *row = r->request_is_grow ? &r->declined : &r->declined_shrinks;
	if (ok) {
		peer->resized_s = now_s;
		r->max_pause_s = fmax(r->max_pause_s, now_s - r->requested_s);
		*row = 0;
		return 0;
	}
	double again = pow(2, *row < 8 ? *row : 8);
	if (r->request_is_grow)
		peer->declined_grow_until_s = now_s + fmin(15 * again, 3600);
	else
		peer->declined_shrink_until_s = now_s + fmin(2 * again, 60);
	++*row;
	return 0;
}
