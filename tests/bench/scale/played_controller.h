/* SPDX-License-Identifier: Apache-2.0 */
/* The controller of a played cluster: the real state machine and the real loop, in a process that can be killed, with nodes that only
 * exist in memory which it shares with whoever plays them. */
#ifndef HSPMD_TESTS_BENCH_SCALE_PLAYED_CONTROLLER_H
#define HSPMD_TESTS_BENCH_SCALE_PLAYED_CONTROLLER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "common/error.h"

#define PLAYED_NODE_DEVICES 8

/* Shared between the processes. */
struct played_site {
	int nodes;
	atomic_int asked, srun; /* how often the controller has asked Slurm for its nodes; how often it has run srun */
	struct {
		atomic_bool held;  /* by the job */
		atomic_int starts; /* how often the controller has started the node's agent */
	} node[];
};

struct played_controller {
	struct played_site *site;
	const char *folder; /* output folder */
	const char *cookie; /* that agents must know */
	struct run_journal_memory *journal;
	int port; /* 0: any */
};

/* Make a site of `devices` / 8 nodes, of which the job holds the first `held`. NULL and err. */
struct played_site *played_site_create(int devices, int held, struct hspmd_error *err);
void played_site_destroy(struct played_site *s);
/* What the controller runs in place of srun, as this program with the argument PLAYED_WAIT: it stays until the controller is gone. */
#define PLAYED_WAIT "--wait"
int played_wait(void);
/* Fork a controller; again: it reads the journal that an earlier one has left. Returns its process, or -1 and err. */
pid_t played_controller_start(const struct played_controller *c, bool again, struct hspmd_error *err);

#endif
