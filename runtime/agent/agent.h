/* SPDX-License-Identifier: Apache-2.0 */
/* The agent: one process a node. It tells the job controller what the node has, starts and ends workers, passes messages between them and
 * the controller, and looks for checkpoints on the node's disk. It decides nothing (the controller alone decides who is alive). What is
 * said is in common/wire.h. */
#ifndef HSPMD_AGENT_AGENT_H
#define HSPMD_AGENT_AGENT_H

#include <stdbool.h>

#include "common/format/cluster.h"
#include "runtime/topology/topology.h"

struct hspmd_agent_options {
	const char *controllers;  /* "host:port[,host:port...]": addresses of the one controller, tried in order */
	const char *cookie;       /* proves who speaks; NULL: MUNGE */
	const char *munge_socket; /* munged's; NULL: the default one */
	const char *node;         /* name; NULL: topology's */
	const char *cluster;      /* a cluster file from which the node's part is taken (local play); NULL: discover */
	struct hspmd_topology_options topology;
	int threads;        /* of each worker, with `cluster`; 0: 1 */
	bool exchange;      /* put what was found up over PMIx first, and take the whole step's cluster (task 0 tells the controller) */
	const char *memory; /* the job's folder for copies in memory (common/shm_dir.h); NULL: none */
	double reconnect_timeout_s; /* how long to keep workers without a controller */
};

/* Returns the process's exit status: 0 when told to quit, 1 when it could not work or lost the controller for good (said in the log). */
int hspmd_agent_main(const struct hspmd_agent_options *options);

#endif
