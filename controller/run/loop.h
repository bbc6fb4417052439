/* SPDX-License-Identifier: Apache-2.0 */
/* The event loop around the controller: port, agents, solver, allocation, output folder, signals. */
#ifndef HSPMD_CONTROLLER_RUN_LOOP_H
#define HSPMD_CONTROLLER_RUN_LOOP_H

#include "common/auth.h"
#include "controller/run/allocation.h"
#include "controller/core/controller.h"
#include "controller/run/journal_memory.h"
#include "controller/run/output.h"

/* All pointers are borrowed. */
struct run_loop_options {
	const struct run_config *config;
	const struct hspmd_model_facts *facts;
	const struct hspmd_step_share *shares; /* how many steps have which length; NULL: all have the same */
	int share_count;
	const struct hspmd_program_search *programs; /* of the model; NULL: the job has a command */
	struct run_allocation *allocation;
	struct run_output *output; /* must stay if it hangs when the loop ends, as a thread waits for it then */
	struct run_journal_memory *journal;
	const struct hspmd_auth *auth;
	const char *munge_socket; /* for the contact file; NULL: the default */
	const char *ctld;         /* HSPMD_CTLD: hspmdctld's address; NULL: the site has none */
	const char *cluster;      /* Slurm's cluster name, or "local" */
	int port;                 /* 0: any */
	bool loopback;
	int local_agents;                 /* most that call from this machine at one moment */
	const char *const *agent_command; /* starts an agent; NULL-terminated; "--controller ADDRESSES" is appended */
	double solve_limit_s;
	int repair_devices; /* as in run_planning (choose_plan.h) */
};

/* Runs the job. Returns its exit status; errors are logged. Blocks until the job ends. */
int run_loop(const struct run_loop_options *o);

#endif
