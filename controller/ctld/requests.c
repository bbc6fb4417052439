/* SPDX-License-Identifier: Apache-2.0 */
/* What controllers say, what the engine decides, and what is asked of the controllers for it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/log.h"
#include "controller/ctld/daemon_internal.h"
#include "controller/ctld_client/protocol.h"

#define FRESH_S 5.0 /* nothing is asked on the ground of an older look */
#define KEEP_S 60.0 /* nodes that a job was asked to take are kept for it so long */
#define LINE_MOST 6 /* greetings and ends of one job's controller are told in LINE_SPAN_S */
#define LINE_SPAN_S 60.0

const char *const cause_names[] = { "idle", "waiting", "rebalance", "limits", NULL };

const struct hspmd_slurm_view_job *view_job(const struct hspmd_slurm_view *v, uint32_t id)
{
	for (int i = 0; v && i < v->job_count; i++)
		if (v->jobs[i].id == id)
			return &v->jobs[i];
	return NULL;
}

int nodes_of(const struct ctld *d, const struct ctld_peer *p)
{
	if (d->polling && !d->view)
		return 0;
	const struct hspmd_slurm_view_job *j = view_job(d->view, p->job);
	int n = j ? j->held_count : 0;
	for (int m = 0; m < p->member_count; m++) {
		const struct hspmd_slurm_view_job *member = view_job(d->view, p->members[m]);
		n += member && member->uid == p->uid ? member->held_count : 0;
	}
	return n;
}

/* ---- from the controllers */

/* Who greets and goes again and again is not told of each time. */
static void log_connection(struct ctld *d, int at, const char *event, const char *text)
{
	struct ctld_peer_history *r = &d->peers.histories[at];
	double now = hspmd_unix_time();
	if (now - r->line_s > LINE_SPAN_S) {
		r->line_s = now;
		r->line_count = 0;
	}
	if (r->line_count++ < LINE_MOST)
		log_event(d, event, d->peers.peers[at].job, text, NULL);
}

/* Slurm knows the job as this user's. A greeting is told only then: anybody may greet for jobs that are none. */
static void confirm_owner(struct ctld *d, int at)
{
	d->peers.histories[at].confirmed = true;
	log_connection(d, at, "greeting", "its controller has greeted");
}

int on_hello(void *context, uint32_t job, uid_t uid, struct hspmd_error *err)
{
	struct ctld *d = context;
	const struct hspmd_slurm_view_job *j = view_job(d->view, job);
	int at = ctld_peers_find(&d->peers, job);
	if (j && j->uid != uid)
		return hspmd_fail(err, "job %u is not of user %u", job, (unsigned)uid);
	if (!j && at >= 0 && d->peers.peers[at].uid != uid)
		return hspmd_fail(err, "job %u greeted as another user before", job);
	at = ctld_peers_hello(&d->peers, job, uid);
	if (at < 0)
		return hspmd_fail_memory(err, "greeting a controller");
	if (j)
		confirm_owner(d, at);
	else
		poll_soon(d); /* a new job; Slurm's word on whose it is decides */
	return 0;
}

/* Nodes are kept for a job while it is asked to take them, no longer. */
static void unreserve(struct ctld *d, uint32_t job)
{
	for (int i = 0; d->view && i < d->view->node_count; i++)
		if (d->node_histories[i].reserved_for == job)
			d->node_histories[i].reserved_for = 0;
}

/* Nodes that a job was asked to give are on their way till Slurm says that it holds them no more. */
static void forget_expected(struct ctld *d, uint32_t job)
{
	for (int i = 0; d->view && i < d->view->node_count; i++)
		if (d->node_histories[i].asked_of == job)
			d->node_histories[i].asked_of = 0;
}

static bool holds(const struct hspmd_slurm_view_job *j, int node)
{
	for (int h = 0; j && h < j->held_count; h++)
		if (j->held[h] == node)
			return true;
	return false;
}

static bool peer_holds(const struct ctld *d, const struct ctld_peer *p, int node)
{
	bool yes = holds(view_job(d->view, p->job), node);
	for (int m = 0; m < p->member_count && !yes; m++)
		yes = holds(view_job(d->view, p->members[m]), node);
	return yes;
}

void forget_returned(struct ctld *d)
{
	for (int i = 0; i < d->view->node_count; i++) {
		int at = d->node_histories[i].asked_of ? ctld_peers_find(&d->peers, d->node_histories[i].asked_of) : -1;
		if (at < 0 || !peer_holds(d, &d->peers.peers[at], i))
			d->node_histories[i].asked_of = 0;
	}
}

void on_gone(void *context, uint32_t job)
{
	struct ctld *d = context;
	int at = ctld_peers_find(&d->peers, job);
	if (at < 0)
		return;
	d->peers.peers[at].reachable = false;
	if (d->peers.histories[at].request_id)
		ctld_peers_answered(&d->peers, at, d->peers.histories[at].request_id, false, "its controller is gone", hspmd_unix_time());
	unreserve(d, job);
	forget_expected(d, job);
	if (d->peers.histories[at].confirmed) {
		log_connection(d, at, "gone", "its controller is gone");
		poll_soon(d);
	} else {
		ctld_peers_drop(&d->peers, at); /* else those who greet for jobs that are none would pile up while slurmctld is away */
	}
}

static int on_answer(struct ctld *d, int at, json_t *message, struct hspmd_error *err)
{
	int64_t id = json_integer_value(json_object_get(message, "id"));
	bool ok = json_is_true(json_object_get(message, "ok"));
	const char *text = json_string_value(json_object_get(message, "text"));
	uint32_t job = d->peers.peers[at].job;
	if (ctld_peers_answered(&d->peers, at, id, ok, text ? text : "", hspmd_unix_time()) < 0)
		return hspmd_fail(err, "job %u answered what it was not asked", job);
	d->totals.declined += !ok;
	if (ok)
		d->answered_s = hspmd_now();
	else
		d->dirty = true; /* others may be asked at once */
	unreserve(d, job);       /* it has what it wanted, perhaps of other nodes, or does not want it */
	if (!ok)
		forget_expected(d, job);
	log_event(d, ok ? "done" : "declined", job, d->peers.histories[at].last_reply, NULL);
	poll_soon(d);
	return 0;
}

/* Once a job and kind: a bound that was needed says that its controller lies, or that its solver errs. Either has no effect. */
static void log_claim(struct ctld *d, int at)
{
	if (d->peers.histories[at].claim == CTLD_CLAIM_NONE)
		return;
	log_event(d, "claim", d->peers.peers[at].job, d->peers.histories[at].claim_text, NULL);
	ctld_peers_claim_told(&d->peers, at);
}

int on_controller_message(void *context, uint32_t job, json_t *message, struct hspmd_error *err)
{
	struct ctld *d = context;
	int at = ctld_peers_find(&d->peers, job);
	const char *type = json_string_value(json_object_get(message, "type"));
	if (at < 0 || !type)
		return hspmd_fail(err, "job %u: a message without a type", job);
	if (!strcmp(type, "answer"))
		return on_answer(d, at, message, err);
	if (strcmp(type, "state") != 0)
		return hspmd_fail(err, "job %u: unknown message '%.40s'", job, type);
	const struct ctld_peer *p = &d->peers.peers[at];
	double pause_s = p->pause_s;
	int rc = ctld_peers_state(&d->peers, at, message, nodes_of(d, p), ctld_reference_nodes(d->view, p), err);
	d->dirty |= rc > 0;
	d->totals.pauses_s += p->pause_s != pause_s ? p->pause_s : 0; /* each resize tells its own */
	log_claim(d, at);
	return rc < 0 ? hspmd_error_prefix(err, "job %u", job) : 0;
}

/* After a new look: controllers of jobs that are another's, or of none, have no business here. */
void sweep_peers(struct ctld *d)
{
	for (int i = d->peers.count - 1; i >= 0; i--) {
		struct ctld_peer *p = &d->peers.peers[i];
		const struct hspmd_slurm_view_job *j = view_job(d->view, p->job);
		uint32_t job = p->job;
		if (j && j->uid == p->uid) {
			if (!d->peers.histories[i].confirmed)
				confirm_owner(d, i);
			continue;
		}
		ctld_server_drop(d->server, job, j ? "this job is another user's" : "Slurm knows no such job");
		int at = ctld_peers_find(&d->peers, job);
		if (at >= 0)
			ctld_peers_drop(&d->peers, at);
	}
}

void expire_requests(struct ctld *d)
{
	double now = hspmd_unix_time();
	for (int i = 0; i < d->peers.count; i++) {
		struct ctld_peer_history *r = &d->peers.histories[i];
		if (!r->request_id || now - r->asked_s < CTLD_ANSWER_S)
			continue;
		ctld_peers_answered(&d->peers, i, r->request_id, false, "no answer in time", now);
		d->totals.unanswered++;
		forget_expected(d, d->peers.peers[i].job);
		log_event(d, "unanswered", d->peers.peers[i].job, r->last_reply, NULL);
	}
}

/* ---- to the controllers */

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

static void reserve_nodes_for(struct ctld *d, const struct hspmd_resize_action *a, uint32_t job, double now)
{
	for (int i = 0; i < a->node_count; i++) {
		d->node_histories[a->nodes[i]].reserved_for = job;
		d->node_histories[a->nodes[i]].reserved_until_s = now + KEEP_S;
	}
}

static enum cause cause_of(const struct hspmd_resize_action *a)
{
	if (a->kind == HSPMD_RESIZE_GROW)
		return CAUSE_IDLE;
	return a->for_pending >= 0 ? CAUSE_WAITING : a->for_job >= 0 ? CAUSE_REBALANCE : CAUSE_LIMITS;
}

static void send_request(struct ctld *d, const struct ctld_snapshot *s, const struct hspmd_resize_action *a)
{
	int at = s->elastic_peer[a->job];
	uint32_t job = d->peers.peers[at].job;
	bool grow = a->kind == HSPMD_RESIZE_GROW;
	double now = hspmd_unix_time();
	json_t *names = names_of(s, a);
	json_t *m = json_pack("{s:s, s:I, s:s, s:i, s:O, s:s}", "type", "request", "id", (json_int_t)++d->last_request_id, "command",
	                      grow ? "grow" : "shrink", "by", a->node_count, "names", names, "reason", a->reason);
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
		d->node_histories[a->nodes[i]].asked_of = grow ? 0 : job;
		d->node_histories[a->nodes[i]].asked_until_s = now + KEEP_S;
	}
	d->totals.asked_for[cause_of(a)]++;
	*(grow ? &d->totals.grows : &d->totals.shrinks) += 1;
	*(grow ? &d->totals.nodes_asked : &d->totals.nodes_given) += (uint64_t)a->node_count;
	log_event(d, grow ? "grow" : "shrink", job, a->reason,
	          json_pack("{s:O, s:f, s:I, s:s}", "nodes", names, "gain", a->gain, "id", (json_int_t)d->last_request_id, "cause",
	                    cause_names[cause_of(a)]));
	json_decref(m);
	json_decref(names);
}

static int by_job(const void *a, const void *b)
{
	uint32_t x = ((const struct eligible_since *)a)->job, y = ((const struct eligible_since *)b)->job;
	return x < y ? -1 : x > y;
}

static double eligible_since(void *context, uint32_t job)
{
	const struct ctld *d = context;
	struct eligible_since key = { .job = job };
	const struct eligible_since *found =
	        d->eligible_count ? bsearch(&key, d->eligible, (size_t)d->eligible_count, sizeof key, by_job) : NULL;
	return found ? found->since_s : NAN;
}

static void remember_eligible(struct ctld *d, const struct ctld_snapshot *s, const struct hspmd_decision *e)
{
	struct eligible_since *eligible = hspmd_calloc((size_t)s->snapshot.pending_count, sizeof *eligible);
	if (!eligible)
		return;
	free(d->eligible);
	d->eligible = eligible;
	d->eligible_count = 0;
	for (int i = 0; i < s->snapshot.pending_count; i++)
		if (!isnan(e->eligible_since_s[i]))
			d->eligible[d->eligible_count++] = (struct eligible_since){ s->pending[i].id, e->eligible_since_s[i] };
	qsort(d->eligible, (size_t)d->eligible_count, sizeof *d->eligible, by_job);
}

static void remember_why(struct ctld *d, const struct ctld_snapshot *s, const struct hspmd_decision *e)
{
	for (int i = 0; i < s->snapshot.elastic_count; i++)
		memcpy(d->peers.histories[s->elastic_peer[i]].why, e->why[i], HSPMD_REASON_MAX);
}

static void send_requests(struct ctld *d, const struct ctld_snapshot *s, const struct hspmd_decision *e)
{
	/* What was seen may be long past, or not yet show what a job has just done: look again before anything is asked. */
	if (e->count && (hspmd_now() - d->poll_interval.polled_s > FRESH_S || d->seen_s < d->answered_s)) {
		poll_soon(d);
		d->dirty = true;
		return;
	}
	remember_why(d, s, e);
	for (int i = 0; i < e->count; i++)
		send_request(d, s, &e->actions[i]);
	if (e->count)
		poll_soon(d);
}

static bool differs(double now, double told)
{
	return fabs(now - told) > 0.2 * fabs(told);
}

/* Jobs weigh their copies and plans by it. */
static void send_risk(struct ctld *d)
{
	double losses, correlated;
	risk_seen(d, &losses, &correlated);
	for (int i = 0; i < d->peers.count; i++) {
		struct ctld_peer_history *r = &d->peers.histories[i];
		bool known = r->risk_told[0] >= 0;
		if (!d->peers.peers[i].reachable || (known && !differs(losses, r->risk_told[0]) && !differs(correlated, r->risk_told[1])))
			continue;
		json_t *m = json_pack("{s:s, s:f, s:f}", "type", "risk", "losses_per_node_s", losses, "correlated", correlated);
		if (m && ctld_server_send(d->server, d->peers.peers[i].job, m) == 0) {
			r->risk_told[0] = losses;
			r->risk_told[1] = correlated;
		}
		json_decref(m);
	}
}

void decide(struct ctld *d)
{
	struct ctld_snapshot s;
	struct hspmd_decision e;
	struct hspmd_error err = { "" };
	d->dirty = false;
	d->decided_s = hspmd_now();
	if (!d->view || !d->peers.count)
		return;
	send_risk(d);
	ctld_peers_compare(&d->peers);
	for (int i = 0; i < d->peers.count; i++)
		log_claim(d, i);
	memset(&e, 0, sizeof e);
	int rc = ctld_snapshot_build(&s, d->view, d->policy, d->peers.peers, d->peers.count, d->node_histories, hspmd_unix_time(),
	                             eligible_since, d, &err);
	if (rc == 0)
		rc = hspmd_policy_decide(&s.snapshot, &e, &err);
	d->totals.decisions++;
	if (rc < 0)
		log_event(d, "trouble", 0, err.text, NULL);
	else {
		remember_eligible(d, &s, &e);
		send_requests(d, &s, &e);
	}
	hspmd_decision_clear(&e);
	ctld_snapshot_clear(&s);
}
