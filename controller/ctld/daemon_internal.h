/* SPDX-License-Identifier: Apache-2.0 */
/* Private to controller/ctld. */
#ifndef HSPMD_CTLD_DAEMON_INTERNAL_H
#define HSPMD_CTLD_DAEMON_INTERNAL_H

#include <stdio.h>

#include "controller/ctld/daemon.h"
#include "controller/ctld/poll_interval.h"
#include "controller/ctld/peers.h"
#include "controller/ctld/server.h"

struct eligible_since {
	uint32_t job;
	double since_s;
};

/* Why a resize was asked for. */
enum cause { CAUSE_IDLE, CAUSE_WAITING, CAUSE_REBALANCE, CAUSE_LIMITS, CAUSES };
extern const char *const cause_names[]; /* "idle", "waiting", "rebalance", "limits", NULL */

struct totals {
	uint64_t rpcs, rounds, failed_polls, decisions;
	uint64_t grows, shrinks, declined, unanswered, nodes_asked, nodes_given;
	uint64_t asked_for[CAUSES];
	double pauses_s;  /* of all resizes, by the jobs' word */
	double up_node_s; /* nodes that were watched, and of these lost: how many, and the sum over these of the part of all others that
	                     went with them */
	uint64_t lost_nodes;
	double correlated;
};

struct ctld {
	const struct ctld_options *options;
	uv_loop_t loop;
	uv_timer_t tick;
	uv_signal_t signals[3];
	uv_fs_event_t folder;
	uv_work_t work;
	struct hspmd_auth *auth;
	struct ctld_handlers handlers;
	struct ctld_server *server;
	struct ctld_metrics *metrics;
	FILE *log;
	bool stopping;

	struct hspmd_policy *policy;
	char policy_error[HSPMD_ERROR_MAX]; /* of the last reload; "" when it was taken */
	struct ctld_peers peers;
	struct hspmd_slurm_view *view;            /* not touched while looking */
	struct ctld_node_history *node_histories; /* one per node of the view */
	struct eligible_since *eligible;
	int eligible_count;

	bool polling; /* a poll is under way on another thread */
	struct hspmd_slurm_view *new_view;
	int poll_rc, poll_rpcs;
	struct hspmd_error poll_error;
	struct ctld_poll_interval poll_interval;
	double poll_began_s, viewed_s; /* monotonic; viewed: when the view last became another */
	double seen_s, answered_s;     /* what is known of Slurm is not older than this; when a job last did what it was asked */
	bool dirty;                    /* something came in that decisions depend on */
	double decided_s;
	int64_t last_request_id; /* last id */
	double began_s;
	double watchdog_s, watchdog_at; /* a sign of life to the service manager, if it wants any */
	struct totals totals;
	char last_error[HSPMD_ERROR_MAX]; /* why the last poll failed; "" */
};

/* daemon.c: what is due then is done then, and not at the next tick. Monotonic seconds. */
void schedule_tick(struct ctld *d, double when_s);

/* slurm_poll.c */
void poll_begin(struct ctld *d);
/* Soon, because something happened. */
void poll_soon(struct ctld *d);

/* requests.c */
void decide(struct ctld *d);
void expire_requests(struct ctld *d);
int on_controller_message(void *context, uint32_t job, json_t *message, struct hspmd_error *err);
int on_hello(void *context, uint32_t job, uid_t uid, struct hspmd_error *err);
void on_gone(void *context, uint32_t job);
void sweep_peers(struct ctld *d);
/* After a new look: nodes that were asked for and that their job holds no more. */
void forget_returned(struct ctld *d);
const struct hspmd_slurm_view_job *view_job(const struct hspmd_slurm_view *v, uint32_t id);
int nodes_of(const struct ctld *d, const struct ctld_peer *p);

/* query.c */
/* How often a node was lost a second, and which part of the others in the same moment. */
void risk_seen(const struct ctld *d, double *losses, double *correlated);
json_t *on_query(void *context, uid_t uid, json_t *message, struct hspmd_error *err);

/* event_log.c: a line of JSON an event, into the event log; what people should hear also to the log and syslog. Takes `more` over (may be
 * NULL). */
void log_event(struct ctld *d, const char *event, uint32_t job, const char *text, json_t *more);
int event_log_open(struct ctld *d, struct hspmd_error *err);

/* metrics.c: OpenMetrics over HTTP. */
struct ctld_metrics *metrics_open(struct ctld *d, const char *listen, struct hspmd_error *err);
void metrics_close(struct ctld_metrics *m);

#endif
