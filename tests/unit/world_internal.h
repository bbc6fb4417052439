/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated cluster's state, and the functions that its files offer each other: world.c (the controller's actions, and the checks),
 * world_faults.c (what happens), world_workers.c, world_checkpoints.c (what workers write), world_site.c (agents, Slurm, the solver),
 * world_restarts.c (incarnations of the controller), world_questions.c (what a test asks of it). */
#ifndef HSPMD_UNIT_WORLD_INTERNAL_H
#define HSPMD_UNIT_WORLD_INTERNAL_H

#include "tests/unit/world.h"

#define NODES 8
#define DEVICES 4
#define QUEUE 8192
#define WAITING 64 /* messages for a worker that is in a step */
#define STEPS 4096 /* that an agent remembers */
#define LAYERS 6
#define CHOICES 4 /* keys of what devices choose by measurement */

struct queue {
	json_t *item[QUEUE];
	int first, count;
};

struct sim {
	char address[64];
	int node;
	bool alive, hung;
	bool set_up; /* has received `job` */
	int64_t serial;
	int64_t prepared; /* generation; 0: none */
	bool prepared_in_plan, stays;
	int64_t runs;    /* generation whose steps it runs; 0: none */
	int64_t loading; /* generation that it is starting */
	json_t *start;
	int64_t holds, step, ready, applied;
	int64_t done;                   /* generation whose steps it has ended, as was agreed; 0: none */
	int64_t stop, stopped, aborted; /* generations */
	bool votes_stop, votes_save;    /* at the end of the step it is ready for */
	json_t *checkpoint;             /* requested and not yet written */
	json_t *hanging;                /* begun, while the shared folder is away */
	json_t *told;                   /* the last request of which it has described its shard */
	int64_t hanging_step;
	json_t *waiting[WAITING]; /* until the step's end */
	int waiting_count;
	bool reporter;
	int preconnects;     /* number of preconnects */
	int informed;        /* number of starts without addresses */
	int64_t exchanged;   /* generation of which it knows all addresses, and has said so */
	int choice[CHOICES]; /* 0: it has not measured */
	uint32_t least, own_least; /* limit of its workspace, and the one that it needs itself; 0: none */
	struct {             /* state of a killed process in its node's memory; holds 0: none */
		int64_t holds, step, ready, applied;
	} left;
};

struct world {
	struct world_options o;
	uint64_t random;
	struct run_config config;
	struct hspmd_job job;
	struct hspmd_controller *m;
	double now;
	bool held[NODES], agent[NODES];
	bool away[NODES];                   /* the agent has lost the controller, and will reconnect */
	bool silent[NODES];                 /* the agent does not start, connect or reconnect */
	bool vanished[NODES];               /* the agent is dead, and its connection is not closed */
	double vanished_at[NODES];
	bool second_starts[NODES], second[NODES]; /* another agent is being started; is connected, and waits */
	bool second_told[NODES];                  /* that it is alone */
	int turned_away, replaced, second_first;
	const char *version[NODES];         /* of its agents; NULL: the controller's */
	int refusals[NODES], starts[NODES]; /* of the agent: starts that will fail; all starts so far */
	double started_at[NODES];
	struct queue up[NODES], down[NODES];
	struct queue steps[NODES]; /* the last steps that the agent has reported */
	struct sim sim[NODES][DEVICES];
	/* Requests that are not answered yet. solves: a list of { id, value, cancelled }; shrinks: a list of [id, nodes, time]. */
	json_t *solves, *grow, *shrinks;
	int64_t grow_id;
	bool searching;                 /* searches for plans do not end */
	int asks;                       /* requests for plans so far */
	int cancelled;                  /* plans of which the controller has said that it does not need them */
	int late;                       /* of those, plans that it was given all the same */
	int64_t member[NODES], members; /* job that brought the node (0: the anchor); last member job */
	bool ending[NODES];             /* its member job is over to Slurm, and its processes still run */
	int waiting;                    /* member jobs without a node */
	double slow[NODES], told_slow[NODES];
	json_t *over;      /* member jobs that have ended: id -> how */
	int works;         /* parts of steps */
	int64_t furthest;  /* steps that were made at most */
	bool poll, polled; /* polled: since the controller was last started */
	/* The controller's incarnation: what it leaves to the next one, and when it is killed. */
	json_t *journal, *events;
	json_t *saves; /* id of each requested checkpoint -> incarnation */
	int life;
	/* Generations: newest that was saved, whose change was reported, and of which a step was reported. */
	int64_t planned, resize_reported, told_generation;
	bool dies, dies_in_switch, dead;
	const char *dies_at; /* NULL: not so */
	int actions_left;
	int64_t serial;     /* of the last `spawn` */
	int64_t generation; /* newest prepared */
	int64_t last_start; /* newest that was sent `start` */
	int copies;         /* with so many */
	json_t *plans;      /* generation -> { cluster, plan, ... } of `prepare` */
	int64_t next_line, lost;
	int nodes; /* of the last step */
	int resizes, ok, refused, commands;
	char cause[64]; /* of the last resize */
	bool replied[4096];
	int samples;
	int chosen[CHOICES];             /* as every device computes that has started; 0: none has */
	uint32_t least;                  /* the limit of workspace in the generation least_of, the same on all devices */
	int64_t least_of;
	int64_t sampled_step;            /* latest step of which samples were asked for */
	int64_t saved_step, shared_step; /* of a complete checkpoint, and of one on shared storage */
	json_t *saved;                   /* in place of its manifest */
	unsigned bad_senders;            /* of manifests: nodes, a bit each */
	struct world_manifests manifests; /* what was sent of them */
	bool shared_away;                 /* who writes there waits */
	int shared_asked;                /* requests to write there, of one worker */
	json_t *local, *kept; /* [[step, generation]] of manifests in nodes' own folders on disk, as they were written; those that
	                                    nodes were last told to keep */
	json_t *stored;       /* `state` of the last `stored` message, and its generation */
	int64_t stored_generation;
	int anew, unexpected, readers;
	json_t *copied;        /* the same of the copy in memory */
	json_t *found, *known; /* what nodes have, and manifests, when a checkpoint was last chosen for this generation; NULL: none was */
	bool ended;
	int status;
	char text[1200];
};

/* world.c */
uint64_t world_pick(struct world *w, uint64_t n);
double world_loss(int64_t step);
int64_t world_integer(const json_t *m, const char *key);  /* -1: none */
const char *world_word(const json_t *m, const char *key); /* "": none */
bool world_named(const json_t *list, const char *address);
struct sim *world_find(struct world *w, const char *address);
void world_feed(struct world *w, struct run_event e);
void world_put(struct queue *q, json_t *m); /* takes the message over */
json_t *world_get(struct queue *q);
void world_empty(struct queue *q);
#define WORLD_SUM RUN_MANIFEST_SUM
const char *world_sum(const json_t *manifest, char *sum); /* its name; returns sum */
/* Sends a worker's message to the controller; takes it over. */
void world_say_up(struct world *w, struct sim *s, json_t *m);

/* world_workers.c */
void world_forget(struct sim *s);
void world_killed(struct sim *s); /* the same, but its state stays in the node's memory */
void world_worker_hears(struct world *w, struct sim *s, json_t *m);
/* Does a part of a step. Returns false if there is none to do. */
bool world_work(struct world *w);

/* world_checkpoints.c */
/* Writes the checkpoint that was requested of the worker, if one was, or refuses to, with why_not. As worker_serve_late and worker_snapshot
 * (runtime/worker/worker_checkpoint.c). */
void world_serve(struct world *w, struct sim *s, const char *why_not);
/* The manifest of a copy in memory of this generation, with its places. */
json_t *world_lay_copy(struct world *w, const json_t *manifest, int64_t generation);

/* world_restarts.c */
/* The agent of node n has lost the controller, and keeps what it will send again. */
void world_lose_controller(struct world *w, int n);
/* The agent of node n reconnects to the controller. */
void world_call(struct world *w, int n);
/* Fails if a generation starts from `step` of a checkpoint, or anew, although nodes that are there have a newer one. */
void world_check_choice(struct world *w, int64_t step);
/* A generation is prepared: nothing has been chosen for it. */
void world_forget_choice(struct world *w);

/* world_site.c */
json_t *world_part(const struct world *w, int n); /* the hardware in the hello of node n's agent */
void world_agent_hears(struct world *w, int n, json_t *m);
void world_agent_dies(struct world *w, int n);
/* What may happen to the second agent of node n, or to one that has vanished. Returns false if nothing. */
bool world_second_moves(struct world *w, int n);
void world_turns_away(struct world *w, int n, const char *why);
void world_replaces(struct world *w, int n);
#define WORLD_UNNOTICED_S 11.0 /* until a dead connection is found */
/* The next message of node n reaches the controller. */
void world_deliver(struct world *w, int n);
void world_tell_allocation(struct world *w);
/* The controller asks for a plan, or says that it does not need it any more. */
void world_asks_plan(struct world *w, const struct run_action *x);
void world_cancels_plan(struct world *w, int64_t id);
/* Answers one of the requests for plans. Returns false if there is none, or all take their time. */
bool world_solve(struct world *w);
bool world_shrink_is_due(const struct world *w);
void world_resize(struct world *w);
/* A member job starts on a free node, if there is one. */
bool world_member_starts(struct world *w);
/* The member job that has brought this node ends. */
void world_member_ends(struct world *w, int n, const char *how);

/* Checks of messages to a worker: `start`, `committed`. */
void world_check_addresses(const struct sim *s, const json_t *m);
void world_check_committed(struct world *w, json_t *m);

#endif
