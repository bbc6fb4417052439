/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated site for the controller of a job with a command: nodes with agents, stand-ins and ranks in memory, and the order of messages,
 * failures and resizes drawn from a seed. What must hold at any moment is asserted here. */
#ifndef HSPMD_TESTS_COMMAND_SITE_H
#define HSPMD_TESTS_COMMAND_SITE_H

#include "controller/core/controller.h"

#define NODES 4
#define STEPS 40
#define MOVES 20000

struct place {
	bool held, agent, stand_in, runs, noticed, finished;
	bool elastic; /* the rank takes changes in its process, and holds the state */
	bool slow;    /* it does not answer `prepare` */
	bool hangs;   /* it does not answer `preconnect` */
	bool first;   /* rank 0 */
	json_int_t serial;
	int64_t prepared, generation;
	int64_t connected; /* generation for which it has connected beside training; shut again: given_up */
	int64_t given_up;
	int members;       /* of the generation that is prepared */
	json_t *down, *up; /* messages under way, in order */
};

struct site {
	struct hspmd_controller *m;
	struct hspmd_job *job;
	struct run_config config;
	struct place place[NODES];
	uint64_t random;
	double now;
	int64_t step;           /* next, of the command */
	int lines[STEPS], lost; /* of a step in metrics.jsonl; steps lost by changes */
	int64_t solve, resize;
	json_t *question; /* what is to be solved; NULL: nothing */
	int failures;     /* of ranks */
	bool agreed;      /* the last reply to a user */
	int status;       /* of the job; -1: it runs */
	char why[300];
	int ends_with; /* exit status of the ranks after the last step */
};

/* Three of the nodes are in the allocation, and nothing has started yet. Clear it with site_clear. */
void site_begin(struct site *s, uint64_t seed, const char *argument);
/* site_begin, and on until the job's end, with so many faults; shutdown_at: the move before which the job is told to end, -1: never. */
void site_run(struct site *s, uint64_t seed, const char *argument, int faults, int shutdown_at);
void site_clear(struct site *s);

/* One move. false: there was nothing to do. */
bool site_deliver(struct site *s, int i); /* a message to or from node i */
bool site_solve(struct site *s);          /* the solver or Slurm answers */
void site_wait_for_deadline(struct site *s);

void site_ask(struct site *s, const char *what); /* a user: "grow" or "shrink" */
void site_say(struct place *p, json_t *m);       /* the stand-in, to the controller; takes m over */
void site_tell_step(struct site *s, struct place *p);
void site_rank_ended(struct place *p, const char *type, int status);
void site_fail_rank(struct place *p);
uint64_t site_pick(struct site *s, uint64_t n); /* a random number below n */

#endif
