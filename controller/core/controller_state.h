/* SPDX-License-Identifier: Apache-2.0 */
/* The controller's state. Private to controller/core. */
#ifndef HSPMD_CORE_CONTROLLER_STATE_H
#define HSPMD_CORE_CONTROLLER_STATE_H

#include "common/log.h"
#include "controller/core/checkpoint_interval.h"
#include "controller/core/controller.h"

#define ADDRESS_MAX 128
#define RECENT_STEPS 16   /* steps from whose times the next deadline is computed */
#define HISTORY_STEPS 128 /* steps whose losses a live view gets when it begins */
#define NODES_TOLD 256    /* of how many nodes at most a change's line says what each got */
#define SLOW_WINDOWS 3    /* consecutive windows in which a device must be slow to count as a straggler */

enum process_state { PROC_NONE, PROC_STARTING, PROC_UP };

struct node;

struct worker {
	struct node *node;
	int index;
	char address[ADDRESS_MAX];
	enum process_state process;
	int64_t serial;      /* of its process; messages about an earlier process are ignored */
	int64_t quit_serial; /* serial of an earlier process that was told to quit and may still run; 0: none */
	double heard_at;     /* time of the last message from it */
	double asked_at;     /* time of a `ping` that is not answered yet; 0: none */
	bool adopted;    /* its process is older than this incarnation of the controller, and has not trained since: the messages that it
	                    received are unknown */
	double deadline; /* PROC_STARTING: for its hello */
	int place[2];    /* in the members, and among the plan's devices, of the generations with an even and an odd number that were
	                    bound last: where a search for it begins */
	bool reviving;   /* a new process takes up the state that the previous one left in memory (revive.c) */
	double revive_by;
	int revivals; /* attempts since the last committed step */
	int faults;   /* since the last committed step */
	/* The state that it holds: of `step` (the next to run) under the plan of generation `holds`; holds 0: none. */
	int64_t holds, step;
	double expected_s;  /* busy time per step that the cost model predicts for the current plan; 0: unknown */
	double first_ratio; /* measured over expected busy time in the generation's first window; 0: not known yet */
	double busy_s;      /* sum of the measured busy times of this window */
	int busy_count;     /* number of them */
	struct {
		int64_t generation, memory_bytes; /* memory_bytes: at its peak */
		double compute_s, sent_per_step;  /* of a step: seconds; bytes to other devices */
		double computed_s, steps;         /* all so far in the generation: seconds; steps */
	} load;                                   /* as it last reported (status_detail.c) */
	struct {
		int64_t id, serial;      /* of the trace in which this process takes part */
		int rounds;              /* round trips that have measured its clock */
		double trip_s, offset_s; /* the shortest; its clock less this one */
		bool told, done;         /* what to record; it has sent all */
		int64_t steps, dropped;  /* recorded; spans for which it had no room */
	} trace;
};

struct past_step {
	int64_t step;
	double loss;
};

struct node {
	char *name;       /* first, for hspmd_name_order() */
	bool held;        /* in the allocation */
	bool leaving;     /* a shrink gives it back */
	bool quarantined; /* its devices failed too often, or it rejoins: no plan uses it until quarantined_until */
	bool rejoins;     /* used again as soon as the others train: a rank of an elastic command was lost here */
	double quarantined_until;
	char left_out_why[240];   /* why it is quarantined, or its agent is not up; "": no reason is known */
	int quarantines;          /* how often it was quarantined */
	int failed_reads;         /* failures of its workers in this quarantine, since the last committed step */
	bool terminating;         /* its agent is ending, because of a shrink or a signal from outside */
	int64_t member;           /* the member job that holds it; 0: the anchor */
	bool quit_sent;           /* a terminating member's agent was sent `quit` */
	bool released;            /* a member's node that is of no use: its job is being ended */
	double unconfirmed_until; /* its agent is up, but Slurm has not named the node yet: when the agent is sent away; 0: confirmed */
	enum process_state agent;
	bool agent_locks; /* it held the lock of the node's part of the memory when it connected, or later */
	double deadline;  /* PROC_STARTING */
	json_t *newcomer; /* the hello of another agent of this node, which waits (newcomer.c); NULL: none */
	double newcomer_until;
	bool pinged;     /* that agent waits because the present one was sent `ping` */
	int attempts;    /* agent starts since one was up */
	double retry_at; /* its agent is not started again before this, because the last start failed */
	struct hspmd_cluster *part;
	double base, slowdown;            /* slowdown in the agent's hello; measured slowdown since (1: none), which `part` includes */
	int verdicts;                     /* consecutive windows in which it was slower (> 0) or faster (< 0) than `slowdown` */
	double evidence[SLOW_WINDOWS];    /* the slowdowns measured in the last of them */
	double readmit_at, readmit_after; /* an unused slow node is tried again at this time, after so many seconds; 0: not set */
	int64_t checkpoint_search;        /* the last search for checkpoints in which its present agent was asked; 0: none */
	json_t *holds, *granted;          /* what the job holds here by Slurm, and its agent's step; NULL: unknown */
	bool idle_checked;                /* idle_check() has compared them */
	bool reads;       /* the next plan does not use the node, but a worker reads files of the checkpoint there (readers.c) */
	json_t *bindings; /* per device: { threads, index }, for its worker's `job` message */
	json_t *to;       /* while a message is sent to workers: those of this node; otherwise NULL */
	const struct bound_plan *counted; /* the last plan that was made with it */
	struct worker **worker;
	int workers, known; /* devices of `part`; entries of `worker`, which are never removed (workers <= known) */
};

/* A plan, the cluster to which it is bound, and the worker of each of its devices. Counted references. */
struct bound_plan {
	int refs;
	int64_t generation;
	json_t *cluster_json, *plan_json;
	struct hspmd_cluster *cluster;
	struct hspmd_plan *plan;
	struct worker **device; /* workers in plan order, each once; the first reports the steps */
	int devices, nodes;     /* of the plan; usable nodes that the job had when the plan was made */
	int nodes_used;         /* by the plan */
	int copies;             /* of the state, kept on other nodes */
	int keep;               /* number of the plan's nodes that a shrink by count leaves (common/losses.h) */
	bool safe;              /* living workers hold all state after any loss that the copies are meant to survive */
	double behind; /* it was repaired, and a better one is searched for: by what factor it is slower than the last one that was searched
	                  for, beyond the speed that was lost since; 0: it was searched for, or nothing better was found */
	char found[240]; /* of a plan that was repaired: what that search has found, in words; "": it has not ended */
};

enum phase {
	PHASE_NONE,
	/* of the next generation */
	PHASE_SOLVING,
	PHASE_SPAWNING,
	PHASE_PREPARING,
	PHASE_PRECONNECTING, /* slow connections are made while the current generation trains */
	PHASE_READY,
	/* of the current generation */
	PHASE_STARTING,
	PHASE_TRAINING,
	PHASE_STOPPING,
	PHASE_ABORTING,
	PHASE_SETTLING,
	PHASE_HELD,
};

struct generation {
	enum phase phase;
	double since, deadline;
	struct bound_plan *bound_plan;
	struct worker **member;
	json_t **answer; /* of each member to the last request; NULL: not yet */
	int members;
	json_t *expected; /* `live` of its `prepare`; NULL: it had none */
	bool finished;    /* all steps are done */
	bool again;       /* it must be begun again, with members that read (readers.h) */
};

/* A change of the plan: its cause and its cost. */
struct change {
	bool wanted;    /* a new plan is needed */
	bool open;      /* its resize line is not written yet */
	bool started;   /* the new generation has been started; its first step writes the line */
	bool optional;  /* the new plan is used only if it is enough faster */
	bool inherited; /* from an earlier incarnation, which did not write the line: the end of the pause is unknown */
	char cause[64];
	char next[64];       /* if wanted: the cause of the next plan, which may belong to the change after this one */
	double noticed;      /* when the cause was noticed */
	double not_before;   /* no plan is made before this, so that related events share one change */
	double last_step_at; /* the pause begins here; NAN: no step was seen */
	int64_t steps_lost;
	double planned, specialised, connected, moved; /* seconds of the phases */
	double local, peers, disk, shared;             /* bytes of state by source */
	json_t *by_node;                               /* { node: { local, peers, disk, shared } }; NULL: none, or too many nodes */
	const char *source;                            /* "live", "copies", "checkpoint", "init" */
	int from_nodes;
};

/* The search for a plan that may replace a repaired one, beside all else (better_plan.c). */
struct better_plan {
	int64_t solve;      /* ticket; 0: none is under way */
	int64_t generation; /* whose plan may be replaced */
	double since, deadline;
	json_t *answer; /* of the solver, until it is decided on; NULL: none */
};

/* The search for checkpoints on the nodes, if no living worker holds the state: first all name those that they have, then one sends the
 * manifest that is needed (checkpoint_search.c). */
struct checkpoint_search {
	int64_t id;
	bool asked, done;
	double since, deadline;
	json_t *found;                 /* node -> checkpoints */
	json_t *manifests;             /* sum -> manifest; null: nobody could send it */
	char wanted[RUN_MANIFEST_SUM]; /* the manifest that is being asked for; "": none */
	json_t *senders;               /* node -> whether its answer is awaited: those that were asked for it */
	int at_once;                   /* number of nodes that are asked next */
	double pause_until;            /* nobody could send a manifest: they are asked again then */
	char taken[RUN_MANIFEST_SUM];  /* the manifest of the checkpoint that was chosen last */
	json_t *bad; /* [{ node, step, generation, file, sum: of the manifest taken }]: shards that this node could not read */
};

/* Of one checkpoint: what is written to folders that nodes have for themselves, on disk or in memory; and to the one that they share. */
enum checkpoint_part { PART_OWN, PART_SHARED, PARTS };

enum checkpoint_target { TARGET_SCHEDULED, TARGET_ALL, TARGET_MEMORY, TARGET_LOCAL, TARGET_SHARED };

/* A part that is being written. */
struct checkpoint {
	enum { CHECKPOINT_NONE, CHECKPOINT_WRITING, CHECKPOINT_LISTING } phase;
	bool local, shared, memory; /* where; one is true */
	double slowed;              /* seconds by which it has slowed steps */
	char id[64];
	int64_t number, step;
	double since, deadline;
	struct worker **member; /* NULL: gone after it had answered */
	json_t **answer;
	json_t **shard; /* of each member, if it has answered with its shard, for either part; otherwise NULL */
	int members, answers;
	struct bound_plan *bound_plan;
	json_t *manifest;
};

struct checkpoint_trouble {
	double since; /* since when each has failed; 0: the last did not fail */
	char why[HSPMD_ERROR_MAX];
};

/* A trace that is being recorded (trace.c). */
struct trace {
	enum { TRACE_NONE, TRACE_MEASURING, TRACE_RECORDING } phase;
	int64_t id, first, end, steps; /* steps [first, end); first -1: to be chosen */
	int64_t generation;            /* the first one */
	double origin;                 /* when it began */
	double deadline;               /* of clocks, or of last parts */
	int64_t dropped;
	json_t *missing, *clocks; /* [{ device, step, why }]; { device: { offset_s, error_s } } */
	struct {
		enum phase phase;
		int64_t generation;
		double since;
	} seen[2]; /* phases of the current and the next generation, as drawn so far */
};

struct request {
	int64_t id;
	enum { REQUEST_CHECKPOINT, REQUEST_GROW, REQUEST_SHRINK, REQUEST_TRACE } kind;
	int target;     /* nodes */
	int64_t ticket; /* of its ACTION_GROW or ACTION_SHRINK; 0: not emitted yet */
	int64_t number; /* of its checkpoint; 0: not started yet */
	bool own_only;  /* which the shared folder does not get, as it is busy */
	bool resized;   /* Slurm has carried out the resize */
	bool gone;      /* the client has disconnected: no reply */
	double deadline;
};

struct hspmd_controller {
	const struct run_config *config;
	struct run_actions *actions; /* during hspmd_controller_handle() */
	double now, wall, began;
	bool failed; /* out of memory: the controller can do no more */
	struct node **node;
	size_t nodes, node_capacity;
	void *node_by_name;         /* the same in a tree (tsearch) */
	bool allocated;             /* Slurm has reported the allocation: before that not all nodes are known, and not in Slurm's order */
	double startup_until;       /* the first generation waits for agents until then */
	double slurm_confirm_until; /* after the loss of an agent no plan is made until Slurm reports, or until then; 0: not waiting */
	double slurm_poll_at, slurm_poll_interval; /* next poll of Slurm for nodes without an agent; INFINITY: there are none */
	double short_until;                        /* there are too few nodes: the run ends then; 0: there are enough */

	json_t *adopt;      /* the journal, until its workers are taken over; NULL: done, or there is none */
	double adopt_until; /* agents that have not connected by then are started */

	struct hspmd_risk risk; /* how nodes are lost here */
	bool risk_changed;      /* advance_risk() has not compared it with the current copies yet */
	struct generation current, next;
	struct bound_plan *older;         /* the plan under which workers may still hold state while the current generation starts */
	int64_t generation;               /* the last number used */
	int64_t step;                     /* next to run, as settled */
	int64_t steps_reported;           /* steps that have lines in metrics.jsonl */
	int attempts;                     /* generations that have failed since the last committed step */
	int64_t attempted;                /* the last number used when that was counted last; -1: not since that step */
	char last_error[HSPMD_ERROR_MAX]; /* of the last failure */
	struct change change;
	struct checkpoint_search checkpoint_search;
	int64_t solve; /* ticket of the solve under way; 0: none */
	struct better_plan better_plan;

	double recent[RECENT_STEPS]; /* times of the last steps, a ring */
	int recent_count;
	struct past_step history[HISTORY_STEPS]; /* a ring */
	int64_t history_count;                   /* of all steps so far */
	double step_deadline;
	double last_step_at;           /* when the last committed step was reported; NAN: none */
	double aborted_at, settled_at; /* of the last abort; NAN: never */
	double pause_s;                /* that a planned change causes, by the last change */
	double straggler_check_at;     /* when devices are compared next; INFINITY: never */
	bool first_plan_used;
	double loss, step_s, tokens_per_s;
	double step_interval_s; /* between the reports of the last two steps; 0: unknown */
	json_t *deferred;       /* [[address, message]]: messages about a generation that came before all members had reported `started` */

	struct trace trace;
	bool trace_begun; /* that of the job file */

	struct checkpoint checkpoint[PARTS];
	struct checkpoint_trouble checkpoint_trouble[PARTS]; /* copies in memory count elsewhere */
	json_t *committed;                         /* [[step, generation]] of those in nodes' own folders, newest first; NULL: none */
	bool committed_all;                        /* these are all that there were, or as many as the job keeps */
	int64_t checkpoint_count, checkpoint_step; /* last number; step of the newest complete checkpoint, -1: none */
	double checkpoint_at, checkpoint_tried_at, shared_tried_at;
	int64_t checkpoint_done;                      /* number of that one */
	double checkpoint_seconds, checkpoint_cost_s; /* of the newest, without its part in the shared folder if it has another: duration;
	                                                 training time lost */
	int64_t checkpoint_tried_step, shared_tried_step;
	int64_t samples_at;             /* number of steps done when samples are due next; INT64_MAX: never */
	int64_t shared_checkpoint_step; /* newest on shared storage; -1: none */
	double shared_checkpoint_at, shared_checkpoint_seconds;
	int64_t copied_step, copy_tried_step; /* of copies in memory; -1: none */
	double copied_at, copy_tried_at, copy_seconds, copy_cost_s;
	int copy_failures;   /* consecutive */
	double quiet_step_s; /* mean step time while no checkpoint is written; 0: unknown */
	int failures;        /* aborted generations */

	/* of a job with a command */
	bool elastic;            /* its ranks take changes in their own processes (runtime/command/standin.h) */
	bool steps_told;         /* its ranks have told steps */
	double slowest_start_s;  /* longest time from a start of its ranks to the first step that they told; 0: unknown */
	int64_t furthest;        /* steps that were told at most: those that are made again are no progress */
	int64_t told_generation; /* newest generation of which a step was told */
	int64_t newest_save;     /* when the newest file of its checkpoints was written, in nanoseconds since 1970; -1: unknown */
	bool saved, wants_more;  /* every rank ended by itself when it was told to stop; some rank wants to go on */
	json_t *tail;            /* the last lines of the rank that failed last; NULL: none */

	struct request *request;
	size_t requests, request_capacity;
	int64_t tickets;

	double end_at;            /* of the allocation; INFINITY: none */
	bool end_saved;           /* a checkpoint was written because end_at is near */
	bool shutting_down;       /* EVENT_SHUTDOWN was received */
	bool shared_tried_at_end; /* the last checkpoint has been written to shared storage, too, or that has failed */
	char shutdown_reason[64];
	double shutdown_by;
	enum { END_NONE, END_SAVING, END_QUITTING, END_DONE } end;
	double end_deadline;
	int exit_status;
	char exit_text[HSPMD_ERROR_MAX];

	json_t *waiting, *over; /* member jobs: a list of those without a node; { job: how it ended }. NULL: none */

	json_t *choices;  /* { key: " = choice" } (choices.c); NULL: none */
	bool new_choices; /* some that `prepare` of the next generation did not have */

	json_t *events; /* the last RUN_EVENTS_MAX, for `hspmd events` */
	int64_t event_number;
	int64_t first_event; /* number of the last event before this incarnation; tells incarnations apart, since each reports its start */
};

#endif
