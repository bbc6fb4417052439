/* SPDX-License-Identifier: Apache-2.0 */
/* A round of decisions: from the view and the peers to a snapshot, from the snapshot to actions (policies/decide.h), from actions to
 * requests. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "controller/ctld/daemon_internal.h"
#include "controller/ctld_client/protocol.h"

#define FRESH_S 5.0 /* no request is sent on the ground of an older view */

static int by_job(const void *a, const void *b)
{
	uint32_t x = ((const struct eligible_since *)a)->job, y = ((const struct eligible_since *)b)->job;
	return x < y ? -1 : x > y;
}

/* Called by ctld_snapshot_build(). */
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

static void remember_waits(struct ctld *d, const struct ctld_snapshot *s, const struct hspmd_decision *e)
{
	for (int i = 0; i < s->snapshot.elastic_count; i++)
		d->peers.peers[s->elastic_peer[i]].wait_until_s = e->wait_until_s[i];
}

static bool is_to_grow(const struct hspmd_decision *e, int job)
{
	for (int i = 0; i < e->count; i++)
		if (e->actions[i].kind == HSPMD_RESIZE_GROW && e->actions[i].job == job)
			return true;
	return false;
}

/* The nodes for which a job waits may be idle when its wait ends. Only a poll shows it, so one comes then, however seldom Slurm is
 * polled. */
static void expect_ends_of_waits(struct ctld *d, const struct ctld_snapshot *s, const struct hspmd_decision *e)
{
	for (int i = 0; i < s->snapshot.elastic_count; i++) {
		double wait_s = e->wait_until_s[i] - s->snapshot.now_s;
		if (wait_s > 0 && !is_to_grow(e, i)) /* false if it is NAN */
			d->wait_ends_s = fmin(d->wait_ends_s, d->decided_s + wait_s);
	}
	if (isfinite(d->wait_ends_s))
		poll_by(d, d->wait_ends_s);
}

static void remember_why(struct ctld *d, const struct ctld_snapshot *s, const struct hspmd_decision *e)
{
	for (int i = 0; i < s->snapshot.elastic_count; i++)
		memcpy(d->peers.histories[s->elastic_peer[i]].why, e->why[i], HSPMD_REASON_MAX);
}

static void send_requests(struct ctld *d, const struct ctld_snapshot *s, const struct hspmd_decision *e)
{
	/* The view may be old, or may not show yet what a job has just carried out: poll again before any request is sent. */
	if (e->count && !d->options->dry_run && (hspmd_now() - d->poll_interval.polled_s > FRESH_S || d->seen_s < d->answered_s)) {
		poll_soon(d);
		d->dirty = true;
		return;
	}
	remember_why(d, s, e);
	if (d->options->dry_run) {
		requests_log_dry(d, s, e);
		return;
	}
	for (int i = 0; i < e->count; i++)
		request_send(d, s, &e->actions[i]);
	if (e->count)
		poll_soon(d);
}

static bool differs(double now, double sent)
{
	return fabs(now - sent) > 0.2 * fabs(sent);
}

/* Jobs choose the number of copies of their state, and between plans, by the observed losses. */
static void send_risk(struct ctld *d)
{
	double losses, correlated;
	poll_losses(d, &losses, &correlated);
	for (int i = 0; i < d->peers.count; i++) {
		struct ctld_peer_history *r = &d->peers.histories[i];
		bool known = r->risk_sent[0] >= 0;
		if (!d->peers.peers[i].reachable || (known && !differs(losses, r->risk_sent[0]) && !differs(correlated, r->risk_sent[1])))
			continue;
		json_t *m = json_pack("{s:s, s:f, s:f}", "type", "risk", "losses_per_node_s", losses, CTLD_KEY_CORRELATED, correlated);
		if (m && ctld_server_send(d->server, d->peers.peers[i].job, m) == 0) {
			r->risk_sent[0] = losses;
			r->risk_sent[1] = correlated;
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
	d->wait_ends_s = INFINITY;
	if (!d->view || !d->peers.count)
		return;
	send_risk(d);
	ctld_peers_compare(&d->peers);
	for (int i = 0; i < d->peers.count; i++)
		peer_log_claim(d, i);
	memset(&e, 0, sizeof e);
	budgets_note_nodes(d);
	d->view->accounts = d->accounts_s > 0 ? &d->accounts : NULL;
	int rc = ctld_snapshot_build(&s, d->view, d->policy, d->peers.peers, d->peers.count, d->node_histories, hspmd_unix_time(),
	                             eligible_since, d, &err);
	if (rc == 0)
		budgets_charge(d, &s);
	if (rc == 0)
		rc = hspmd_policy_decide(&s.snapshot, &e, &err);
	d->totals.decisions++;
	if (rc < 0)
		log_event(d, "trouble", 0, err.text, NULL);
	else {
		remember_eligible(d, &s, &e);
		remember_waits(d, &s, &e);
		expect_ends_of_waits(d, &s, &e);
		send_requests(d, &s, &e);
	}
	hspmd_decision_clear(&e);
	ctld_snapshot_clear(&s);
}
