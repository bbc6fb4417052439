/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/agent/agent.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/format/device_traits.h"
#include "common/alloc.h"
#include "common/clock.h"
#include "common/contact.h"
#include "common/log.h"
#include "common/shm_dir.h"
#include "runtime/agent/agent_internal.h"

#define FIRST_CONNECT_S 90.0 /* for the first connection, if the controller is crowded: it waits longer for its agents */
#define RECONNECT_S 1.0
#define RECONNECT_MOST_S 8.0
#define RELOCK_S 1.0
#define TICK_MS 100
#define QUIT_S 10.0 /* for workers to end by themselves */

/* ---- the node's hardware */

/* The node's part of a given cluster file: its devices, and all types and links. */
static struct hspmd_cluster *part_of_file(const char *path, const char *node, struct hspmd_error *err)
{
	struct hspmd_cluster *whole = hspmd_cluster_read(path, err), *part = NULL;
	int at = whole ? hspmd_cluster_find_node(whole, node) : -1;
	if (whole && at < 0)
		hspmd_fail(err, "%s: there is no node %s", path, node);
	else if (whole)
		part = hspmd_cluster_part(whole, &at, 1, err);
	hspmd_cluster_destroy(whole);
	return part;
}

static json_t *list_bindings(const struct hspmd_topology *t, const struct hspmd_cluster *part, int threads)
{
	json_t *list = json_array();
	int opened[HSPMD_DEVICE_KINDS_MAX] = { 0 }; /* of each kind: devices have numbers, but shares of the host's cores have none */
	for (int d = 0; list && d < part->device_count; d++) {
		enum hspmd_device_kind kind = part->types[part->devices[d].type].kind;
		bool numbered = !hspmd_device_traits(kind)->host_memory;
		const struct hspmd_binding *p = t ? &t->bindings[d] : NULL;
		json_array_append_new(
		        list, p ? json_pack("{si,si,ss*}", "threads", p->cores, "index", p->gpu < 0 ? 0 : p->gpu, "cpus", p->cpus)
		                : json_pack("{si,si}", "threads", threads > 0 ? threads : 1, "index", numbered ? opened[kind]++ : 0));
	}
	return list;
}

static int describe_node(struct agent *a, struct hspmd_error *err)
{
	const struct hspmd_agent_options *o = a->options;
	struct hspmd_topology *t = o->cluster ? NULL : hspmd_topology_discover(&o->topology, err);
	struct hspmd_cluster *file = o->cluster ? part_of_file(o->cluster, o->node, err) : NULL, *all = NULL;
	const struct hspmd_cluster *part = t ? t->cluster : file;
	int status = part ? 0 : -1;
	struct hspmd_error exchange;
	/* A node whose discovery failed takes part in the exchange nevertheless: the other nodes wait for it. A Slurm step for nodes
	 * that join later has no PMIx. */
	if (o->exchange && getenv("PMIX_RANK") && hspmd_topology_exchange(part, &all, NULL, &exchange))
		hspmd_warn("%s", exchange.text);
	if (!status) {
		a->node = strdup(part->nodes[0].name);
		a->part = hspmd_cluster_to_json(part);
		a->gathered = all ? hspmd_cluster_to_json(all) : NULL;
		a->bindings = list_bindings(t, part, o->threads);
		if (!a->node || !a->part || !a->bindings)
			status = hspmd_fail_memory(err, "describing the node");
	}
	hspmd_cluster_destroy(all);
	hspmd_cluster_destroy(file);
	hspmd_topology_destroy(t);
	return status;
}

/* ---- the controller */

/* What Slurm gave to this step; NULL outside of Slurm. */
static json_t *granted_to_step(void)
{
	const char *cpus = getenv("SLURM_CPUS_ON_NODE"), *gpus = getenv("SLURM_STEP_GPUS");
	if (!cpus)
		return NULL;
	if (!gpus && !getenv("SLURM_GPUS_ON_NODE"))
		gpus = "";
	return json_pack("{si,ss*}", "cpus", atoi(cpus), "gpus", gpus);
}

static json_t *make_hello(struct agent *a)
{
	json_t *alone = a->memory >= 0 ? json_true() : a->memory == HSPMD_SHM_DIR_TAKEN ? json_false() : NULL;
	return json_pack("{so*,ss,ss,ss*,si,ss,so*,sO,sO,sO*,so}", "granted", granted_to_step(), "role", "agent", "node", a->node, "job",
	                 getenv("SLURM_JOB_ID"), "pid", (int)getpid(), "process", a->process, "alone", alone, "cluster", a->part,
	                 "bindings", a->bindings, "gathered", a->gathered, "workers", agent_list_workers(a));
}

static void start_quitting(struct agent *a, int status)
{
	if (a->quitting)
		return;
	a->quitting = true;
	a->quit_by = hspmd_now() + QUIT_S;
	a->status = status;
	agent_end_workers(a, false);
}

/* Another agent of this node works for the controller. What is in the node's memory is that agent's. */
static void turn_away(struct agent *a, const char *why)
{
	hspmd_error_log("this agent is not needed, and ends: %s", why ? why : "the job controller has another agent of this node");
	a->unwanted = true;
	start_quitting(a, 1);
}

static void on_message(struct agent *a, json_t *m)
{
	const char *type = json_string_value(json_object_get(m, "type"));
	if (json_object_get(m, "to"))
		agent_forward(a, m);
	else if (type && !strcmp(type, "spawn"))
		agent_spawn(a, m);
	else if (type && !strcmp(type, "kill"))
		agent_kill(a, m);
	else if (type && !strcmp(type, "list_checkpoints"))
		agent_list_checkpoints(a, m);
	else if (type && !strcmp(type, "read_manifest"))
		agent_read_manifest(a, m);
	else if (type && !strcmp(type, "ping"))
		agent_send(a, json_pack("{ss}", "type", "pong"));
	else if (type && !strcmp(type, "turned_away"))
		turn_away(a, json_string_value(json_object_get(m, "text")));
	else if (type && !strcmp(type, "quit"))
		start_quitting(a, 0);
}

static void on_disconnected(struct agent *a, const char *why)
{
	if (a->quitting)
		return;
	hspmd_warn("the controller is gone (%s)%s", why, a->told_to_leave ? "; ending" : "; keeping the workers and calling again");
	if (a->told_to_leave)
		start_quitting(a, 1);
}

/* ---- timers and signals */

static bool workers_left(const struct agent *a)
{
	for (const struct agent_worker *w = a->workers; w; w = w->next)
		if (!w->exited)
			return true;
	return false;
}

static void on_worker_exited(struct agent *a)
{
	if (a->quitting && !workers_left(a))
		uv_stop(&a->loop); /* the controller waits for this node */
}

static void try_lock(struct agent *a, double wait_s, struct hspmd_error *err)
{
	a->memory = hspmd_shm_dir_lock(a->options->memory, a->node, getenv("SLURM_JOB_ID"), wait_s, err);
	a->lock_at = hspmd_now() + RELOCK_S;
}

/* The node's other agent may have ended. */
static void lock_again(struct agent *a)
{
	struct hspmd_error err;
	if (a->memory != HSPMD_SHM_DIR_TAKEN || hspmd_now() < a->lock_at)
		return;
	try_lock(a, 0, &err);
	if (a->memory >= 0)
		agent_send(a, json_pack("{ss}", "type", "alone"));
	else if (a->memory != HSPMD_SHM_DIR_TAKEN)
		hspmd_warn("%s", err.text);
}

static void on_time(uv_timer_t *timer)
{
	struct agent *a = timer->data;
	struct hspmd_error err;
	if (a->orphans)
		agent_kill_orphans(a);
	if (a->quitting) {
		if (!workers_left(a))
			uv_stop(&a->loop);
		else if (hspmd_now() > a->quit_by)
			agent_end_workers(a, true);
		return;
	}
	lock_again(a);
	if (a->stream || hspmd_now() < a->reconnect_at)
		return;
	a->reconnect_at = hspmd_now() + RECONNECT_S;
	if (!agent_connect(a, &err)) {
		hspmd_info("the controller is back");
	} else if (hspmd_now() - a->lost_at > a->options->reconnect_timeout_s) {
		hspmd_error_log("no controller for %.0f s, ending: %s", a->options->reconnect_timeout_s, err.text);
		start_quitting(a, 1);
	}
}

static void on_term(uv_signal_t *handle, int number)
{
	struct agent *a = handle->data;
	a->told_to_leave = true;
	agent_send(a, json_pack("{ss,ss}", "type", "terminating", "text", strsignal(number)));
	if (!a->polling)
		start_quitting(a, 1);
}

static void on_usr1(uv_signal_t *handle, int number)
{
	(void)number;
	agent_send(handle->data, json_pack("{ss}", "type", "checkpoint_wanted"));
}

static void ignore(uv_signal_t *handle, int number)
{
	(void)handle, (void)number; /* Ctrl-C is sent to all processes of the terminal; the controller decides what happens */
}

static void close_handle(uv_handle_t *handle, void *unused)
{
	(void)unused;
	if (!uv_is_closing(handle))
		uv_close(handle, NULL);
}

/* Without this folder copies are on disks only. The lock also shows whether another agent of the node lives, which the controller may
 * not know: its connection may be broken, or there may be a new controller. */
static void lock_memory(struct agent *a)
{
	struct hspmd_error err;
	if (!a->options->memory)
		return;
	hspmd_shm_dir_sweep();
	try_lock(a, HSPMD_SHM_DIR_LOOK_S, &err);
	if (a->memory < 0)
		hspmd_warn("%s", err.text);
}

/* Its contents are useful as long as a worker may come back to this node: not if the agent was told to quit, or stops waiting for a
 * controller. */
static void remove_memory(struct agent *a, bool was_connected)
{
	struct hspmd_error err;
	if (a->memory == HSPMD_SHM_DIR_TAKEN && !a->unwanted)
		try_lock(a, HSPMD_SHM_DIR_LOOK_S, &err); /* it was told to end before it found out that the other one has */
	if (a->memory < 0)
		return;
	if (was_connected && !a->unwanted)
		hspmd_shm_dir_remove(a->options->memory, a->node);
	close(a->memory);
}

static const struct agent_callbacks callbacks = {
	.hello = make_hello,
	.message = on_message,
	.disconnected = on_disconnected,
	.worker_exited = on_worker_exited,
};

/* All agents of a large job connect at the same moment, and the controller has room for some of them. The others connect again after a
 * random time, so that the attempts spread out. */
static int connect_first(struct agent *a, struct hspmd_error *err)
{
	double until = hspmd_now() + FIRST_CONNECT_S, mean = RECONNECT_S / 2;
	while (agent_connect(a, err)) {
		if (!a->again || hspmd_now() + mean > until)
			return -1;
		hspmd_contact_pause(mean);
		mean = fmin(2 * mean, RECONNECT_MOST_S);
	}
	return 0;
}

static int run(struct agent *a, bool *connected)
{
	struct hspmd_error err;
	if (hspmd_auth_nonce(a->process, &err) || describe_node(a, &err) || uv_loop_init(&a->loop)) {
		hspmd_error_log("%s", err.text);
		return 1;
	}
	char name[96];
	snprintf(name, sizeof name, "hspmd agent %s", a->node);
	hspmd_log_name(name);
	uv_timer_init(&a->loop, &a->timer);
	uv_signal_init(&a->loop, &a->term);
	uv_signal_init(&a->loop, &a->interrupt);
	uv_signal_init(&a->loop, &a->usr1);
	a->timer.data = a->term.data = a->interrupt.data = a->usr1.data = a;
	lock_memory(a);
	*connected = !connect_first(a, &err);
	if (!*connected) {
		hspmd_error_log("the controller cannot be reached: %s", err.text);
		a->status = 1;
	} else {
		uv_signal_start(&a->term, on_term, SIGTERM);
		uv_signal_start(&a->interrupt, ignore, SIGINT);
		uv_signal_start(&a->usr1, on_usr1, SIGUSR1);
		uv_timer_start(&a->timer, on_time, TICK_MS, TICK_MS);
		uv_run(&a->loop, UV_RUN_DEFAULT);
	}
	if (a->orphans)
		agent_kill_orphans(a);
	if (a->polling)
		uv_poll_stop(&a->poll);
	uv_walk(&a->loop, close_handle, NULL);
	uv_run(&a->loop, UV_RUN_DEFAULT);
	uv_loop_close(&a->loop);
	return a->status;
}

int hspmd_agent_main(const struct hspmd_agent_options *options)
{
	struct agent a = { .options = options, .on = &callbacks, .memory = -1 };
	signal(SIGPIPE, SIG_IGN);
	setenv("UCX_LOG_LEVEL", "error", 0); /* otherwise UCX in the workers would warn about every message of a dead peer */
	bool connected = false;
	int status = run(&a, &connected);
	remove_memory(&a, connected);
	hspmd_stream_destroy(a.stream);
	free(a.node);
	json_decref(a.part);
	json_decref(a.gathered);
	json_decref(a.unsent);
	json_decref(a.steps);
	json_decref(a.bindings);
	return status;
}
