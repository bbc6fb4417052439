/* SPDX-License-Identifier: Apache-2.0 */
/* A real agent between a controller and workers of the test's own. The agent starts its workers from its own program, which is the test:
 * with the argument "worker" its main returns agent_case_worker(). */
#ifndef HSPMD_TESTS_AGENT_CASE_H
#define HSPMD_TESTS_AGENT_CASE_H

#include <sys/types.h>

#include "common/error.h"
#include "tests/unit/fake_controller.h"

extern struct agent_case {
	struct fake_controller controller;
	struct hspmd_error err;
	char folder[32], controllers[128], cluster[64];
	char *memory; /* the folder in memory that the agent is given */
	pid_t agent;
	int first_lock; /* of the node's memory, as another agent holds it; -1: nobody */
} agent_case;

/* A worker that obeys the messages that tests send; returns the exit status. */
int agent_case_worker(void);

/* Fixtures of cmocka. Of a group: make the folder and the cluster's file, remove the folder. Of a test: the controller listens; or an
 * agent has greeted it, too; at the end the agent is killed. */
int agent_case_setup(void **state);
int agent_case_teardown(void **state);
int agent_case_begin_test(void **state);
int agent_case_begin(void **state);
int agent_case_end_test(void **state);

/* A path in the folder; valid until the next call. */
const char *agent_case_path(const char *name);

void agent_case_start(const char *cookie, double reconnect_s);
/* Waits for the agent's end. */
void agent_case_ends_with(int status);
/* The agent has written this into its log; or wait until it has. */
bool agent_case_logged(const char *text);
void agent_case_await_log(const char *text);
void agent_case_await_no_process(int pid);

/* Sends the agent a message. */
void agent_case_send(const char *text);
/* The next message has these fields. */
void agent_case_expect(const char *text);
/* Starts a worker; returns its process. */
int agent_case_spawn(const char *device, int serial);

#endif
