/* SPDX-License-Identifier: Apache-2.0 */
/* The job controller as a pure function: (state, event) -> (state, actions), without I/O and without a clock of its own, so that every
 * order of events can be tried in a test. The loop around it (loop.c) feeds what happened and carries out what is asked for.
 *
 * A job lives in generations. One is current: starting -> training -> (stopping | aborting -> settling) -> held; another may be in the
 * making while the current one still trains: solving -> spawning -> preparing -> ready. A planned change makes the next one ready first and
 * only then stops the current one; an unplanned one aborts first. Handlers note facts; advance() (controller.c) decides what follows from
 * them, so the order in which the facts came does not matter. Every wait has a deadline (hspmd_controller_deadline) and a name
 * (hspmd_controller_status).
 *
 * Termination after a crash is that of a vote whose result may have reached some only (Gray & Lamport, "Consensus on transaction commit",
 * section 3): when one survivor has applied the step, then all had voted yes, and whoever is ready applies it too; else it is dropped by
 * all.
 */
#ifndef HSPMD_CORE_CONTROLLER_H
#define HSPMD_CORE_CONTROLLER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "common/format/cluster.h"
#include "common/format/job.h"
#include "common/format/model.h"
#include "common/format/plan.h"
#include "policies/liveput.h"

#define RUN_EVENTS_MAX 256 /* that `hspmd events` can tell */

enum run_event_kind {
	EVENT_TICK,       /* nothing but time has passed */
	EVENT_ALLOCATION, /* value { nodes: [names], state: "running" | "preempted" | "ending", end_in_s: seconds or null } what the job
	                   * holds now; where it has members, also members: { node: their job }, waiting: [jobs without a node yet], over: {
	                   * job: how it ended } */
	EVENT_AGENT_UP,   /* node; value: the agent's hello */
	EVENT_AGENT_LOST, /* node; text: why */
	EVENT_MESSAGE,    /* node; value: a message from its agent or, with "from", one of its workers */
	EVENT_PLAN,    /* id: of ACTION_SOLVE; value: { plan, cluster, current_step_s: what a step of the current plan would take there } or
	                * NULL and text: why there is    none */
	EVENT_COMMAND, /* id: of the connection; value: the request { command, ... } */
	EVENT_DISCONNECTED, /* id: that connection is gone */
	EVENT_RESIZED,      /* id: of ACTION_GROW or ACTION_SHRINK; text: NULL or why it failed */
	EVENT_RISK,         /* value { losses_per_node_s, correlated }: how nodes are lost here, as far as hspmdctld has seen */
	EVENT_SHUTDOWN,     /* save what is there and end within `seconds`; text: why ("SIGTERM") */
};

/* All borrowed for the call. */
struct run_event {
	enum run_event_kind kind;
	double now, wall; /* seconds: monotonic, and since 1970 */
	const char *node, *text;
	json_t *value;
	int64_t id;
	double seconds;
};

enum run_action_kind {
	ACTION_SEND,  /* node, value: to its agent */
	ACTION_SOLVE, /* id; value { cluster, current: { cluster, plan } or null, copies: that are kept, every_s, shared_every_s: how often
	               * it is saved, risk: as in EVENT_RISK } */
	ACTION_METRICS_LINE,     /* value: a line of metrics.jsonl */
	ACTION_SAVE_PLAN,        /* id: generation; value: plan */
	ACTION_JOURNAL,          /* value: what a later incarnation of the controller must know, kept durably before the next action */
	ACTION_RECORD_EVENT,     /* value: what `hspmd events` tells, { number, time, event, text, generation } */
	ACTION_LOG,              /* id: enum hspmd_log_level; text */
	ACTION_START_AGENT,      /* node */
	ACTION_DISCONNECT_AGENT, /* node: close its connection */
	ACTION_POLL_SLURM,       /* ask Slurm about the job now */
	ACTION_GROW,             /* id; count: nodes to add */
	ACTION_SHRINK,           /* id, 0: nobody waits for it; value: [nodes to give back] */
	ACTION_CANCEL_GROW,      /* nodes that were asked for and have not come are wanted no more */
	ACTION_REPLY,            /* id: connection; value; last: nothing more will come */
	ACTION_EXIT,             /* count: exit status; text: why, when it is not 0 */
};

struct run_action {
	enum run_action_kind kind;
	char *node, *text;
	json_t *value;
	int64_t id;
	int count;
	bool last;
};

struct run_actions {
	struct run_action *list;
	size_t count, capacity;
};
void run_actions_clear(struct run_actions *a);

/* Waits, in seconds. */
struct run_timeouts {
	double startup;              /* for agents of the allocation's nodes */
	double debounce;             /* after a change, for what belongs to it */
	double revive, revive_agent; /* for a process that takes up what a killed one left; and for its agent to come back first */
	double slurm_confirm;        /* for Slurm's word on a node whose agent was lost, before the next plan is made */
	double solve, spawn, prepare, start, stop, abort, settle, checkpoint_search, checkpoint, quit;
	double ping;        /* for a sign of life of a worker that is asked for one */
	double step_min;    /* a step's deadline is never below this */
	double step_factor; /* and is this many times the slowest of the last steps */
	double step_first;  /* before anything is known */
	double nodes;       /* for nodes to come back when there are too few */
};
struct run_timeouts run_timeouts_default(void);

struct run_checkpoint_choice {
	int64_t step;
	json_t *manifest, *files; /* as in `start` of wire.h; new references */
	bool durable;             /* on some disk, not in memory alone */
};

/* What the controller needs to know, and the pure judgements it borrows from other rooms. All borrowed for its whole lifetime. */
struct run_config {
	const struct hspmd_job *job;
	const struct hspmd_model *model; /* NULL: `expect` does not need it */
	json_t *job_json, *model_json;
	int layers; /* of the model; -1: unknown */
	const char *job_id, *output;
	const char *transport;              /* name, NULL: the workers' choice */
	const char *local, *shared;         /* checkpoint folders, expanded; NULL: none */
	const char *memory;                 /* folder in nodes' memory, for copies and for what outlives workers; NULL: neither */
	json_t *first_plan;                 /* NULL: solve */
	const char *first_plan_name;        /* what messages call it */
	int64_t generation;                 /* number of the last generation of an earlier incarnation of this job; 0: none */
	int64_t last_step;                  /* steps that an earlier incarnation reported as done; 0: none */
	int64_t resize_reported;            /* newest generation whose change it has told of; 0: none */
	const char *run;                    /* name of this run, the same over its incarnations: checkpoints bear it */
	json_t *journal;                    /* of the incarnation before, whose workers may still train; NULL: there are none */
	json_t *events;                     /* that earlier incarnations told of, the last of them; NULL: none */
	const char *resumed;                /* cause of the first resize line of a later incarnation ("requeue"); NULL: first incarnation */
	bool resizable;                     /* the allocation can be grown and shrunk */
	bool members;                       /* jobs beside it may join: agents of nodes that it does not hold yet are heard */
	struct run_policy_terms {           /* what the site's policy says of this job */
		int max_nodes, max_devices; /* INT_MAX: no limit */
		const char *max_nodes_by, *max_devices_by;    /* "policy spot (20-spot.json)", for messages */
		double slower_than, slower_for_s, back_below; /* of stragglers; slower_than 0: they are not looked for */
		double min_gain;                              /* the least relative gain that is worth a resize */
	} policy_terms;
	struct hspmd_risk risk; /* as known at the start; 0: nothing is */
	int max_attempts;       /* generations in a row that fail without a step before the job is given up */
	struct run_timeouts timeouts;
	/* Seconds that each device of the plan, in its order, is busy in a step. NULL, or -1: nobody knows, and no device is found to be
	 * slow. */
	int (*expected_busy)(const struct run_config *c, const struct hspmd_plan *plan, const struct hspmd_cluster *cluster,
	                     double *busy_s);
	/* Can the plan that was given be run? -1 and err (names the plan) when not. NULL: somebody has looked. */
	int (*runnable)(const struct run_config *c, const struct hspmd_plan *plan, const struct hspmd_cluster *cluster,
	                struct hspmd_error *err);
	/* Do these devices (indexes into the cluster) together hold all state of the plan? */
	bool (*covered)(const struct hspmd_plan *plan, const struct hspmd_cluster *cluster, const int *devices, int count);
	/* The manifest of a checkpoint whose every slice is in `written` (one `checkpoint_written` per worker, with "from"; some may tell
	 * of errors); NULL and err when something is missing. */
	json_t *(*manifest)(const struct run_config *c, const char *id, json_t *cluster, json_t *plan, json_t *written,
	                    struct hspmd_error *err);
	/* The newest checkpoint that is whole, out of all agents' `checkpoint_list` answers ({ node: checkpoints }); -1 when there is none.
	 * `readers` maps a node to the device address that reads its files. */
	int (*choose)(const struct run_config *c, json_t *found, json_t *readers, struct run_checkpoint_choice *choice);
};

struct hspmd_controller;
struct hspmd_controller *hspmd_controller_create(const struct run_config *config, double now, struct hspmd_error *err);
void hspmd_controller_destroy(struct hspmd_controller *m);

/* Take an event in; what is to be done is appended to `actions` in order. -1: out of memory; the controller is of no more use. */
int hspmd_controller_handle(struct hspmd_controller *m, const struct run_event *event, struct run_actions *actions);
/* When EVENT_TICK must be fed at the latest; INFINITY: never. */
double hspmd_controller_deadline(const struct hspmd_controller *m);
/* For `hspmd status`: new reference, NULL when memory is short. */
json_t *hspmd_controller_status(const struct hspmd_controller *m, double now, double wall);

#endif
