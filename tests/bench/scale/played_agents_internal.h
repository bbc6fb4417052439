/* SPDX-License-Identifier: Apache-2.0 */
/* The state of played agents and their workers, and what they say. */
#ifndef HSPMD_TESTS_BENCH_SCALE_PLAYED_AGENTS_INTERNAL_H
#define HSPMD_TESTS_BENCH_SCALE_PLAYED_AGENTS_INTERNAL_H

#include "common/stream.h"
#include "runtime/state/manifest.h"
#include "tests/bench/scale/played_agents.h"

struct played_worker {
	bool up;
	int64_t serial, prepared, runs, holds, step, stop;
};

struct played_agent {
	struct hspmd_stream *stream;  /* NULL: not connected */
	int node, started;            /* the site's `starts` when it was started last */
	bool lost, alive, cut;        /* alive: its process is there, and would connect again; cut: but it cannot */
	bool manifest;                /* it has that of the last checkpoint */
	int64_t bytes_down, bytes_up; /* of earlier connections */
	struct played_worker worker[PLAYED_NODE_DEVICES];
};

/* The generation that workers prepare or run. */
struct played_generation {
	int64_t number;
	int members, planned, started, stopping; /* planned: members that have a part in the plan, the first ones */
	int reporter;                            /* its device number */
	bool training;
	int64_t step;
};

struct played_agents {
	struct played_site *site;
	struct hspmd_auth *auth;
	struct hspmd_wire_memo *memo; /* what many nodes are sent is read once */
	int epoll;
	json_t *address; /* of the controller; NULL: it is not there */
	struct played_agent *agent;
	struct played_generation next, now;
	bool *in_plan; /* of `next`: by device number */
	double step_at, heartbeat_at;
	char checkpoint[64]; /* the checkpoint under way */
	int64_t checkpoint_step;
	json_t *saved; /* the last manifest; NULL: none */
	char saved_sum[HSPMD_MANIFEST_SUM];
	struct played_counts counts;
	char sizes[512]; /* kinds of messages whose size is known */
};

/* Adds the bytes of the agent's connection. */
void played_note_bytes(const struct played_agent *g, int64_t *down, int64_t *up);
void played_hang_up(struct played_agent *g);

/* Each sends the controller a message of a worker, or about one; takes m. */
void played_say_as(struct played_agents *a, struct played_agent *g, int device, json_t *m);
void played_say_exited(struct played_agents *a, struct played_agent *g, int device, int signal);
/* The losses that a worker reports which has made that many steps. */
json_t *played_losses_at(int64_t step);

/* The agent has got a message: it and its workers answer. */
void played_hear(struct played_agents *a, struct played_agent *g, json_t *m);

#endif
