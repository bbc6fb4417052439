/* SPDX-License-Identifier: Apache-2.0 */
/* Answers to viewers: `hspmd cluster`, the Slurm plugin, and controllers at their start. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/json.h"
#include "controller/ctld/daemon_internal.h"
#include "controller/ctld/quote.h"
#include "controller/ctld_client/protocol.h"

static json_t *nodes_json(const struct ctld *d)
{
	int n[4] = { 0 };
	for (int i = 0; d->view && i < d->view->node_count; i++)
		n[d->view->nodes[i].state]++;
	return json_pack("{s:i, s:i, s:i, s:i}", "idle", n[HSPMD_SLURM_VIEW_IDLE], "busy", n[HSPMD_SLURM_VIEW_BUSY], "leaving",
	                 n[HSPMD_SLURM_VIEW_LEAVING], "unusable", n[HSPMD_SLURM_VIEW_UNUSABLE]);
}

static json_t *job_json(const struct ctld *d, int at)
{
	const struct ctld_peer *p = &d->peers.peers[at];
	const struct ctld_peer_history *r = &d->peers.histories[at];
	const struct hspmd_slurm_view_job *j = hspmd_slurm_view_find_job(d->view, p->job);
	json_t *o = json_pack("{s:I, s:s, s:s, s:i, s:i, s:o, s:b, s:f, s:f, s:I, s:s, s:s, s:s}", "job", (json_int_t)p->job, "user",
	                      j ? j->user : "?", "partition", j ? j->partition : "?", "nodes", ctld_nodes_held(d->view, p), "min_nodes",
	                      p->min_nodes, "max_nodes", p->max_nodes == INT_MAX ? json_null() : json_integer(p->max_nodes), "reachable",
	                      p->reachable, "tokens_per_s", p->tokens_per_s, "pause_s", p->pause_s, "step", (json_int_t)p->step, "asked",
	                      r->request_id ? r->request_text : r->dry_request, "last", r->last_reply, "why", r->why);
	if (o && !isnan(r->last_s))
		json_object_set_new(o, "last_time", hspmd_json_real(r->last_s));
	return o;
}

/* As Slurm's PrivateData: a job that Slurm does not know (yet) is nobody's. */
static bool may_see(const struct ctld *d, uid_t viewer, uint32_t job)
{
	const struct ctld_options *o = d->options;
	bool may = !o->private_jobs || viewer == 0 || viewer == getuid();
	for (int i = 0; i < o->operator_count; i++)
		may |= viewer == o->operators[i];
	const struct hspmd_slurm_view_job *j = may ? NULL : hspmd_slurm_view_find_job(d->view, job);
	return may || (j && j->uid == viewer);
}

json_t *query_jobs(const struct ctld *d, uid_t viewer)
{
	json_t *jobs = json_array();
	for (int i = 0; jobs && i < d->peers.count; i++)
		if (may_see(d, viewer, d->peers.peers[i].job) && json_array_append_new(jobs, job_json(d, i)) < 0) {
			json_decref(jobs);
			return NULL;
		}
	return jobs;
}

static json_t *totals_json(const struct ctld *d)
{
	const struct totals *t = &d->totals;
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "rpcs", (json_int_t)t->rpcs, "rounds", (json_int_t)t->rounds,
	                 "failed_looks", (json_int_t)t->failed_polls, "decisions", (json_int_t)t->decisions, "grows", (json_int_t)t->grows,
	                 "shrinks", (json_int_t)t->shrinks, "declined", (json_int_t)t->declined, "unanswered", (json_int_t)t->unanswered,
	                 "refused_connections", (json_int_t)ctld_server_counts(d->server).refused);
}

/* For controllers that weigh copies of their state against the cost of making them. */
static json_t *risk_json(const struct ctld *d)
{
	double losses, correlated;
	poll_losses(d, &losses, &correlated);
	return json_pack("{s:f, s:f}", "losses_per_node_s", losses, CTLD_KEY_CORRELATED, correlated);
}

static json_t *quote(struct ctld *d, uid_t uid, json_t *message, struct hspmd_error *err)
{
	struct ctld_quote_request request;
	struct ctld_quote q;
	if (ctld_quote_read(&request, message, err) < 0 || ctld_quote(&q, d->view, d->peers.peers, d->peers.count, uid, &request, err) < 0)
		return NULL;
	poll_soon(d); /* a viewer that needs a quote by a newer view asks again */
	return json_pack("{s:s, s:i, s:f, s:f}", "type", "quote", "jobs", q.jobs, "price_per_hour", q.price_per_hour, "seen_s_ago",
	                 d->view ? hspmd_now() - d->poll_interval.polled_s : -1.0);
}

static json_t *cluster(const struct ctld *d, uid_t viewer)
{
	int waiting = 0;
	/* Safe during a poll: the polling thread only reads the view, and only the loop replaces it. */
	for (int i = 0; d->view && i < d->view->job_count; i++)
		waiting += d->view->jobs[i].state == HSPMD_SLURM_VIEW_PENDING;
	double seen_s_ago = d->view ? hspmd_now() - d->poll_interval.polled_s : -1;
	return json_pack("{s:s, s:f, s:b, s:f, s:f, s:o, s:i, s:o, s:o, s:o, s:i, s:s, s:s}", "type", "cluster", "time", hspmd_unix_time(),
	                 "dry_run", d->options->dry_run, "up_s", hspmd_now() - d->began_s, "seen_s_ago", seen_s_ago, "nodes", nodes_json(d),
	                 "waiting_jobs", waiting, "jobs", query_jobs(d, viewer), "totals", totals_json(d), "risk", risk_json(d), "rules",
	                 d->policy->rule_count, "policy_error", d->policy_error, "trouble", d->last_error);
}

json_t *on_query(void *context, uid_t uid, json_t *message, struct hspmd_error *err)
{
	const char *type = json_string_value(json_object_get(message, "type"));
	if (type && !strcmp(type, CTLD_MESSAGE_QUERY))
		return cluster(context, uid);
	if (type && !strcmp(type, "quote"))
		return quote(context, uid, message, err);
	hspmd_fail(err, "a viewer sent a message of an unknown type");
	return NULL;
}
