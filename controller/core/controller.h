/* SPDX-License-Identifier: Apache-2.0 */
/* The job controller as a pure function: (state, event) -> (state, actions), without I/O and without a clock of its own, so that a test can
 * try every order of events. The loop around it (controller/run/loop.c) passes events in and carries out the actions.
 *
 * A job consists of generations. One is current: starting -> training -> (stopping | aborting -> settling) -> held. Another may be prepared
 * while the current one still trains: solving -> spawning -> preparing -> preconnecting -> ready. A planned change first makes the next
 * generation ready, and only then stops the current one; an unplanned one aborts the current one first. Handlers note facts; the advance_*
 * functions, called in turn until none has anything left to do (hspmd_controller_handle), decide what follows from them, so the order of
 * the facts does not matter. Only a lost process is dealt with at once (failure.c). Every wait has a deadline (hspmd_controller_deadline)
 * and a name (hspmd_controller_status).
 *
 * After a loss nothing trains until there is a plan. So a large job goes on with its last plan, repaired, which takes no search; a better
 * one is searched for beside it, and replaces it by a planned change if that pays off (better_plan.c).
 *
 * After a crash, the result of a step's vote may have reached some workers only (Gray & Lamport, "Consensus on transaction commit", section
 * 3): if one survivor has applied the step, then all had voted yes, and every survivor that is ready applies it, too; else all drop
 * it. */
#ifndef HSPMD_CORE_CONTROLLER_H
#define HSPMD_CORE_CONTROLLER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "common/format/cluster.h"
#include "common/format/job.h"
#include "common/format/model.h"
#include "common/format/model_facts.h"
#include "common/format/plan.h"
#include "policies/liveput.h"

#define RUN_EXIT_MORE 85   /* exit status of a job, and of a command: it has saved, and wants to go on */
#define RUN_EVENTS_MAX 256 /* events that are kept for `hspmd events` */
#define RUN_MANIFEST_SUM 17

enum run_event_kind {
	EVENT_TICK,       /* only time has passed */
	EVENT_ALLOCATION, /* value { nodes: [names], state: "running" | "preempted" | "ending", end_in_s: seconds or null }: what the job
	                   * holds now. If it has members also members: { node: its job }, waiting: [jobs without a node yet], over: { job:
	                   * how it ended }. With Slurm also held: { node: { cpus: n, gpus: "0-1" } }, by Slurm's numbers of GPUs */
	EVENT_AGENT_UP,   /* node; value: its agent's `hello` */
	EVENT_AGENT_LOST, /* node; text: the reason */
	EVENT_NEWCOMER,   /* node; value: the hello of another agent of this node, with which the controller does not work: it waits for
	                   * ACTION_TURN_AWAY or ACTION_REPLACE_AGENT. It takes the place of another that waits */
	EVENT_NEWCOMER_MESSAGE, /* node; value: a message from that agent */
	EVENT_NEWCOMER_GONE,    /* node: that agent's connection is gone */
	EVENT_MESSAGE,          /* node; value: a message from its agent or, with "from", one of its workers */
	EVENT_PLAN,    /* id: of ACTION_SOLVE; value: { plan, cluster, current_step_s: step time of the current plan on that cluster }; of a
	                * plan that was not searched for, but repaired: { plan, cluster, behind: by what factor it is slower than the
	                * last one that was searched for, beyond the speed that was lost since }; or NULL and text: why there is none */
	EVENT_COMMAND, /* id: of the connection; value: the request { command, ... } */
	EVENT_DISCONNECTED,  /* id: of the connection that is gone */
	EVENT_RESIZED,       /* id: of ACTION_GROW or ACTION_SHRINK; text: why it failed; NULL: it was carried out */
	EVENT_SAMPLED,       /* id: of ACTION_SAMPLE; text: why there are none; NULL: they are written, after `seconds` */
	EVENT_RISK,          /* value { losses_per_node_s, correlated }: node losses on this cluster, as hspmdctld has observed them */
	EVENT_OUTPUT,        /* text: the output folder does not answer, or does again */
	EVENT_WAS_SUSPENDED, /* seconds: for how long; they are not part of `now` */
	EVENT_SHUTDOWN,      /* write a checkpoint and end within `seconds` (0: unknown); text: why ("SIGTERM") */
};

/* All pointers are borrowed for the call. */
struct run_event {
	enum run_event_kind kind;
	double now, wall; /* seconds: monotonic, and since 1970 */
	const char *node, *text;
	json_t *value;
	int64_t id;
	double seconds;
	bool more; /* the next event follows at once: deadlines, and what follows from all facts together, are looked at after that one */
};

enum run_action_kind {
	ACTION_SEND,         /* node, value: to its agent */
	ACTION_SOLVE,        /* id; value { cluster, current: { cluster, plan, behind: as in EVENT_PLAN, 0 if it was searched for } or null,
	               * urgent: nothing trains until the plan is there, so that the current plan may be repaired, max_nodes, copies: of
	               * the state on other nodes, every_s, shared_every_s: checkpoint intervals, risk: as in EVENT_RISK } */
	ACTION_CANCEL_SOLVE, /* id: of the ACTION_SOLVE whose answer is not needed any more */
	ACTION_METRICS_LINE, /* value: a line of metrics.jsonl */
	ACTION_SAVE_PLAN,    /* id: generation; value: plan */
	ACTION_SAVE_DEVICES, /* id: generation; value: how long its devices have computed */
	ACTION_JOURNAL,      /* value: the journal for a later incarnation of the controller; kept for it before the next action */
	ACTION_TRACE_TEXT,   /* value: text of the trace file that is being written; the first is its head */
	ACTION_TRACE_SPANS,  /* value: a part of it (common/format/trace_spans.h) */
	ACTION_TRACE_END,    /* value { name: of the file; hspmd: what is to be said in it }: the file is complete */
	ACTION_RECORD_EVENT, /* value: an event of `hspmd events`, { number, time, event, text, generation } */
	ACTION_SAMPLE,       /* id: step of a complete checkpoint, from which samples are to be made */
	ACTION_LOG,          /* id: enum hspmd_log_level; text */
	ACTION_START_AGENT,  /* node */
	ACTION_DISCONNECT_AGENT, /* node: close its connection */
	ACTION_TURN_AWAY,        /* node; text: the other agent, which waits, is told why it is not needed, and ends */
	ACTION_REPLACE_AGENT,    /* node; text: from now on the node's agent is the one that waits; an earlier one is told why, and ends */
	ACTION_POLL_SLURM,       /* poll Slurm now for the job's allocation */
	ACTION_GROW,             /* id; count: nodes to add */
	ACTION_SHRINK,           /* id (0: no request waits for it); value: [nodes to give back] */
	ACTION_CANCEL_GROW,      /* cancel requests for nodes that have not come yet */
	ACTION_REPLY,            /* id: connection; value: the reply; last: the connection may be closed after it */
	ACTION_EXIT,             /* count: exit status; text: the reason, if the status is not 0 */
};

struct run_action {
	enum run_action_kind kind;
	char *node, *text;
	json_t *value;
	json_t *body; /* ACTION_SEND: the keys of value that all nodes are sent alike, one object; NULL: value is for this node alone */
	int64_t id;
	int count;
	bool last;
};

struct run_actions {
	struct run_action *list;
	size_t count, capacity;
};
void run_actions_clear(struct run_actions *a);

/* Deadlines and delays, in seconds. */
struct run_timeouts {
	double startup;              /* for the agents of the allocation's nodes to connect */
	double debounce;             /* between a cause and the solve, so that related events share one change; survivors that have settled
	                              * end it */
	double revive, revive_agent; /* for a process to take up the state of a killed one; for its agent to reconnect first */
	double slurm_confirm;        /* for Slurm to report on a node whose agent was lost, before the next plan is made */
	double solve, spawn, prepare, start, stop, abort, settle, checkpoint_search, checkpoint, quit;
	double ping;        /* for a worker's answer to `ping` */
	double step_min;    /* least time allowed for a step */
	double step_factor; /* time allowed for a step, as a multiple of the slowest recent step */
	double step_first;  /* time allowed for a generation's first step */
	double nodes;       /* for more nodes, if there are too few */
};
struct run_timeouts run_timeouts_default(void);

struct run_checkpoint_choice {
	int64_t step;
	char sum[RUN_MANIFEST_SUM]; /* the name of its manifest, as in `checkpoint_list` */
	json_t *manifest, *files;   /* as in `start` of wire.h; new references */
	bool durable;               /* at least one copy is on a disk, not in memory */
};

/* The controller's input, and pure functions of other components that it calls. All pointers are borrowed for its whole lifetime. */
struct run_config {
	const struct hspmd_job *job;
	const struct hspmd_model_facts *facts; /* NULL: unknown; then expected_busy must not need it */
	const struct hspmd_model *model;       /* for runnable; NULL: unknown */
	json_t *job_json, *model_json, *object_json;
	int layers; /* of the model; -1: unknown */
	const char *job_id, *output;
	const char *transport;              /* name; NULL: the workers choose */
	const char *local, *shared;         /* checkpoint folders, expanded; NULL: none */
	const char *save_folder;            /* of a job with a command: where the command keeps its own checkpoints; else NULL */
	const char *memory;                 /* tmpfs folder on the nodes, for copies and for state that outlives workers; NULL: neither */
	json_t *first_plan;                 /* NULL: solve */
	const char *first_plan_name;        /* for messages */
	int64_t generation;                 /* last generation of an earlier incarnation of this job; 0: none */
	int64_t last_step;                  /* steps that earlier incarnations reported as done; 0: none */
	int64_t resize_reported;            /* newest generation with a resize line by an earlier incarnation; 0: none */
	const char *run;                    /* name of this run, the same in all incarnations; checkpoints carry it */
	json_t *journal;                    /* of the previous incarnation, whose workers may still train; NULL: none */
	json_t *events;                     /* the last events of earlier incarnations; NULL: none */
	const char *resumed;                /* cause of the first resize line of a later incarnation ("requeue"); NULL: first incarnation */
	bool resizable;                     /* the allocation can be grown and shrunk */
	bool members;                       /* member jobs may join: agents of nodes outside the allocation may wait */
	struct run_policy_terms {           /* the site's policy for this job */
		int max_nodes, max_devices; /* INT_MAX: no limit */
		const char *max_nodes_by, *max_devices_by;    /* "policy spot (20-spot.json)", for messages */
		double slower_than, slower_for_s, back_below; /* stragglers; slower_than 0: not looked for */
		double min_gain;                              /* the least relative gain that is worth a resize */
	} policy_terms;
	struct hspmd_risk risk; /* as known at the start; 0: unknown */
	int max_attempts;       /* failures without a step between, after which the run ends */
	struct run_timeouts timeouts;
	/* Fills in the seconds per step for which each device of the plan, in plan order, is busy. NULL, or returns -1: unknown; then no
	 * device counts as a straggler. */
	int (*expected_busy)(const struct run_config *c, const struct hspmd_plan *plan, const struct hspmd_cluster *cluster,
	                     double *busy_s);
	/* Returns -1 and err (which names the plan) if first_plan cannot be run. Adds the program if the plan leaves it to a search. NULL:
	 * it was checked already. */
	int (*runnable)(const struct run_config *c, struct hspmd_plan *plan, const struct hspmd_cluster *cluster, struct hspmd_error *err);
	/* Returns true if these devices (indexes into the cluster) together hold all state of the plan. */
	bool (*covered)(const struct hspmd_plan *plan, const struct hspmd_cluster *cluster, const int *devices, int count);
	void *state; /* of manifest and choose, which nobody else calls at the same time */
	/* Makes the manifest of a checkpoint from `written`: one `checkpoint_written` per worker, with "from"; some may report errors. NULL
	 * and err: a slice is missing. */
	json_t *(*manifest)(const struct run_config *c, const char *id, json_t *cluster, json_t *plan, json_t *written,
	                    struct hspmd_error *err);
	/* Chooses the newest complete checkpoint from the agents' `checkpoint_list` answers ({ node: checkpoints }). `manifests` has those
	 * that are known, and null for those that nobody could send, by their sums; `readers` maps a node to the address of the device that
	 * reads its files. 1: *choice is set; 2: that depends on the manifest that choice->sum names; 0 and err: there is none; -1 and err:
	 * there is one, but not of this job's model, so that the job can neither continue from it nor start anew beside it. */
	int (*choose)(const struct run_config *c, json_t *found, json_t *manifests, json_t *readers, struct run_checkpoint_choice *choice,
	              struct hspmd_error *err);
	/* Checks what an agent has sent as the manifest of this sum. 0; -1 and err: it is something else. */
	int (*check_manifest)(const json_t *manifest, const char *sum, struct hspmd_error *err);
};

struct hspmd_controller;
struct hspmd_controller *hspmd_controller_create(const struct run_config *config, double now, struct hspmd_error *err);
void hspmd_controller_destroy(struct hspmd_controller *m);

/* Handles an event, and appends the actions that follow to `actions`, in order. -1: out of memory; the controller can only be destroyed. */
int hspmd_controller_handle(struct hspmd_controller *m, const struct run_event *event, struct run_actions *actions);
/* The time by which EVENT_TICK must be handled; INFINITY: never. */
double hspmd_controller_deadline(const struct hspmd_controller *m);
/* The reply to `hspmd status`. New reference; NULL: out of memory. */
json_t *hspmd_controller_status(const struct hspmd_controller *m, double now, double wall);

#endif
