/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of controller/ctld share. Calls go one way: daemon.c orders what happens; decide_round.c runs the policy engine;
 * peer_messages.c handles what controllers send; requests.c, query.c, metrics.c, slurm_poll.c and event_log.c call none of these. */
#ifndef HSPMD_CTLD_DAEMON_INTERNAL_H
#define HSPMD_CTLD_DAEMON_INTERNAL_H

#include <stdio.h>

#include "controller/ctld/daemon.h"
#include "controller/ctld/peers.h"
#include "controller/ctld/poll_interval.h"
#include "controller/ctld/server.h"
#include "policies/budget.h"

#define CTLD_TICK_MS 250 /* regular ticks */

struct eligible_since {
	uint32_t job;
	double since_s;
};

/* Why a resize was requested. */
enum cause { CAUSE_IDLE, CAUSE_WAITING, CAUSE_REBALANCE, CAUSE_LIMITS, CAUSES };
extern const char *const cause_names[]; /* "idle", "waiting", "rebalance", "limits", NULL */

/* Counters since the start of the daemon. */
struct totals {
	uint64_t rpcs, rounds, failed_polls, decisions;
	uint64_t grows, shrinks, declined, unanswered, nodes_granted, nodes_recalled;
	uint64_t requests_by_cause[CAUSES];
	double pauses_s;     /* sum over all resizes, as the controllers report them */
	double up_node_s;    /* node-seconds during which a node was watched and usable */
	uint64_t lost_nodes; /* nodes lost during up_node_s */
	double correlated;   /* sum over the lost nodes of the fraction of the other nodes that were lost in the same poll */
};

struct ctld {
	const struct ctld_options *options;
	uv_loop_t loop;
	uv_timer_t tick;
	uv_timer_cb on_tick; /* callback of tick */
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
	char policy_error[HSPMD_ERROR_MAX]; /* of the last reload; "" if it succeeded */
	struct ctld_peers peers;
	struct hspmd_slurm_view *view;            /* not changed during a poll, whose thread reads it; NULL before the first */
	struct ctld_node_history *node_histories; /* one per node of the view */
	struct eligible_since *eligible;          /* sorted by job */
	int eligible_count;

	bool polling;                                    /* a poll is under way on another thread */
	void (*on_polled)(struct ctld *d, bool changed); /* a poll has ended; changed: the view is a new one */
	struct hspmd_slurm_view *new_view;
	struct hspmd_slurm_accounts accounts, new_accounts;
	bool ask_accounts, ask_shares; /* the poll under way reads the accounts too; fairshare among them */
	int accounts_rc;               /* of that */
	double accounts_s;             /* when they were last read; monotonic; 0: never */
	struct hspmd_error accounts_error;
	int poll_rc, poll_rpcs;
	struct hspmd_error poll_error;
	struct ctld_poll_interval poll_interval;
	double poll_began_s, viewed_s;  /* monotonic; viewed: when the view was last replaced */
	double seen_s, answered_s;      /* start of the last poll that succeeded; when a job last carried out a request */
	bool dirty;                     /* facts that decisions depend on have changed */
	double decided_s;               /* time of the last round of decisions */
	double wait_ends_s;             /* monotonic; when a job next ends its wait for further nodes; INFINITY: none waits */
	int64_t last_request_id;        /* ids rise, across restarts of the daemon as well */
	double began_s;                 /* start of the daemon */
	double watchdog_s, watchdog_at; /* interval and next time of WATCHDOG=1; interval 0: the service manager expects none */
	struct totals totals;
	char last_error[HSPMD_ERROR_MAX]; /* why the last poll failed; "" if it succeeded */
	struct hspmd_budget budget;
	json_t *saved_jobs; /* budget file: { job: the fewest nodes that it has held }, until its controller connects; NULL: none */
	struct ctld_job_sums *job_sums; /* job_metrics.c */
	double charged_s;               /* wall clock until which budgets are charged; 0: not yet */
	double budget_saved_s;
};

/* slurm_poll.c: polls of Slurm on a thread of libuv's pool. on_polled() is called on the loop after each, unless the daemon is stopping. */
void poll_begin(struct ctld *d);
/* Bring the next poll forward, because a fact has changed. */
void poll_soon(struct ctld *d);
/* Bring it forward to this time at the latest, in monotonic seconds. */
void poll_by(struct ctld *d, double when_s);
/* Observed losses: per node and second, and the mean fraction of the other nodes that is lost in the same poll. */
void poll_losses(const struct ctld *d, double *losses_per_node_s, double *correlated);

/* peer_messages.c: handlers of the server (ctld_handlers). */
int on_hello(void *context, uint32_t job, uid_t uid, struct hspmd_error *err);
int on_controller_message(void *context, uint32_t job, json_t *message, struct hspmd_error *err);
void on_gone(void *context, uint32_t job);
/* After a new view: disconnect controllers whose job is another user's or unknown to Slurm. */
void peers_sweep(struct ctld *d);
/* Log a claim that was not accepted, once per job and kind. */
void peer_log_claim(struct ctld *d, int at);

/* requests.c: resizes that controllers are requested to carry out. `at` is a peer's index. */
void request_send(struct ctld *d, const struct ctld_snapshot *s, const struct hspmd_resize_action *a);
/* In a dry run, instead: logs what would be requested of whom, and again only if that changes. */
void requests_log_dry(struct ctld *d, const struct ctld_snapshot *s, const struct hspmd_decision *e);
/* The controller's `answer` has arrived. -1: no such request is pending. */
int request_answered(struct ctld *d, int at, json_t *message, struct hspmd_error *err);
/* The controller's connection is gone, and its pending request with it. */
void request_abandon(struct ctld *d, int at);
/* End requests that have been pending for CTLD_ANSWER_S. */
void requests_expire(struct ctld *d);
/* After a new view: nodes that a job was requested to return and no longer holds have been returned. */
void requests_forget_returned(struct ctld *d);

/* decide_round.c: run the policy engine on the current view and peers, and send the requests that follow. */
void decide(struct ctld *d);

/* budgets.c: budgets of node hours. */
/* Reads the budget file, if there is one. */
int budgets_load(struct ctld *d, struct hspmd_error *err);
/* Charges what the elastic jobs have used since the last call, and fills in what of their budgets is spent. */
void budgets_charge(struct ctld *d, struct ctld_snapshot *s);
/* Notes how many nodes the jobs hold, before a snapshot is built. */
void budgets_note_nodes(struct ctld *d);
/* Writes the budget file; `now`: although it was written less than a minute ago. */
void budgets_save(struct ctld *d, bool now);

/* query.c: answers viewers (ctld_handlers.query). */
/* The elastic jobs that this user may see; a new reference, or NULL: out of memory. */
json_t *query_jobs(const struct ctld *d, uid_t viewer);
json_t *on_query(void *context, uid_t uid, json_t *message, struct hspmd_error *err);

/* event_log.c: append one line of JSON per event to the event log; the same text goes to standard error, and to syslog if enabled. Takes
 * ownership of `more` (members added to the line; may be NULL). job 0: the event is about no job. */
void log_event(struct ctld *d, const char *event, uint32_t job, const char *text, json_t *more);
int event_log_open(struct ctld *d, struct hspmd_error *err);

/* A metrics page that is being written. */
struct ctld_page {
	FILE *f;
	bool plain; /* Prometheus's text format, in which a counter's family has the suffix _total, instead of OpenMetrics */
};

/* job_metrics.c: metrics of jobs. Without the label "job" they are those of all jobs with equal labels, and counters then count from the
 * daemon's start, so that they do not fall when a job ends. */
/* What a job has done since its last state (the counters of `more`). */
void job_metrics_count(struct ctld *d, int at, const struct ctld_figures *more);
void job_metrics_write(const struct ctld_page *p, const struct ctld *d);
void job_metrics_clear(struct ctld *d);
/* The head of a family, without the prefix hspmd_. */
void job_metrics_family(const struct ctld_page *p, const char *name, const char *type, const char *help);

/* metrics.c: OpenMetrics over HTTP, served from the loop. NULL and err if it cannot listen. */
struct ctld_metrics *metrics_open(struct ctld *d, const char *listen, struct hspmd_error *err);
void metrics_close(struct ctld_metrics *m);

#endif
