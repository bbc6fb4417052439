/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of `hspmd run`: those of its Slurm job, or those that this machine emulates; the site's policies for them; and how their agents
 * are started and prove themselves. */
#ifndef HSPMD_CONTROLLER_CLI_RUN_NODES_H
#define HSPMD_CONTROLLER_CLI_RUN_NODES_H

#include <limits.h>
#include <stdint.h>

#include "common/format/cluster.h"
#include "common/format/job.h"
#include "common/format/program_search.h"
#include "controller/cli/run_options.h"
#include "controller/cli/run_policy.h"
#include "controller/cli/run_state.h"
#include "controller/cli/step_lengths.h"
#include "controller/run/loop.h"
#include "controller/slurm/job.h"
#include "runtime/facts/facts.h"
#include "runtime/model/model.h"

#define CTLD_PATIENCE_S 2 /* wait for an answer of hspmdctld */

/* All objects of a run; its command frees them at its end. */
struct run {
	struct run_options opt;
	uint32_t slurm;                    /* job id; 0: local */
	struct hspmd_slurm_job *slurm_job; /* as at the start */
	char id[32];
	struct hspmd_job *job;
	struct hspmd_model *model;
	struct hspmd_model_facts *facts;
	struct hspmd_graph_source source;
	struct hspmd_root_checker roots;
	struct hspmd_program_search programs;
	struct hspmd_step_lengths_of lengths;
	struct hspmd_cluster *cluster; /* local */
	char *cluster_path, *save_folder, *local, *shared, *memory, *munge_socket, *member_log;
	struct run_output output;
	struct run_journal_memory *journal;
	struct hspmd_auth *auth;
	struct run_allocation *allocation;
	struct run_config config;
	struct run_policy terms;
	char exe[PATH_MAX], numbers[4][32];
	const char *agent[24];
};

/* All return 0, or -1 and err. */

/* For a local run: make up the nodes, or read them from the cluster file of the options. Set r->cluster and its path. */
int run_nodes_make_local(struct run *r, struct hspmd_error *err);
int run_nodes_read_local(struct run *r, struct hspmd_error *err);
/* Reads Slurm's information about the job, and the site's policies for it. */
int run_nodes_read_site(struct run *r, struct hspmd_error *err);
/* Check that there are enough nodes within the limits, set the arguments of their agents, and create r->allocation. */
int run_nodes_set_up_local(struct run *r, struct hspmd_error *err);
int run_nodes_set_up_slurm(struct run *r, struct hspmd_error *err);
/* Sets r->auth: MUNGE where the cluster uses it, else a cookie. */
int run_nodes_set_up_auth(struct run *r, struct hspmd_error *err);
/* Appends to the agents' arguments, which it borrows. They end with NULL. */
void run_nodes_agent_arguments(struct run *r, const char *const *arguments);

#endif
