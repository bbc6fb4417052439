/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated cluster's state and the calls between its files: world.c (what the controller asks for, and the checks), world_workers.c,
 * world_site.c (agents, Slurm, the solver), world_restarts.c (the controller's incarnations). */
#ifndef HSPMD_UNIT_WORLD_INTERNAL_H
#define HSPMD_UNIT_WORLD_INTERNAL_H

#include "tests/unit/world.h"

#define NODES 8
#define DEVICES 4
#define QUEUE 8192
#define WAITING 64 /* messages for a worker that is in a step */
#define STEPS 4096 /* that an agent remembers */
#define LAYERS 6

struct queue {
	json_t *item[QUEUE];
	int first, count;
};

struct sim {
	char address[64];
	int node;
	bool alive, hung;
	bool set_up; /* it was told its job */
	int64_t serial;
	int64_t prepared; /* generation, 0: none */
	bool prepared_in_plan, stays;
	int64_t runs;    /* generation whose steps it runs; 0: none */
	int64_t loading; /* generation that is being started */
	json_t *start;
	int64_t holds, step, ready, applied;
	int64_t done;                   /* generation whose steps it has ended, as was agreed; 0: none */
	int64_t stop, stopped, aborted; /* generations */
	bool votes_stop, votes_save;    /* at the end of the step it is ready for */
	json_t *checkpoint;             /* asked for and not served */
	json_t *waiting[WAITING];       /* until the step's end */
	int waiting_count;
	bool reporter;
	int preconnects; /* meetings that it took part in */
	struct {         /* what a process that was killed has left in its node's memory; holds 0: nothing */
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
	bool away[NODES];                   /* its agent has lost the controller and is to call again */
	bool silent[NODES];                 /* nothing comes of starting its agent, and it does not call */
	int refusals[NODES], starts[NODES]; /* to come; of its agent so far */
	double started_at[NODES];
	struct queue up[NODES], down[NODES];
	struct queue steps[NODES]; /* the last that the agent has told of */
	struct sim sim[NODES][DEVICES];
	json_t *solve, *grow, *shrinks; /* asked of the surroundings; of shrinks a list of [id, nodes] */
	int64_t solve_id, grow_id;
	int64_t member[NODES], members; /* job that brought the node, 0: the anchor; last such job */
	int waiting;                    /* member jobs without a node */
	double slow[NODES], told_slow[NODES];
	json_t *over; /* member jobs that have ended: id -> how */
	bool poll;
	/* The controller's incarnation: what it keeps for the next, and when it ends. */
	json_t *journal, *events;
	json_t *saves; /* id of each checkpoint asked for -> life */
	int life;
	int64_t planned, resize_reported; /* generations: newest that was saved, newest whose change was told of */
	bool dies, dies_in_switch, dead;
	const char *dies_at; /* NULL: not so */
	int actions_left;
	int64_t serial;     /* of the last process that was to be started */
	int64_t generation; /* newest prepared */
	int copies;         /* with so many */
	json_t *plans;      /* generation -> { cluster, plan } */
	int64_t next_line, lost;
	int nodes; /* that the last step was made on */
	int resizes, ok, refused, commands;
	char cause[64]; /* of the last resize */
	bool replied[4096];
	int64_t saved_step, shared_step; /* of a complete checkpoint, and of one on shared storage */
	json_t *saved;                   /* stands for its manifest */
	int anew;
	json_t *copied; /* the same of one in memory, which here survives everything */
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
/* From a worker to the controller; takes the message over. */
void world_say_up(struct world *w, struct sim *s, json_t *m);

/* world_workers.c */
void world_forget(struct sim *s);
void world_killed(struct sim *s); /* the same, but what is in its node's memory stays */
void world_worker_hears(struct world *w, struct sim *s, json_t *m);
/* A piece of a step. Returns false when there is none to be done. */
bool world_work(struct world *w);

/* world_restarts.c */
/* The agent of node n calls the controller again. */
void world_call(struct world *w, int n);

/* world_site.c */
json_t *world_part(const struct world *w, int n); /* what the agent of node n says that it has */
void world_agent_hears(struct world *w, int n, json_t *m);
void world_agent_dies(struct world *w, int n);
/* The next message of node n reaches the controller. */
void world_deliver(struct world *w, int n);
void world_tell_allocation(struct world *w);
void world_solve(struct world *w);
void world_resize(struct world *w);
/* A member job starts on a free node, if there is one. */
bool world_member_starts(struct world *w);
/* The member job that has brought this node is over. */
void world_member_ends(struct world *w, int n, const char *how);

#endif
