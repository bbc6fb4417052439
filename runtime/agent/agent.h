/* SPDX-License-Identifier: Apache-2.0 */
/* The agent: one process per node. It reports the node's hardware to the job controller, starts and ends workers, passes messages
 * between them and the controller, and lists the checkpoints on the node's disk. It decides nothing (the controller alone decides who is
 * alive). Messages are defined in common/wire.h. */
#ifndef HSPMD_AGENT_AGENT_H
#define HSPMD_AGENT_AGENT_H

#include <stdbool.h>

#include "common/format/cluster.h"
#include "runtime/topology/topology.h"

struct hspmd_agent_options {
	const char *controllers;  /* "host:port[,host:port...]": addresses of the one controller, tried in order */
	const char *cookie;       /* shared secret for authentication; NULL: MUNGE */
	const char *munge_socket; /* socket of munged; NULL: the default one */
	const char *node;         /* node name; NULL: as topology finds it */
	const char *cluster;      /* cluster file from which the node's part is taken (for local runs); NULL: discover the hardware */
	struct hspmd_topology_options topology;
	int threads;   /* per worker, with `cluster`; 0: 1 */
	bool exchange; /* first exchange the nodes' hardware over PMIx and report the cluster of the whole Slurm step (task 0 sends it to
	                  the controller) */
	const char *memory;         /* the job's folder for copies in memory (common/shm_dir.h); NULL: none */
	double reconnect_timeout_s; /* how long workers are kept without a controller */
};

/* Returns the process's exit status: 0 after `quit`, 1 if it could not work or lost the controller for good (the log says why). */
int hspmd_agent_main(const struct hspmd_agent_options *options);

#endif
