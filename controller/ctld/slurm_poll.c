/* SPDX-License-Identifier: Apache-2.0 */
/* Polls Slurm on another thread, one poll at a time, seldom while nothing changes; and counts losses of nodes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/log.h"
#include "controller/ctld/daemon_internal.h"
#include "policies/match.h"

#define ACCOUNTS_EVERY_S 300.0

/* What is due before the next regular tick is done when it is due. Monotonic seconds. */
static void schedule_tick(struct ctld *d, double when_s)
{
	double ms = ceil((when_s - hspmd_now()) * 1e3);
	if (ms < CTLD_TICK_MS && ms < (double)uv_timer_get_due_in(&d->tick))
		uv_timer_start(&d->tick, d->on_tick, ms > 0 ? (uint64_t)ms : 0, CTLD_TICK_MS);
}

void poll_soon(struct ctld *d)
{
	ctld_poll_interval_soon(&d->poll_interval, hspmd_now());
	schedule_tick(d, d->poll_interval.next_s);
}

void poll_by(struct ctld *d, double when_s)
{
	ctld_poll_interval_by(&d->poll_interval, when_s);
	schedule_tick(d, d->poll_interval.next_s);
}

void poll_losses(const struct ctld *d, double *losses_per_node_s, double *correlated)
{
	const struct totals *t = &d->totals;
	*losses_per_node_s = t->up_node_s > 0 ? (double)t->lost_nodes / t->up_node_s : 0;
	*correlated = t->lost_nodes ? t->correlated / (double)t->lost_nodes : 0;
}

/* On a thread of libuv's pool. */
static void run_poll(uv_work_t *work)
{
	struct ctld *d = work->data;
	d->new_view = NULL;
	d->poll_rpcs = 0;
	d->poll_rc = d->options->poll(d->options->poll_context, d->view, &d->new_view, &d->poll_rpcs, &d->poll_error);
	if (d->ask_accounts && d->poll_rc >= 0)
		d->accounts_rc =
		        d->options->accounts(d->options->poll_context, d->ask_shares, &d->new_accounts, &d->poll_rpcs, &d->accounts_error);
}

static bool same_nodes(const struct hspmd_slurm_view *a, const struct hspmd_slurm_view *b)
{
	if (!a || a->node_count != b->node_count)
		return false;
	for (int i = 0; i < a->node_count; i++)
		if (strcmp(a->nodes[i].name, b->nodes[i].name) != 0)
			return false;
	return true;
}

/* Notes since when each node has been with its job, if the job did not begin with it. */
static void note_holders(struct ctld *d, const struct hspmd_slurm_view *v)
{
	for (int i = 0; i < v->node_count; i++)
		if (v->nodes[i].state == HSPMD_SLURM_VIEW_IDLE)
			d->node_histories[i].held_by = 0;
	for (int k = 0; k < v->job_count; k++) {
		const struct hspmd_slurm_view_job *j = &v->jobs[k], *was = hspmd_slurm_view_find_job(d->view, j->id);
		bool ran = was && was->state == HSPMD_SLURM_VIEW_RUNNING;
		for (int h = 0; h < j->held_count; h++) {
			struct ctld_node_history *n = &d->node_histories[j->held[h]];
			if (n->held_by != j->id)
				n->held_since_s = ran ? hspmd_unix_time() : 0;
			n->held_by = j->id;
		}
	}
}

/* Carries the nodes' histories from the old view to the new one, and counts losses: a busy node that is unusable now was lost. */
static int carry_histories(struct ctld *d, double dt)
{
	struct hspmd_slurm_view *v = d->new_view;
	if (!same_nodes(d->view, v)) {
		struct ctld_node_history *node_histories = hspmd_calloc((size_t)v->node_count, sizeof *node_histories);
		if (!node_histories)
			return -1;
		free(d->node_histories);
		d->node_histories = node_histories;
		note_holders(d, v);
		return 0;
	}
	int up = 0, lost = 0;
	note_holders(d, v);
	for (int i = 0; i < v->node_count; i++) {
		bool was_up = d->view->nodes[i].state != HSPMD_SLURM_VIEW_UNUSABLE;
		bool goes = d->view->nodes[i].state == HSPMD_SLURM_VIEW_BUSY && v->nodes[i].state == HSPMD_SLURM_VIEW_UNUSABLE;
		d->node_histories[i].up_s += was_up ? dt : 0;
		d->node_histories[i].losses += goes;
		up += was_up;
		lost += goes;
	}
	d->totals.up_node_s += up * dt;
	d->totals.lost_nodes += (uint64_t)lost;
	if (lost > 1)
		d->totals.correlated += (double)lost * (lost - 1) / (up - 1);
	return 0;
}

/* Returns true if the view was replaced. */
static bool take_view(struct ctld *d, double now)
{
	if (carry_histories(d, now - d->viewed_s) < 0) {
		hspmd_error_log("out of memory while taking a new view of the cluster; the old one stands");
		hspmd_slurm_view_destroy(d->new_view);
		return false;
	}
	hspmd_slurm_view_destroy(d->view);
	d->view = d->new_view;
	d->viewed_s = now;
	d->dirty = true;
	return true;
}

/* Whether the policy gives a job its fairshare factor as weight. */
static bool uses_fairshare(const struct hspmd_policy *p)
{
	for (int r = HSPMD_POLICY_NO_RULE; r < p->rule_count; r++)
		if (hspmd_policy_effective(p, r).weight == HSPMD_POLICY_FAIRSHARE)
			return true;
	return false;
}

/* If they cannot be read, the old ones stay. */
static void take_accounts(struct ctld *d, double now)
{
	if (!d->ask_accounts || d->poll_rc < 0)
		return;
	bool first = !(d->accounts_s > 0);
	if (d->accounts_rc < 0) {
		hspmd_warn("Slurm's accounting is not known%s: %s", first ? "" : " anew", d->accounts_error.text);
		hspmd_slurm_accounts_clear(&d->new_accounts);
	} else {
		hspmd_slurm_accounts_clear(&d->accounts);
		d->accounts = d->new_accounts;
		d->new_accounts = (struct hspmd_slurm_accounts){ 0 };
		d->dirty = true;
	}
	d->accounts_s = now;
}

static void poll_failed(struct ctld *d)
{
	d->totals.failed_polls++;
	if (strcmp(d->last_error, d->poll_error.text) != 0)
		log_event(d, "trouble", 0, d->poll_error.text, NULL);
	strcpy(d->last_error, d->poll_error.text);
}

static void poll_done(uv_work_t *work, int status)
{
	struct ctld *d = work->data;
	double now = hspmd_now();
	(void)status;
	d->polling = false;
	if (d->stopping) {
		hspmd_slurm_view_destroy(d->new_view);
		return;
	}
	d->totals.rounds++;
	d->totals.rpcs += (uint64_t)d->poll_rpcs;
	take_accounts(d, now);
	enum ctld_poll_result what = CTLD_POLL_FAILED;
	if (d->poll_rc < 0) {
		poll_failed(d);
	} else {
		if (*d->last_error)
			log_event(d, "trouble_over", 0, "slurmctld answers again", NULL);
		*d->last_error = '\0';
		bool same = !d->poll_rc || (d->view && hspmd_slurm_view_equal(d->view, d->new_view));
		what = same ? CTLD_POLL_UNCHANGED : CTLD_POLL_CHANGED;
	}
	if (d->poll_rc >= 0)
		d->seen_s = d->poll_began_s;
	ctld_poll_interval_done(&d->poll_interval, d->poll_began_s, now, what);
	d->on_polled(d, d->poll_rc > 0 && take_view(d, now));
	schedule_tick(d, d->poll_interval.next_s);
}

void poll_begin(struct ctld *d)
{
	d->work.data = d;
	d->poll_began_s = hspmd_now();
	d->ask_accounts = d->options->accounts && (!(d->accounts_s > 0) || d->poll_began_s - d->accounts_s >= ACCOUNTS_EVERY_S);
	d->ask_shares = uses_fairshare(d->policy);
	d->polling = uv_queue_work(&d->loop, &d->work, run_poll, poll_done) == 0;
	d->poll_interval.next_s = d->poll_began_s + d->poll_interval.interval_s;
}
