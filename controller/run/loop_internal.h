/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by loop.c (events and actions), loop_peers.c (the server for agents and commands), loop_contact.c (how
 * others find the controller), loop_output.c (the output folder), loop_work.c (work outside the loop's thread: solver, Slurm, processes)
 * and loop_samples.c (samples). */
#ifndef HSPMD_RUN_LOOP_INTERNAL_H
#define HSPMD_RUN_LOOP_INTERNAL_H

#include <uv.h>

#include "common/auth.h"
#include "controller/run/loop.h"
#include "controller/run/choose_plan.h"
#include "controller/run/ctld_session.h"
#include "controller/run/output_queue.h"
#include "controller/server/server.h"

struct agent {
	char *node; /* first, for hspmd_name_order() */
	struct agent *next;
	char *job;               /* Slurm job of its step, from its hello; NULL: none */
	struct hspmd_peer *peer; /* NULL: not connected */
	char process[HSPMD_NONCE_HEX]; /* from its hello: tells processes apart, of which each may have a PID namespace of its own */
	struct hspmd_peer *newcomer; /* another agent of the node, which the controller keeps waiting; NULL: none */
	char newcomer_process[HSPMD_NONCE_HEX];
};

struct command {
	struct command *next;
	int64_t id;
	struct hspmd_peer *peer; /* NULL: the command is from hspmdctld */
	int64_t ctld_id;         /* hspmdctld's id of it, if peer is NULL */
};

/* An event that waits until the controller has handled another. */
struct pending {
	struct pending *next;
	struct run_event event;
	char *node, *text;
};

struct child {
	struct child *next;
	uv_process_t process;
	char **nodes; /* nodes whose agents it starts */
	int count;
	struct loop *loop;
	bool running;
};

struct solve;
struct sampler;

struct loop {
	const struct run_loop_options *o;
	/* Feeds the controller; may be called while it handles another. Messages wait until all that have arrived are read. */
	void (*on_event)(struct loop *l, const struct run_event *e);
	void (*stop)(struct loop *l, int status, const char *why); /* ends the loop */
	uv_loop_t uv;
	uv_timer_t clock, poll_timer, kill_timer;
	uv_prepare_t before_wait; /* these two hand over the messages that have arrived together */
	uv_check_t after_wait;
	uv_signal_t signals[4];
	struct hspmd_server *server;
	struct run_ctld_session *ctld_session; /* NULL: no hspmdctld */
	struct hspmd_controller *controller;
	struct agent *agents;
	void *agent_by_node; /* the same in a tree (tsearch) */
	struct command *commands;
	int64_t command_count;
	struct pending *first, **last;
	struct {
		json_t *body; /* whose text it is; NULL: none */
		char *text;
		size_t size;
	} sent; /* the last message that was sent to several agents, while actions are carried out */
	bool handling;
	char **to_start; /* nodes whose agents must be started */
	size_t start_count, start_capacity;
	struct child *children;
	struct sampler *sampler; /* makes samples; NULL: none runs */
	int64_t samples_next;    /* step of which samples are to be made after those; 0: none */
	char **agent_command; /* with addresses */
	bool polling, poll_again;
	int poll_failures;
	int pending_work; /* jobs under way in other threads */
	struct solve *solves; /* those of them that look for a plan */
	struct run_comparison compared;
	bool stopping;
	int status;
	int signals_seen;
	double status_at, progress_at;
	struct run_output_queue *output;
	uv_async_t output_failed;
	uv_timer_t output_timer; /* looks whether the folder answers */
	bool output_late;        /* that it does not was told */
	double output_late_s;    /* for how long, when it was looked at last */
	long output_dropped;     /* lines of which was told that they are lost */
	bool checkpoints_told;   /* where they are was told */
	double suspended_s; /* of which the controller has been told */
	char *contact[2];
	char process[HSPMD_NONCE_HEX]; /* this controller's, in its contact files */
};

/* loop_peers.c */
/* Returns the agent of a node, made if it is not known yet; NULL: no memory. */
struct agent *loop_agent_of(struct loop *l, const char *node);
/* ACTION_DISCONNECT_AGENT, ACTION_TURN_AWAY, ACTION_REPLACE_AGENT */
void loop_drop_agent(struct loop *l, const char *node);
void loop_turn_away(struct loop *l, const char *node, const char *why);
void loop_replace_agent(struct loop *l, const char *node, const char *why);
int loop_open_server(struct loop *l, struct hspmd_error *err);

/* loop_contact.c */
/* Once the server listens: writes the contact files, and prepares the command that starts an agent. */
int loop_publish_addresses(struct loop *l, struct hspmd_error *err);
void loop_remove_contacts(struct loop *l);

/* loop_output.c */
int loop_open_output(struct loop *l, struct hspmd_error *err);
/* What an action writes there, if it does, and keeps for the next incarnation. Waits until it is written, unless the folder hangs. */
void loop_write_output(struct loop *l, const struct run_action *x);
void loop_save_status(struct loop *l, bool at_once);
/* At the end of the loop: no longer keeps it. */
void loop_end_output(struct loop *l);
/* When all else is done, before the loop's last run. Returns -1 if something could not be written. */
int loop_close_output(struct loop *l);

/* loop_work.c */
void loop_solve(struct loop *l, int64_t id, json_t *value);
/* Nobody waits for this plan any more: the thread ends soon. id 0: the same of all plans. */
void loop_cancel_solve(struct loop *l, int64_t id);
void loop_poll_allocation(struct loop *l);
void loop_cancel_grow(struct loop *l);
void loop_resize(struct loop *l, int64_t id, int grow, json_t *nodes);
void loop_start_agents(struct loop *l);
void loop_end_children(struct loop *l, int signal);

/* loop_samples.c */
void loop_make_samples(struct loop *l, int64_t step);
/* For the end of the loop: gives a process that makes samples a while to end; ends it at once where `at_once` says so, or newer samples
 * wait. */
void loop_end_samples(struct loop *l, bool at_once);

#endif
