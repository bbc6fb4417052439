/* SPDX-License-Identifier: Apache-2.0 */
/* The whole of hspmdctld in a process of its own, on an invented cluster: job 7 has n0 to n2, job 8 n3 to n5; job 9, another user's, is
 * pending or completing. */
#ifndef HSPMD_UNIT_CTLD_CASE_H
#define HSPMD_UNIT_CTLD_CASE_H

#include "controller/ctld/daemon_internal.h"
#include "controller/ctld_client/client.h"
#include "tests/unit/greeting.h"

#define CTLD_CASE_PATIENCE_S 60
#define CTLD_CASE_POLLS 4096

/* Memory that the test and the daemon's process share. */
struct ctld_case_world {
	volatile bool waits;     /* job 9 wants two nodes */
	volatile bool job_ended; /* job 7 is no more */
	volatile bool completing; /* job 8 has n3 only, n4 is idle, and n5 is always completing */
	volatile double slow_s;  /* duration of a poll */
	volatile int polls;
	double began[CTLD_CASE_POLLS], ended[CTLD_CASE_POLLS];
};

struct ctld_case {
	struct ctld_case_world *world;
	char folder[64];
	int port, metrics, out; /* metrics: the port of the page; 0: built without */
	char said[1 << 16];     /* on standard error */
	size_t said_count;
	pid_t pid;
	struct hspmd_auth *auth, *stranger;
	struct ctld_client *line[2]; /* of jobs 7 and 8 */
};

extern struct greeting ctld_case_greeting; /* of the client that greeted last */
extern bool ctld_case_dry_run;             /* of the next daemon */
extern double ctld_case_poll_min_s;        /* its least time between two polls */
extern bool ctld_case_completing;          /* its world's value at the start */
extern unsigned ctld_case_labels;          /* of its metrics of jobs */

/* Set up and tear down a test: *state is a struct ctld_case. */
int ctld_case_start(void **state);
int ctld_case_stop(void **state);

struct hspmd_slurm_view *ctld_case_view(bool waits);
/* Writes a file in the daemon's folder. */
void ctld_case_write(const struct ctld_case *d, const char *name, const char *text);
/* Drives the clients and reads the daemon's output, for at most `ms`. */
void ctld_case_turn(struct ctld_case *d, int ms);
void ctld_case_wait_said(struct ctld_case *d, const char *what);
int ctld_case_count_said(const struct ctld_case *d, const char *what);

/* Job 7 + i: connects with a state, which gives `rate` on one node; changes its state. */
void ctld_case_call(struct ctld_case *d, int i, double rate);
void ctld_case_call_with(struct ctld_case *d, int i, int min_nodes, double rate);
void ctld_case_set_state(struct ctld_case *d, int i, double rate);
void ctld_case_set_limits(struct ctld_case *d, int i, int min_nodes, double rate);
/* Returns the next request to it; NULL: none within this time. The caller owns it. */
json_t *ctld_case_next_request(struct ctld_case *d, int i, double seconds);
/* The same, which must come, with this command and number of nodes. */
json_t *ctld_case_expect_request(struct ctld_case *d, int i, const char *command, size_t nodes);

#endif
