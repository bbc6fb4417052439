/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated cluster for tests of the pure job controller: nodes, agents and workers in memory, with an order of events and faults drawn
 * from a seed. The world checks invariants after every event (world.c lists them). */
#ifndef HSPMD_TESTS_WORLD_H
#define HSPMD_TESTS_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "controller/core/controller.h"

struct world;

struct world_options {
	uint64_t seed;
	int nodes, devices_per_node; /* of the cluster; the job begins with `held` nodes */
	int held, steps;
	bool checkpoints;
	bool stragglers; /* the policy looks for slow devices */
	bool sole;       /* one pipeline of all devices: each slice of the state has one holder */
	bool halves; /* plans are two pipelines of two stages, or one pipeline of one stage per node, on any of the nodes; copies in memory
	              * are on certain nodes, and lost with them. Needs one device per node, and at most 4 nodes */
	bool unused; /* with `halves`: every other plan leaves a node out, whichever it is */
	bool avoids; /* plans do not use slow nodes; needs one device per node, and 2 or 3 nodes */
	const struct hspmd_model_facts *facts; /* borrowed; NULL: unknown */
	json_t *given;                         /* borrowed; the first plan; NULL: none */
	bool unfit;                            /* the given plan cannot run */
	bool foreign;                          /* what checkpoints there are count as those of another model */
	double keeps_for_s;                    /* after so many seconds Slurm refuses to take nodes back; 0: it takes them */
	int needs;                             /* number of devices below which there is no plan */
	double shared_every_s;                 /* between two checkpoints on shared storage; 0: 0.7 */
	int every_steps;                       /* between two checkpoints; 0: by time */
	int samples_every;                     /* steps between two lots of samples; 0: none */
	bool long_steps;                       /* longer than all else takes */
	double ends;                           /* when the job's time is over; 0: never */
	bool stuck;                            /* the disks take no checkpoint, and do not fail either */
	double gather;                         /* seconds that agents may take to come up; 0: the usual */
	int attempts;                          /* that may fail without a step between; 0: 1000 */
	double repairs;  /* plans that are urgent are repaired, and their steps take so many times as long as those that are searched for;
	                    0: all are searched for */
	double min_gain; /* of the policy */
	bool cuts; /* faults are also links that are cut for a while, agents whose death nobody notices, and second agents of a node */
	bool noise;                            /* sometimes a worker does not start, cannot prepare, or cannot write */
};

struct world *world_create(const struct world_options *o);
void world_destroy(struct world *w);

/* How often samples were asked for, each time from a complete checkpoint on shared storage of a step at which they were due. */
int world_samples(const struct world *w);

/* One random move that is not a fault: a message is delivered, a part of a step done, the solver or Slurm answers. Returns false if only
 * time can pass. */
bool world_move(struct world *w);
/* Lets time pass until the controller's next deadline. */
void world_wait(struct world *w);
/* So many seconds pass in which the controller is stopped (SIGSTOP, a suspended machine): it neither reads nor looks at the clock. */
void world_stop(struct world *w, double seconds);
/* One random fault or request: a worker or agent killed, a worker hung, a false report of a fault, nodes taken or given, grow, shrink,
 * checkpoint. */
void world_fault(struct world *w);
/* Kills the controller and restarts it from its journal and output; its agents reconnect one by one. */
void world_restart(struct world *w);
/* The same after `after` more actions; or when it has written a journal with a generation that takes over from an older one, before the
 * generation is started. */
void world_dies(struct world *w, int after);
/* Or when it has sent a message of this type to the first of several nodes. */
void world_dies_at(struct world *w, const char *type);
void world_dies_in_switch(struct world *w);
/* Slurm gives or takes a node. */
void world_hold(struct world *w, int node, bool held);
/* Slurm reports the allocation. */
void world_poll(struct world *w);
/* Returns true if it has done so since the controller was last started. */
bool world_polled(const struct world *w);
/* The next `times` starts of this node's agent fail at once. */
void world_refuse(struct world *w, int node, int times);
/* The time of the node's member job is over: to Slurm it is, and its agent is told to end. Returns false if no member's agent is there. */
bool world_member_times_out(struct world *w, int node);
/* From now on agents of the node are of this version of hspmd (NULL: of the controller's). */
void world_set_version(struct world *w, int node, const char *version);
/* The node's agent does not connect or reconnect. */
void world_silence(struct world *w, int node, bool silent);
/* How often the node's agent was started, and when last; the current time. */
int world_starts(const struct world *w, int node);
double world_started_at(const struct world *w, int node);
double world_now(const struct world *w);
/* Kills (SIGKILL) or hangs worker `device` of a node, or kills the node's agent with its workers. */
enum world_how { WORLD_KILL, WORLD_HANG, WORLD_AGENT };
void world_kill(struct world *w, int node, int device, enum world_how how);
/* The link of a node is cut: its agent, and workers, live and connect again. */
void world_cut(struct world *w, int node);
/* The node's agent and workers are gone, and their connection stays, until the controller's machine finds it dead. */
void world_vanish(struct world *w, int node);
/* Another agent of the node is started, as by hand, and arrives when world_move says so. */
void world_start_second(struct world *w, int node);
/* Second agents that were turned away, and that have taken the place of the first. */
int world_turned_away(const struct world *w);
int world_replaced(const struct world *w);
int world_second_came_first(const struct world *w); /* second agents that came while the first one was not connected */
/* A user's command: "grow" or "shrink" by `by` nodes. */
void world_ask(struct world *w, const char *what, int by);
void world_checkpoint(struct world *w); /* a user asks for one */
/* Wakes hung workers and gives the job all nodes back, so that it can end. */
void world_heal(struct world *w);
/* The job gets `more` steps after the furthest that a worker has made, unless a worker is near its end. Returns false if one is. */
bool world_prolong(struct world *w, int more);
int world_steps(const struct world *w); /* of the job */
void world_shutdown(struct world *w);
/* hspmdctld reports the rate of node losses. */
void world_risk(struct world *w, double losses_per_node_s, double correlated);
/* Number of copies on other nodes with which the last generation was prepared. */
int world_copies(const struct world *w);
/* From now on the devices of a node take `factor` times as long. */
void world_slow(struct world *w, int node, double factor);
/* A node's slowdown in the solver's last input. */
double world_slowdown(const struct world *w, int node);

/* From now on searches for plans end, or do not. */
void world_search(struct world *w, bool endless);
/* Plans that the controller waits for; that it has asked for at all; that it did not need any more; and of those, plans that it was given
 * all the same. */
int world_plans_asked(const struct world *w);
int world_plans_total(const struct world *w);
int world_plans_cancelled(const struct world *w);
int world_plans_late(const struct world *w);

bool world_ended(const struct world *w, int *status);
int world_steps_told(const struct world *w);
int world_nodes(const struct world *w); /* of the last step */
int world_generations(const struct world *w);
int64_t world_last_start(const struct world *w); /* the newest generation whose members were sent `start`; 0: none */
int world_unexpected(const struct world *w);  /* `start` messages whose holders of the state differ from those of `prepare` */
/* Workers that preconnected, in all generations, and (added to *informed) that started without being sent addresses again. */
int world_preconnects(const struct world *w, int *informed);
int world_resizes(const struct world *w);
const char *world_cause(const struct world *w); /* of the last resize; "": none */
int64_t world_steps_lost(const struct world *w);
int world_readers(const struct world *w); /* members that only read a checkpoint on their node, in all generations that started */
int world_began_anew(const struct world *w);                     /* starts from step 0 after steps had been reported */
int world_events_with(const struct world *w, const char *words); /* events so far whose text contains the words */
int world_replies(const struct world *w, bool ok);
int world_commands(const struct world *w);          /* that were given */
void world_shared_away(struct world *w, bool away); /* who writes to the shared folder waits until it is back */
int world_shared_asked(const struct world *w);      /* requests to write there, of the workers of the first node */
int world_written(const struct world *w);           /* checkpoints in nodes' own folders on disk */
/* How many of the last of them nodes were told to keep; 0: they have not been told of the last one. */
int world_kept(const struct world *w);
/* From now on the agents of these nodes, a bit each, refuse to send a manifest, send another one, or none, in turn. */
void world_set_bad_senders(struct world *w, unsigned nodes);
/* How often an agent was asked for a manifest, the last one's node, and how often one was sent as it should be. */
struct world_manifests {
	int asked, last, sent;
};
struct world_manifests world_manifests(const struct world *w);
bool world_saved(const struct world *w); /* a complete checkpoint of the step at which it stopped exists */
json_t *world_status(const struct world *w);
const char *world_exit_text(const struct world *w);

#endif
