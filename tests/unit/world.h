/* SPDX-License-Identifier: Apache-2.0 */
/* A cluster to try the pure job controller in: nodes, agents and workers played in memory, with whatever order of events and whatever
 * faults a seed picks. The world checks as it goes what must hold in every order (world.c lists it). */
#ifndef HSPMD_TESTS_WORLD_H
#define HSPMD_TESTS_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "controller/core/controller.h"

struct world;

struct world_options {
	uint64_t seed;
	int nodes, devices_per_node; /* there are; the job begins with `held` of them */
	int held, steps;
	bool checkpoints;
	bool stragglers; /* slow devices are looked for */
	bool sole;       /* one pipeline of all devices: each part of the state is in one place */
	bool halves; /* plans are two pipelines of two stages, or one of as many as there are nodes, on any of the nodes; copies in memory
	              * lie where they are laid, and go with their nodes. Of one device a node, and up to 4 nodes */
	bool avoids; /* plans leave slow nodes out; of one device a node, and 2 or 3 nodes */
	const struct hspmd_model *model; /* borrowed; NULL: none is known */
	json_t *given;                   /* borrowed; a plan to begin with, NULL: none */
	bool unfit;                      /* it cannot be run */
	int needs;                       /* devices: there is no plan for fewer */
	double shared_every_s;           /* between two checkpoints on shared storage; 0: 0.7 */
	int every_steps;                 /* between two checkpoints; 0: by time */
	bool long_steps;                 /* longer than all else takes */
	bool stuck;                      /* the disks take no checkpoint, and do not fail either */
	double gather;                   /* seconds that agents may take to come up; 0: the usual */
	bool noise;                      /* now and then a worker does not come up, cannot prepare, or cannot write */
};

struct world *world_create(const struct world_options *o);
void world_destroy(struct world *w);

/* One random thing that is no fault: a message delivered, a piece of a step done, an answer of the solver or of Slurm. False: nothing can
 * happen but time. */
bool world_move(struct world *w);
/* Let time pass to the controller's next deadline. */
void world_wait(struct world *w);
/* One random fault or request: a worker or agent killed, a worker hung, a false alarm, nodes taken or given, grow, shrink, checkpoint. */
void world_fault(struct world *w);
/* The controller is killed and started anew from what it has kept; its agents call again, one by one. */
void world_restart(struct world *w);
/* The same once it has carried out so many more actions; or when it has written down that a generation is to take over from one before, and
 * nothing of that is done. */
void world_dies(struct world *w, int after);
/* Or when it has sent a message of this type to the first of several nodes. */
void world_dies_at(struct world *w, const char *type);
void world_dies_in_switch(struct world *w);
/* Slurm gives or takes a node. */
void world_hold(struct world *w, int node, bool held);
/* Slurm says what the job has. */
void world_poll(struct world *w);
/* What starts this node's agent ends at once, so many times. */
void world_refuse(struct world *w, int node, int times);
/* Its agent does not come up, nor call again. */
void world_silence(struct world *w, int node, bool silent);
/* How often its agent was started, and when last; what time it is. */
int world_starts(const struct world *w, int node);
double world_started_at(const struct world *w, int node);
double world_now(const struct world *w);
/* Kill -9 of worker `device` of a node, or hang it, or (agent) kill the node's agent and all below it. */
enum world_how { WORLD_KILL, WORLD_HANG, WORLD_AGENT };
void world_kill(struct world *w, int node, int device, enum world_how how);
/* A user's command: "grow" or "shrink" by so many nodes. */
void world_ask(struct world *w, const char *what, int by);
void world_checkpoint(struct world *w); /* a user asks for one */
/* Heal hung workers and give the job all nodes back, so that it can end. */
void world_heal(struct world *w);
void world_shutdown(struct world *w);
/* hspmdctld tells how nodes are lost. */
void world_risk(struct world *w, double losses_per_node_s, double correlated);
/* Copies on other nodes that the last generation was prepared with. */
int world_copies(const struct world *w);
/* The devices of a node take so many times as long from now on. */
void world_slow(struct world *w, int node, double factor);
/* What the solver was last told of a node. */
double world_slowdown(const struct world *w, int node);

bool world_ended(const struct world *w, int *status);
int world_steps_told(const struct world *w);
int world_nodes(const struct world *w); /* that the last step was made on */
int world_generations(const struct world *w);
int world_preconnects(const struct world *w); /* of workers with others, before their generation started */
int world_resizes(const struct world *w);
const char *world_cause(const struct world *w); /* of the last resize; "": none */
int64_t world_steps_lost(const struct world *w);
int world_began_anew(const struct world *w); /* how often it began from nothing after steps had been told of */
int world_replies(const struct world *w, bool ok);
int world_commands(const struct world *w); /* that were given */
bool world_saved(const struct world *w);   /* a complete checkpoint of where it stopped is there */
json_t *world_status(const struct world *w);
const char *world_exit_text(const struct world *w);

#endif
