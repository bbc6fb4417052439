/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to job controllers, from sending to answer, and the marks that they leave on nodes meanwhile. */
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "controller/ctld/daemon_internal.h"
#include "controller/ctld_client/protocol.h"

#define KEEP_S 60.0 /* marks on nodes of a request expire after this time */

const char *const cause_names[] = { "idle", "waiting", "rebalance", "limits", NULL };

/* ---- marks on nodes */

static void unreserve(struct ctld *d, uint32_t job)
{
	for (int i = 0; d->view && i < d->view->node_count; i++)
		if (d->node_histories[i].reserved_for == job)
			d->node_histories[i].reserved_for = 0;
}

static void forget_expected(struct ctld *d, uint32_t job)
{
	for (int i = 0; d->view && i < d->view->node_count; i++)
		if (d->node_histories[i].requested_from == job)
			d->node_histories[i].requested_from = 0;
}

static bool job_holds(const struct hspmd_slurm_view_job *j, int node)
{
	for (int h = 0; j && h < j->held_count; h++)
		if (j->held[h] == node)
			return true;
	return false;
}

static bool peer_holds(const struct ctld *d, const struct ctld_peer *p, int node)
{
	bool yes = job_holds(hspmd_slurm_view_find_job(d->view, p->job), node);
	for (int m = 0; m < p->member_count && !yes; m++)
		yes = job_holds(hspmd_slurm_view_find_job(d->view, p->members[m]), node);
	return yes;
}

void requests_forget_returned(struct ctld *d)
{
	for (int i = 0; i < d->view->node_count; i++) {
		int at = d->node_histories[i].requested_from ? ctld_peers_find(&d->peers, d->node_histories[i].requested_from) : -1;
		if (at < 0 || !peer_holds(d, &d->peers.peers[at], i))
			d->node_histories[i].requested_from = 0;
	}
}

static void reserve_nodes_for(struct ctld *d, const struct hspmd_resize_action *a, uint32_t job, double now)
{
	for (int i = 0; i < a->node_count; i++) {
		d->node_histories[a->nodes[i]].reserved_for = job;
		d->node_histories[a->nodes[i]].reserved_until_s = now + KEEP_S;
	}
}

/* ---- ends of requests */

int request_answered(struct ctld *d, int at, json_t *message, struct hspmd_error *err)
{
	int64_t id = json_integer_value(json_object_get(message, "id"));
	bool ok = json_is_true(json_object_get(message, "ok"));
	const char *text = json_string_value(json_object_get(message, "text"));
	uint32_t job = d->peers.peers[at].job;
	if (ctld_peers_answered(&d->peers, at, id, ok, text ? text : "", hspmd_unix_time()) < 0)
		return hspmd_fail(err, "job %u answered a request that is not pending", job);
	d->totals.declined += !ok;
	if (ok)
		d->answered_s = hspmd_now();
	else
		d->dirty = true; /* another job may be requested at once */
	unreserve(d, job);       /* the job has grown, perhaps by other nodes, or does not want to */
	if (!ok)
		forget_expected(d, job);
	log_event(d, ok ? "done" : "declined", job, d->peers.histories[at].last_reply, NULL);
	poll_soon(d);
	return 0;
}

void request_abandon(struct ctld *d, int at)
{
	uint32_t job = d->peers.peers[at].job;
	int64_t id = d->peers.histories[at].request_id;
	if (id)
		ctld_peers_answered(&d->peers, at, id, false, "its controller is gone", hspmd_unix_time());
	unreserve(d, job);
	forget_expected(d, job);
}

void requests_expire(struct ctld *d)
{
	double now = hspmd_unix_time();
	for (int i = 0; i < d->peers.count; i++) {
		struct ctld_peer_history *r = &d->peers.histories[i];
		if (!r->request_id || now - r->requested_s < CTLD_ANSWER_S)
			continue;
		ctld_peers_answered(&d->peers, i, r->request_id, false, "no answer in time", now);
		d->totals.unanswered++;
		forget_expected(d, d->peers.peers[i].job);
		log_event(d, "unanswered", d->peers.peers[i].job, r->last_reply, NULL);
	}
}

/* ---- sending */

static json_t *names_of(const struct ctld_snapshot *s, const struct hspmd_resize_action *a)
{
	json_t *names = json_array();
	for (int i = 0; names && i < a->node_count; i++)
		if (json_array_append_new(names, json_string(s->nodes[a->nodes[i]].name)) < 0) {
			json_decref(names);
			return NULL;
		}
	return names;
}

static enum cause cause_of(const struct hspmd_resize_action *a)
{
	if (a->kind == HSPMD_RESIZE_GROW)
		return CAUSE_IDLE;
	return a->for_pending >= 0 ? CAUSE_WAITING : a->for_job >= 0 ? CAUSE_REBALANCE : CAUSE_LIMITS;
}

void requests_log_dry(struct ctld *d, const struct ctld_snapshot *s, const struct hspmd_decision *e)
{
	for (int p = 0; p < d->peers.count; p++) {
		struct ctld_peer_history *r = &d->peers.histories[p];
		const struct hspmd_resize_action *a = NULL;
		char request[sizeof r->dry_request] = "";
		for (int i = 0; i < e->count && !a; i++)
			a = s->elastic_peer[e->actions[i].job] == p ? &e->actions[i] : NULL;
		bool grow = a && a->kind == HSPMD_RESIZE_GROW;
		if (a)
			snprintf(request, sizeof request, "%s by %d: %s", grow ? "grow" : "shrink", a->node_count, a->reason);
		if (a && strcmp(request, r->dry_request) != 0)
			log_event(
			        d, grow ? "would_grow" : "would_shrink", d->peers.peers[p].job, request,
			        json_pack("{s:o, s:f, s:s}", "nodes", names_of(s, a), "gain", a->gain, "cause", cause_names[cause_of(a)]));
		strcpy(r->dry_request, request);
	}
}

void request_send(struct ctld *d, const struct ctld_snapshot *s, const struct hspmd_resize_action *a)
{
	int at = s->elastic_peer[a->job];
	uint32_t job = d->peers.peers[at].job;
	bool grow = a->kind == HSPMD_RESIZE_GROW;
	double now = hspmd_unix_time();
	json_t *names = names_of(s, a);
	json_t *m = json_pack("{s:s, s:I, s:s, s:i, s:O, s:s}", "type", CTLD_MESSAGE_REQUEST, "id", (json_int_t)++d->last_request_id,
	                      "command", grow ? "grow" : "shrink", "by", a->node_count, "names", names, "reason", a->reason);
	if (!m || ctld_server_send(d->server, job, m) < 0) {
		json_decref(m);
		json_decref(names);
		return;
	}
	ctld_peers_request_sent(&d->peers, at, d->last_request_id, grow, a->node_count, now);
	if (grow)
		reserve_nodes_for(d, a, job, now);
	else if (a->for_job >= 0)
		reserve_nodes_for(d, a, s->elastic[a->for_job].id, now);
	for (int i = 0; i < a->node_count; i++) {
		d->node_histories[a->nodes[i]].requested_from = grow ? 0 : job;
		d->node_histories[a->nodes[i]].requested_until_s = now + KEEP_S;
	}
	d->totals.requests_by_cause[cause_of(a)]++;
	*(grow ? &d->totals.grows : &d->totals.shrinks) += 1;
	*(grow ? &d->totals.nodes_granted : &d->totals.nodes_recalled) += (uint64_t)a->node_count;
	json_t *more = json_pack("{s:O, s:f, s:I, s:s}", "nodes", names, "gain", a->gain, "id", (json_int_t)d->last_request_id, "cause",
	                         cause_names[cause_of(a)]);
	if (more && cause_of(a) == CAUSE_WAITING)
		json_object_set_new(more, "for", json_integer(s->snapshot.pending[a->for_pending].id));
	log_event(d, grow ? "grow" : "shrink", job, a->reason, more);
	json_decref(m);
	json_decref(names);
}
