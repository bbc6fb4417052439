/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the agent's files. Everything runs on one thread, in one libuv loop. */
#ifndef HSPMD_AGENT_AGENT_INTERNAL_H
#define HSPMD_AGENT_AGENT_INTERNAL_H

#include <jansson.h>
#include <uv.h>

#include "common/auth.h"
#include "common/stream.h"
#include "runtime/agent/agent.h"

struct agent;

/* A worker and the connection to it. Freed when the process has ended and both handles are closed. */
struct agent_worker {
	struct agent *agent;
	struct agent_worker *next;
	char *device;
	int64_t serial;
	uv_process_t process;
	uv_poll_t poll;
	struct hspmd_stream *stream; /* NULL: closed */
	int closing;                 /* number of handles that are not yet closed */
	bool exited, polling;
	bool stand_in;   /* of a job with a command (runtime/command/standin.h) */
	bool whole_node; /* it has all cores of the node */
	bool killed;     /* another worker of the device may start at once */
};

/* What controller_link.c and workers.c call; agent.c decides what happens. */
struct agent_callbacks {
	json_t *(*hello)(struct agent *a);                      /* a new reference; NULL: memory */
	void (*message)(struct agent *a, json_t *message);      /* from the controller; borrowed */
	void (*disconnected)(struct agent *a, const char *why); /* called once per lost connection, with the reason */
	void (*worker_exited)(struct agent *a);
};

struct agent {
	const struct hspmd_agent_options *options;
	const struct agent_callbacks *on;
	char *node;
	char process[HSPMD_NONCE_HEX];      /* by which the controller knows this process, in whatever PID namespace */
	json_t *part, *gathered, *bindings; /* fields of the `hello` message */
	uv_loop_t loop;
	uv_timer_t timer; /* reconnects; kills workers that do not end in time */
	uv_signal_t term, interrupt, usr1;
	uv_poll_t poll;
	struct hspmd_stream *stream; /* to the controller; NULL: no connection */
	double lost_at, reconnect_at;
	bool polling, quitting, told_to_leave;
	bool again; /* after agent_connect has failed: the controller had no room, and may have later */
	double quit_by;
	int status;
	struct agent_worker *workers;
	json_t *unsent; /* messages for the controller while there is no connection; NULL: none */
	json_t *steps;  /* the latest `step` messages sent: a controller that died may not have read them, and its successor ignores those
	                   that it knows; NULL: none */
	bool orphans;   /* processes of stand-ins that were killed may be left */
	int memory;     /* file descriptor that locks this node's part of the job's folder in memory; HSPMD_SHM_DIR_TAKEN: another agent of
	                   the node holds the lock; -1: none */
	double lock_at; /* HSPMD_SHM_DIR_TAKEN: next attempt */
	bool unwanted;  /* another agent of the node works for the controller */
};

/* ---- controller_link.c: the connection to the controller */

/* Try each of the controller's addresses once, then send the messages that waited. Blocks for at most 10 s per address (connecting, then
 * authentication). 0, or -1, err of the last address, and a->again. */
int agent_connect(struct agent *a, struct hspmd_error *err);
/* Send to the controller; steals the message. Without a connection the message waits for the next one. NULL (no memory): only logged. */
void agent_send(struct agent *a, json_t *message);

/* ---- workers.c */
void agent_spawn(struct agent *a, json_t *message);
void agent_kill(struct agent *a, json_t *message);
/* A message from the controller for one, several or all workers. */
void agent_forward(struct agent *a, json_t *message);
/* Send `quit` to all workers, or (force) kill them. */
void agent_end_workers(struct agent *a, bool force);
json_t *agent_list_workers(const struct agent *a);
/* Kills what stand-ins that were killed have left. To be called again while a->orphans. */
void agent_kill_orphans(struct agent *a);

/* ---- list_checkpoints.c: answers `list_checkpoints` and `read_manifest` */
void agent_list_checkpoints(struct agent *a, json_t *message);
void agent_read_manifest(struct agent *a, json_t *message);

#endif
