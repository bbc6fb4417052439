/* SPDX-License-Identifier: Apache-2.0 */
/* A libslurm for tests of controller/slurm: it answers with the tables below, or fails with the given error, and records the calls. */
#ifndef HSPMD_TESTS_FAKE_SLURM_H
#define HSPMD_TESTS_FAKE_SLURM_H

#include <slurm/slurm.h>

struct fake_slurm {
	slurm_conf_t conf;
	job_info_msg_t jobs;
	node_info_msg_t nodes;
	partition_info_msg_t partitions;
	int jobs_error, nodes_error, partitions_error, conf_error; /* 0: the call succeeds */
	int update_error[2];                                       /* of the first and the second update */
	int kill_error;
	const char *init_error; /* what libslurm says before it ends the process; NULL: it can be initialised */
	int initialised;        /* calls of slurm_init() by this process */
	int asked; /* number of loads of jobs, nodes and partitions */

	struct {
		uint32_t job, min_nodes, user;
		char nodes[256];
	} updates[4];
	int update_count;
	uint32_t killed[4];
	int killed_count;
	char killed_tasks[64]; /* by the last call that names tasks of an array */
};
extern struct fake_slurm fake_slurm;

/* Everything empty, and every call succeeds. */
void fake_slurm_reset(void);

#endif
