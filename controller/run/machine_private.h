/* SPDX-License-Identifier: Apache-2.0 */
/* The machine's state and the calls between its files. Private to controller/run/machine*.c. */
#ifndef HSPMD_CONTROLLER_RUN_MACHINE_PRIVATE_H
#define HSPMD_CONTROLLER_RUN_MACHINE_PRIVATE_H

#include "common/log.h"
#include "controller/run/interval.h"
#include "controller/run/machine.h"

#define ADDRESS_MAX 128
#define RECENT 16   /* steps that the deadline is learnt from */
#define WINDOWS 3   /* in which a device must be slow to be called so */

enum life { LIFE_NONE, LIFE_STARTING, LIFE_UP };

struct node;

struct worker {
	struct node *node;
	int index;
	char address[ADDRESS_MAX];
	enum life life;
	int64_t serial;        /* of its process: what an earlier one says no longer counts */
	int64_t dismissed;     /* the serial of a process that was told to end, and of which nobody knows whether it has; 0: none */
	double heard_at;       /* the last time that it said anything */
	double asked_at;       /* whether it is there at all, and nothing was heard since; 0: not */
	bool adopted;          /* its process was there before this life of the controller, and has not trained since: what it was told nobody knows */
	double deadline;       /* LIFE_STARTING */
	bool reviving;         /* a process is to take up what the one before left in memory */
	double revive_by;
	int revivals;          /* tried since the last committed step */
	int faults;            /* since the last committed step */
	/* What it holds: the state of `step` (next to run) under the plan of generation `holds`; holds 0: nothing. */
	int64_t holds, step;
	json_t *report;        /* its `aborted`, until settled */
	double expected_s;     /* that it is busy in a step of the current plan */
	double first_ratio;    /* of what it was to that, when the generation was young; 0: not known yet */
	double busy_s;         /* that it was, in the sum of what has been heard of late */
	int busy_count;
};

struct node {
	char *name;
	bool held;             /* in the allocation */
	bool leaving;          /* to be given back */
	bool benched;          /* its devices failed too often: not planned with, until ... */
	double benched_until;
	int benches;           /* how often that was so */
	bool ending;           /* its agent was told to end by someone else */
	int64_t member;        /* job that brings it; 0: the job itself */
	bool dismissed;        /* its agent was told to end by us, because it is ending */
	bool abandoned;        /* a member without a use: it is being given back */
	double guest_until;    /* its agent is up, but Slurm has not named the node yet: how long that may last; 0: it is no guest */
	enum life agent;
	double deadline;       /* LIFE_STARTING */
	int attempts;
	double retry_at;       /* not before: what started its agent last ended at once */
	struct hspmd_cluster *part;
	double base, slowdown; /* as its agent says; how much slower it was found to be since (1: not), which is in `part` */
	int verdicts;          /* in a row that it is slower (> 0) or faster (< 0) than that */
	double evidence[WINDOWS]; /* how slow it was by the last of them */
	double forgive_at, forgive_after; /* when it is tried again where it is left out; 0: not known yet */
	json_t *places;        /* per device: { threads, index }, for its worker's `job` */
	struct worker **worker;
	int workers, known;    /* of the part; ever seen (workers <= known) */
};

/* A plan with the cluster it is bound to; who does what in a generation. */
struct layout {
	int refs;
	int64_t generation;
	json_t *cluster_json, *plan_json;
	struct hspmd_cluster *cluster;
	struct hspmd_plan *plan;
	struct worker **device; /* of the plan, in plan order; the first is the reporter */
	int devices, nodes;     /* nodes: that the job had when it was made */
	int nodes_used;         /* by the plan */
	int copies;             /* of the state that are kept on other nodes */
	int keep;               /* nodes of the plan that shrinks by count leave (common/losses.h) */
	bool safe;              /* whatever goes of what is thought of (common/losses.h), living workers still hold everything */
};

enum stage {
	STAGE_NONE,
	/* next */
	STAGE_SOLVING,
	STAGE_SPAWNING,
	STAGE_PREPARING,
	STAGE_MEETING, /* connections that take long are made while the current one trains */
	STAGE_READY,
	/* current */
	STAGE_STARTING,
	STAGE_TRAINING,
	STAGE_STOPPING,
	STAGE_ABORTING,
	STAGE_SETTLING,
	STAGE_HELD,
};

struct generation {
	enum stage stage;
	double since, deadline;
	struct layout *layout;
	struct worker **member;
	json_t **answer;       /* of each member to what was last asked; NULL: not yet */
	int members;
	bool finished;         /* all steps are done */
};

/* Why the plan is to be made anew, and what the change costs. */
struct change {
	bool wanted;           /* a new plan is to be made */
	bool open;             /* a resize line is owed */
	bool started;          /* by the first step of the current generation */
	bool optional;         /* only if it brings enough */
	bool inherited;        /* from a life before, which did not come to tell of it: the pause was not seen to end */
	char cause[64];
	char next[64];         /* wanted: why; the change after this one's, when this one only waits for its first step */
	double noticed;        /* when the cause was seen */
	double not_before;     /* quiet time, for what belongs to the same change */
	double last_step_at;   /* where the pause begins */
	int64_t steps_lost;
	double planned, specialised, connected, moved; /* seconds of the phases */
	double local, peers, disk, shared;             /* bytes by source */
	const char *source;    /* "live", "checkpoint", "init" */
	int from_nodes;
};

struct find {
	int64_t id;
	bool asked, done;
	double since, deadline;
	json_t *found;         /* node -> checkpoints */
	json_t *bad;           /* [{ node, step, generation, file }]: shards that could not be read there */
};

enum save_where { SAVE_DUE, SAVE_EVERYWHERE, SAVE_MEMORY, SAVE_LOCAL, SAVE_SHARED };

struct save {
	enum { SAVE_NONE, SAVE_WRITING, SAVE_LISTING } stage;
	bool local, shared, memory; /* where it goes */
	double slowed;              /* seconds that steps have taken longer meanwhile */
	char id[64];
	int64_t number, step;
	double since, deadline;
	struct worker **member;
	json_t **answer;
	int members;
	struct layout *layout;
	json_t *manifest;
};

struct request {
	int64_t id;
	enum { REQUEST_CHECKPOINT, REQUEST_GROW, REQUEST_SHRINK } kind;
	int target;
	int64_t ticket;        /* of RUN_GROW or RUN_SHRINK; 0: not asked yet */
	int64_t number;        /* of the save */
	bool resized;          /* Slurm has done its part */
	bool gone;             /* nobody waits for the reply any more */
	double deadline;
};

struct hspmd_machine {
	const struct run_config *config;
	struct run_actions *actions; /* during a feed */
	double now, wall, began;
	bool failed;                 /* out of memory */
	struct node **node;
	size_t nodes, node_capacity;
	double gather_until;         /* the first generation waits this long for agents */
	double look_until;           /* an agent was lost: Slurm may say by then that its node has left; 0: nothing is awaited */
	double look_next, look_pause; /* when to ask Slurm about nodes without an agent; INFINITY: there are none */
	double short_until;          /* too few nodes: given up then; 0: enough */

	json_t *adopt;               /* the journal, until its workers are taken over; NULL: done */
	double adopt_until;          /* agents that have not called by then are started */

	struct hspmd_risk risk;      /* how nodes are lost here */
	bool risk_changed;           /* and it has not been looked whether the copies there are will do */
	struct generation current, next;
	struct layout *older;        /* whose state may still be held while the current one starts */
	int64_t generation;          /* last number given */
	int64_t step;                /* next to run, as settled */
	int64_t told;                /* steps that metrics.jsonl has lines for */
	int attempts;
	char trouble[HSPMD_ERROR_MAX]; /* the last fault */
	struct change change;
	struct find find;
	int64_t solve;               /* ticket of the solve under way; 0: none */
	double solve_deadline;

	double recent[RECENT];       /* step times */
	int recent_count;
	double step_deadline;
	double last_step_at;         /* end of the last committed step that was told of; NAN: none */
	double aborted_at, settled_at; /* the last time; NAN: never */
	double pause_s;              /* of the last change */
	double pace_next;            /* when devices are compared again; INFINITY: they are not */
	bool first_plan_used;
	double loss, step_s, tokens_per_s;
	json_t *early;               /* [[address, message]]: what workers told of a generation before all had told that it started */

	struct save save;
	int64_t saves, saved_step;   /* last number; step of the newest complete one, -1: none */
	double saved_at, save_tried, shared_tried;
	double save_seconds, save_cost; /* from asking to standing; what the training lost by it */
	int64_t save_tried_step, shared_step;
	int64_t shared_saved_step;   /* newest on shared storage, -1: none */
	double shared_saved_at;
	int64_t copied_step, copy_tried_step; /* in memory; -1: none */
	double copied_at, copy_tried, copy_seconds, copy_cost;
	int copy_failures;           /* in a row */
	double plain_s;              /* of a step while nothing is written */
	int failures;                /* losses that nobody had announced */

	struct request *request;
	size_t requests, request_capacity;
	int64_t tickets;

	double end_at;               /* of the allocation; INFINITY: none */
	bool end_saved;
	bool leaving;                /* told to end */
	bool left_shared;            /* the last checkpoint has been taken to shared storage, too, or it has been tried */
	char leave_why[64];
	double leave_until;
	enum { END_NONE, END_SAVING, END_QUITTING, END_DONE } end;
	double end_deadline;
	int exit_status;
	char exit_text[HSPMD_ERROR_MAX];

	json_t *waiting, *over;      /* member jobs: without a node yet (a list, NULL: none); how they ended */

	json_t *events;              /* the last, for `hspmd events` */
	int64_t event_number;
};

/* actions.c */
void act(struct hspmd_machine *m, enum run_action_kind kind, const char *node, json_t *value, int64_t id);
void say(struct hspmd_machine *m, enum hspmd_log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Takes `message` over. `to`: the workers, each told through its node's agent; a list is sent once a node. */
void send_workers(struct hspmd_machine *m, struct worker *const *to, int count, json_t *message);
void send_node(struct hspmd_machine *m, const struct node *n, json_t *message);
void reply(struct hspmd_machine *m, int64_t id, bool ok, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
json_t *need(struct hspmd_machine *m, json_t *value); /* NULL means memory is short: noted */
void end_run(struct hspmd_machine *m, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void note_event(struct hspmd_machine *m, const char *what, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* nodes.c */
struct node *node_find(struct hspmd_machine *m, const char *name);
struct worker *worker_find(struct hspmd_machine *m, const char *address);
/* It was there once, with so many devices: it is named in what an earlier life of the controller left. */
void node_remember(struct hspmd_machine *m, const char *name, int devices);
bool node_usable(const struct node *n);
int nodes_usable(const struct hspmd_machine *m);
int nodes_held(const struct hspmd_machine *m);
bool nodes_pending(const struct hspmd_machine *m);
int nodes_benched(const struct hspmd_machine *m);
bool nodes_refused(const struct hspmd_machine *m); /* some, that will be tried again */
json_t *usable_cluster(struct hspmd_machine *m, struct hspmd_error *err);
/* Of the nodes that take part in g, those included that only give state away. */
json_t *members_cluster(struct hspmd_machine *m, const struct generation *g, struct hspmd_error *err);
void on_allocation(struct hspmd_machine *m, const struct run_event *e);
void on_agent_up(struct hspmd_machine *m, const struct run_event *e);
void on_agent_lost(struct hspmd_machine *m, const struct run_event *e);
void worker_lost(struct hspmd_machine *m, struct worker *w, const char *why);
void worker_kill(struct hspmd_machine *m, struct worker *w, const char *cause, const char *why);
void worker_spawn(struct hspmd_machine *m, struct worker *w);
void on_worker_hello(struct hspmd_machine *m, struct worker *w);
void nodes_time(struct hspmd_machine *m);
void node_free(struct node *n);

/* members.c: nodes that other jobs of this user bring */
void members_told(struct hspmd_machine *m, const json_t *allocation);
/* Whose node it is, after the allocation was told. */
void member_set(struct hspmd_machine *m, struct node *n, const json_t *allocation);
/* How the member that brought this node ended, in words; false: it is not a member's, or nobody knows. */
bool member_why(const struct hspmd_machine *m, const struct node *n, char *text, size_t size);
/* An agent has come whose node the job does not hold: may it wait until Slurm has named the node? */
bool member_guest(struct hspmd_machine *m, struct node *n, const json_t *hello);
/* It does no good: its job is ended. */
void member_abandon(struct hspmd_machine *m, struct node *n, const char *why);
/* Ends agents of members that are leaving, once nothing is needed of them any more. */
bool advance_members(struct hspmd_machine *m);
void members_time(struct hspmd_machine *m);
double members_deadline(const struct hspmd_machine *m);

/* form.c: the next generation */
/* A new plan is wanted: "grow", "shrink", "scontrol", "member-left", "node-lost", "worker-lost", "fault", "hang", "start", "requeue"; "straggler":
 * only if it brings enough. */
void want_plan(struct hspmd_machine *m, const char *cause);
bool advance_next(struct hspmd_machine *m);
void next_drop(struct hspmd_machine *m);
void on_plan(struct hspmd_machine *m, const struct run_event *e);
void on_prepared(struct hspmd_machine *m, struct worker *w, json_t *message);
void on_met(struct hspmd_machine *m, struct worker *w, json_t *message);
json_t *transport_addresses(struct hspmd_machine *m, const struct generation *g, const char *key); /* of the members' answers, by rank */
void on_found(struct hspmd_machine *m, struct node *n, json_t *message);

/* generation.c */
struct layout *layout_create(struct hspmd_machine *m, json_t *cluster, json_t *plan, const char *name, struct hspmd_error *err);
struct layout *layout_keep(struct layout *l);
void layout_drop(struct layout *l);
bool layout_uses(const struct layout *l, const struct worker *w);
int generation_members(struct hspmd_machine *m, struct generation *g, struct layout *l, struct layout *giver);
void generation_forget(struct generation *g);
int member_of(const struct generation *g, const struct worker *w);
void take_answer(struct generation *g, const struct worker *w, json_t *message);
void ask_again(struct generation *g, enum stage stage, double now, double patience);
bool all_answered(const struct generation *g);
/* A member of the current generation that is gone: nothing is expected of it any more, even if its device gets a new worker. */
void generation_remove(struct generation *g, const struct worker *w);
/* It answers, too. -1: memory. */
int generation_add(struct hspmd_machine *m, struct generation *g, struct worker *w);
void still_silent(const struct generation *g, char *text, size_t size);

/* current.c: the current generation */
bool advance_current(struct hspmd_machine *m);
void start_generation(struct hspmd_machine *m);
void abort_current(struct hspmd_machine *m, const char *cause);
/* Its members are asked what they hold, and stop. */
void ask_holders(struct hspmd_machine *m);
void stop_current(struct hspmd_machine *m);
void on_answer(struct hspmd_machine *m, struct worker *w, const char *type, json_t *message);
void on_fault(struct hspmd_machine *m, struct worker *w, json_t *message);
/* It failed: one attempt more. */
void blame(struct hspmd_machine *m, struct worker *w);
/* Ends the run when it has failed too often without a step. */
bool give_up(struct hspmd_machine *m);
/* The best state that living workers hold between them: its layout (borrowed) and step; NULL: none is whole. */
struct layout *held_layout(const struct hspmd_machine *m, int64_t *step);

void tell_early(struct hspmd_machine *m);
void keep_early(struct hspmd_machine *m, const struct worker *w, json_t *message);

/* adopt.c: what an earlier life of the controller left */
void journal(struct hspmd_machine *m);
void adopt_begin(struct hspmd_machine *m);
bool adopt_holds(const struct hspmd_machine *m, const struct node *n); /* the job held this node, by the journal */
/* An agent says which workers it has: those of the journal are taken, all others ended. */
void adopt_workers(struct hspmd_machine *m, struct node *n, json_t *living);
bool advance_adopt(struct hspmd_machine *m);
/* All have said what they hold. False: they do not train on, and the generation was called off. */
bool adopt_answered(struct hspmd_machine *m);
void adopt_end(struct hspmd_machine *m);

/* revive.c: state that outlived its workers */
/* Where the living do not hold all of it between them, workers that died are brought back to what they had. True: some are; they are members of the current
 * generation, which waits for their word. */
bool revive_missing(struct hspmd_machine *m);
void revive_agent_up(struct hspmd_machine *m, struct node *n);
/* To a process that has just started. */
void revive_ask(struct hspmd_machine *m, struct worker *w);
/* Nothing comes of it. */
void revive_drop(struct hspmd_machine *m, struct worker *w);
void revive_drop_node(struct hspmd_machine *m, struct node *n);
void revive_time(struct hspmd_machine *m);

/* settle.c: what survivors of a crash agree on */
void settle_hear(struct hspmd_machine *m); /* what each says that it holds */
bool settle_begin(struct hspmd_machine *m);
void settle_end(struct hspmd_machine *m);

/* Silent members are ended, so that the wait ends. */
void end_silent(struct hspmd_machine *m, struct generation *g, const char *waited_for);

/* train.c */
void on_step(struct hspmd_machine *m, struct worker *w, json_t *message);
void tell_losses(struct hspmd_machine *m, json_t *losses);
double slowest_step(const struct hspmd_machine *m); /* of the last ones, seconds; 0: none yet */
void step_patience(struct hspmd_machine *m);
void resize_line(struct hspmd_machine *m, double step_s);

/* pace.c: stragglers */
void pace_begin(struct hspmd_machine *m); /* a generation has started to train */
void pace_heard(struct worker *w, const json_t *message); /* `step` or `pulse` */
void pace_time(struct hspmd_machine *m);
double pace_deadline(const struct hspmd_machine *m);
/* Does a plan that avoids a straggler win more than it costs? `stay`: seconds of a step without it. */
bool pace_worth(struct hspmd_machine *m, const struct hspmd_plan *plan, const json_t *stay);

/* alive.c: hung processes */
void alive_heard(struct hspmd_machine *m, struct worker *w); /* anything */
void alive_time(struct hspmd_machine *m);
double alive_deadline(const struct hspmd_machine *m);

/* save.c: checkpoints */
bool save_begin(struct hspmd_machine *m, const char *why, enum save_where where);
void on_written(struct hspmd_machine *m, struct worker *w, json_t *message);
void on_manifested(struct hspmd_machine *m, struct worker *w, json_t *message);
void save_lost(struct hspmd_machine *m, const struct worker *w);
void save_time(struct hspmd_machine *m);
void save_forget(struct hspmd_machine *m);

/* save_when.c */
bool save_possible(const struct hspmd_machine *m); /* on some disk */
bool save_shared_due(const struct hspmd_machine *m);
bool save_due(struct hspmd_machine *m);
double save_next(const struct hspmd_machine *m); /* when the next is due; INFINITY: not by time */
void save_step_told(struct hspmd_machine *m, double step_s);
struct run_intervals save_intervals(const struct hspmd_machine *m); /* as they are now */
int copies_wanted(const struct hspmd_machine *m, int nodes); /* on other nodes, of a plan on so many */
/* Do those of the layout that are left hold everything, whatever is lost of what `copies` are to outlive? */
bool layout_survives(struct hspmd_machine *m, const struct layout *l, int copies);
/* Which nodes of it a shrink by count leaves; -1: memory. */
int layout_keep_nodes(struct hspmd_machine *m, struct layout *l);

/* request.c: commands of users and of hspmdctld */
void on_command(struct hspmd_machine *m, const struct run_event *e);
void on_hung_up(struct hspmd_machine *m, const struct run_event *e);
void on_resized(struct hspmd_machine *m, const struct run_event *e);
void requests_time(struct hspmd_machine *m);
void requests_saved(struct hspmd_machine *m, int64_t number, const char *why_not);
bool advance_requests(struct hspmd_machine *m);
double requests_deadline(const struct hspmd_machine *m);

/* Trains on, and nothing about the plan is open. */
bool calm(const struct hspmd_machine *m);
/* The nodes that `goes` says yes to are given back; `ticket` of the request that waits for it, or 0. */
void give_back(struct hspmd_machine *m, bool (*goes)(const struct node *n), int64_t ticket);

/* leave.c */
bool advance_end(struct hspmd_machine *m);
void on_leave(struct hspmd_machine *m, const struct run_event *e);

#endif
