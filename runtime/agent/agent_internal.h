/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent's files share. Everything runs on one thread, in one libuv loop. */
#ifndef HSPMD_AGENT_AGENT_INTERNAL_H
#define HSPMD_AGENT_AGENT_INTERNAL_H

#include <jansson.h>
#include <uv.h>

#include "common/stream.h"
#include "runtime/agent/agent.h"

struct agent;

/* A worker and the connection to it. Lives until the process has ended and both handles are closed. */
struct agent_worker {
	struct agent *agent;
	struct agent_worker *next;
	char *device;
	int64_t serial;
	uv_process_t process;
	uv_poll_t poll;
	struct hspmd_stream *stream; /* NULL: closed */
	int closing;                 /* handles not yet closed */
	bool exited, polling;
	bool killed; /* another may take its place at once */
};

struct agent {
	const struct hspmd_agent_options *options;
	char *node;
	json_t *part, *gathered, *bindings; /* of the hello */
	uv_loop_t loop;
	uv_timer_t timer; /* calls again; ends what does not end */
	uv_signal_t term, interrupt;
	uv_poll_t poll;
	struct hspmd_stream *stream; /* to the controller; NULL: lost */
	double lost_at, call_at;
	bool polling, quitting, told_to_leave;
	double quit_by;
	int status;
	struct agent_worker *workers;
	json_t *unsent; /* what there was to say while there was no controller; NULL: nothing */
	json_t *steps;  /* the last ones sent: a controller that died may not have read them, and the next passes over those it knows; NULL:
	                   none */
	int memory;     /* holds this node's part of the job's folder in memory; -1: it has none */
};

/* Send to the controller; steals the message; nothing happens while there is no controller. */
void agent_send(struct agent *a, json_t *message);
/* A worker has ended: with the last of them an agent that is to quit does so. */
void agent_worker_gone(struct agent *a);

/* ---- workers.c */
void agent_spawn(struct agent *a, json_t *message);
void agent_kill(struct agent *a, json_t *message);
/* A message from the controller for one, several or all workers. */
void agent_forward(struct agent *a, json_t *message);
/* Tell all to quit, or (force) kill them. */
void agent_end_workers(struct agent *a, bool force);
json_t *agent_list_workers(const struct agent *a);

/* ---- list_checkpoints.c: answer `find` */
void agent_list_checkpoints(struct agent *a, json_t *message);

#endif
