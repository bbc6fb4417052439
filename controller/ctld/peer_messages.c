/* SPDX-License-Identifier: Apache-2.0 */
/* Messages from job controllers. A handler notes facts and asks for a poll; it decides nothing. */
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "controller/ctld/daemon_internal.h"

#define LINE_MOST 6 /* events "greeting" and "gone" logged per job in LINE_SPAN_S */
#define LINE_SPAN_S 60.0

/* A controller that connects and disconnects all the time must not fill the log. */
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

/* Slurm has confirmed the job as this user's. The greeting is logged only now, because anybody may send a hello for a job that does not
 * exist. */
static void confirm_owner(struct ctld *d, int at)
{
	d->peers.histories[at].confirmed = true;
	log_connection(d, at, "greeting", "its controller has greeted");
}

int on_hello(void *context, uint32_t job, uid_t uid, struct hspmd_error *err)
{
	struct ctld *d = context;
	const struct hspmd_slurm_view_job *j = hspmd_slurm_view_find_job(d->view, job);
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
		poll_soon(d); /* a new job: the next poll says whose it is */
	return 0;
}

void on_gone(void *context, uint32_t job)
{
	struct ctld *d = context;
	int at = ctld_peers_find(&d->peers, job);
	if (at < 0)
		return;
	d->peers.peers[at].reachable = false;
	request_abandon(d, at);
	if (d->peers.histories[at].confirmed) {
		log_connection(d, at, "gone", "its controller is gone");
		poll_soon(d);
	} else {
		ctld_peers_drop(&d->peers, at); /* otherwise peers of jobs that do not exist would pile up while slurmctld is away */
	}
}

/* A claim beyond its bound means that the controller lies or that its solver errs. Neither has an effect, so one line per kind is
 * enough. */
void peer_log_claim(struct ctld *d, int at)
{
	if (d->peers.histories[at].claim == CTLD_CLAIM_NONE)
		return;
	log_event(d, "claim", d->peers.peers[at].job, d->peers.histories[at].claim_text, NULL);
	ctld_peers_claim_logged(&d->peers, at);
}

/* Older controllers do not know the message, and ignore it. */
static void ask_for_figures(struct ctld *d, int at)
{
	json_t *m = json_pack("{s:s}", "type", "figures");
	if (m && ctld_server_send(d->server, d->peers.peers[at].job, m) == 0)
		d->peers.histories[at].figures_asked = true;
	json_decref(m);
}

/* A controller that was started again counts from 0. */
static double growth(double old, double new)
{
	return new >= old ? new - old : new;
}

/* What a job has told of itself since its last state: for the metrics, and a line for each change of its nodes. */
static void take_figures(struct ctld *d, int at, const struct ctld_figures *old)
{
	const struct ctld_figures *new = &d->peers.histories[at].figures;
	struct ctld_figures more = *new;
	if (!old->known || !new->known)
		return;
	more.tokens = (int64_t)growth((double)old->tokens, (double)new->tokens);
	more.resizes = (int64_t)growth((double)old->resizes, (double)new->resizes);
	more.steps_lost = (int64_t)growth((double)old->steps_lost, (double)new->steps_lost);
	more.paused_s = growth(old->paused_s, new->paused_s);
	more.trained_device_s = growth(old->trained_device_s, new->trained_device_s);
	more.paused_device_s = growth(old->paused_device_s, new->paused_device_s);
	more.lost_device_s = growth(old->lost_device_s, new->lost_device_s);
	job_metrics_count(d, at, &more);
	if (!more.resizes)
		return;
	char text[160];
	snprintf(text, sizeof text, "trains on %d devices after a pause of %.3g s; %lld steps lost", new->devices, more.paused_s,
	         (long long)more.steps_lost);
	log_event(d, "resized", d->peers.peers[at].job, text,
	          json_pack("{s:I, s:i, s:f, s:I, s:f, s:f}", "resizes", (json_int_t)more.resizes, "devices", new->devices, "pause_s",
	                    more.paused_s, "steps_lost", (json_int_t)more.steps_lost, "paused_device_s", more.paused_device_s,
	                    "lost_device_s", more.lost_device_s));
}

int on_controller_message(void *context, uint32_t job, json_t *message, struct hspmd_error *err)
{
	struct ctld *d = context;
	int at = ctld_peers_find(&d->peers, job);
	const char *type = json_string_value(json_object_get(message, "type"));
	if (at < 0 || !type)
		return hspmd_fail(err, "job %u: a message without a type", job);
	if (!strcmp(type, "answer"))
		return request_answered(d, at, message, err);
	if (strcmp(type, "state") != 0)
		return hspmd_fail(err, "job %u: unknown message '%.40s'", job, type);
	const struct ctld_peer *p = &d->peers.peers[at];
	double pause_s = p->pause_s;
	struct ctld_figures figures = d->peers.histories[at].figures;
	int rc = ctld_peers_state(&d->peers, at, message, ctld_nodes_held(d->view, p), ctld_reference_nodes(d->view, p), hspmd_unix_time(),
	                          err);
	d->dirty |= rc > 0;
	d->totals.pauses_s += p->pause_s != pause_s ? p->pause_s : 0; /* each resize reports its own */
	peer_log_claim(d, at);
	if (rc >= 0)
		take_figures(d, at, &figures);
	if (!d->peers.histories[at].figures_asked)
		ask_for_figures(d, at);
	return rc < 0 ? hspmd_error_prefix(err, "job %u", job) : 0;
}

void peers_sweep(struct ctld *d)
{
	for (int i = d->peers.count - 1; i >= 0; i--) {
		struct ctld_peer *p = &d->peers.peers[i];
		const struct hspmd_slurm_view_job *j = hspmd_slurm_view_find_job(d->view, p->job);
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
