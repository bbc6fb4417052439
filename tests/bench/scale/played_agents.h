/* SPDX-License-Identifier: Apache-2.0 */
/* The agents and workers of a played cluster, in one thread: each agent has a real connection to the controller (loopback, authenticated,
 * signed frames); the workers behind it only answer as workers would that train (common/wire.h). Steps end when the player says so. */
#ifndef HSPMD_TESTS_BENCH_SCALE_PLAYED_AGENTS_H
#define HSPMD_TESTS_BENCH_SCALE_PLAYED_AGENTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/bench/scale/played_controller.h"

struct played_agents;

struct played_counts {
	int64_t down, up;               /* messages from and to the controller */
	int64_t bytes_down, bytes_up;   /* of their connections */
	int64_t largest;                /* bytes of the largest message either way, of those that are sent to or by all workers */
	int64_t training;               /* newest generation whose members have all started; 0: none */
	int64_t from;                   /* the step with which it has begun */
	int64_t steps, workers, agents; /* steps that were reported; workers that take part in it; agents that are connected */
	int64_t connects;               /* how often an agent has connected */
	int64_t manifests;              /* that were written */
	int64_t asked_for_manifest;     /* nodes that were asked for the text of one */
	int64_t found_bytes;            /* of what agents have said of the checkpoints that they see, with the texts of manifests */
	int64_t committed;              /* nodes that were told which checkpoints stand */
	char fault[256];                /* what went wrong first; "": nothing */
};

/* NULL and err. */
struct played_agents *played_agents_create(struct played_site *site, const char *cookie, struct hspmd_error *err);
void played_agents_destroy(struct played_agents *a);
/* Where the controller listens: agents connect from now on. */
void played_agents_call(struct played_agents *a, const char *address);
/* Hears and answers for up to so many seconds. 0, or -1 and err. */
int played_agents_run(struct played_agents *a, double seconds, struct hspmd_error *err);
/* The node is lost: its workers are gone, and its agent is not started again until played_agents_repair(). */
void played_agents_lose(struct played_agents *a, int node);
void played_agents_kill_workers(struct played_agents *a); /* all of them, with what they hold; their agents report it */
void played_agents_repair(struct played_agents *a, int node);
/* The network between these nodes and all others is cut, or works again. Processes live on. */
void played_agents_cut(struct played_agents *a, int first, int count, bool cut);
struct played_counts played_agents_counts(struct played_agents *a);

#endif
