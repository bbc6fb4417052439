/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/agent/agent.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/auth.h"
#include "common/clock.h"
#include "common/contact.h"
#include "common/log.h"
#include "common/shm_dir.h"
#include "runtime/agent/agent_internal.h"

#define GREETING_S 10.0
#define KEPT_MESSAGES 4096
#define UNSENT_MAX ((size_t)256 << 20)
#define CALL_AGAIN_S 1.0
#define TICK_MS 100
#define QUIT_S 10.0 /* for workers to end by themselves */

/* ---- what the node has */

/* The node's part of a given cluster file: its devices, and all types and links. */
static struct hspmd_cluster *part_of_file(const char *path, const char *node, struct hspmd_error *err)
{
	struct hspmd_cluster *whole = hspmd_cluster_read(path, err), *part = NULL;
	int at = whole ? hspmd_cluster_find_node(whole, node) : -1;
	if (whole && at < 0)
		hspmd_fail(err, "%s: there is no node %s", path, node);
	else if (whole)
		part = hspmd_cluster_single_node(whole, at, err);
	hspmd_cluster_destroy(whole);
	return part;
}

static json_t *list_bindings(const struct hspmd_topology *t, const struct hspmd_cluster *part, int threads)
{
	json_t *list = json_array();
	int gpus = 0;
	for (int d = 0; list && d < part->device_count; d++) {
		bool gpu = part->types[part->devices[d].type].kind == HSPMD_DEVICE_CUDA;
		const struct hspmd_binding *p = t ? &t->bindings[d] : NULL;
		json_array_append_new(list,
		                      p ? json_pack("{si,si,ss*}", "threads", p->cores, "index", p->gpu < 0 ? 0 : p->gpu, "cpus", p->cpus)
		                        : json_pack("{si,si}", "threads", threads > 0 ? threads : 1, "index", gpu ? gpus : 0));
		gpus += gpu;
	}
	return list;
}

static int look_around(struct agent *a, struct hspmd_error *err)
{
	const struct hspmd_agent_options *o = a->options;
	struct hspmd_topology *t = o->cluster ? NULL : hspmd_topology_discover(&o->topology, err);
	struct hspmd_cluster *file = o->cluster ? part_of_file(o->cluster, o->node, err) : NULL, *all = NULL;
	const struct hspmd_cluster *part = t ? t->cluster : file;
	int status = part ? 0 : -1;
	struct hspmd_error exchange;
	/* A node that found nothing takes its place in the exchange all the same: the others wait for it. A step of latecomers has no
	 * PMIx. */
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

static json_t *hello_of(struct agent *a)
{
	return json_pack("{ss,ss,ss*,si,sO,sO,sO*,so}", "role", "agent", "node", a->node, "job", getenv("SLURM_JOB_ID"), "pid",
	                 (int)getpid(), "cluster", a->part, "bindings", a->bindings, "gathered", a->gathered, "workers",
	                 agent_list_workers(a));
}

static int greet(struct agent *a, struct hspmd_stream *s, struct hspmd_error *err)
{
	struct hspmd_auth *auth =
	        a->options->cookie ? hspmd_auth_cookie(a->options->cookie, err) : hspmd_auth_munge(a->options->munge_socket, err);
	json_t *hello = auth ? hello_of(a) : NULL;
	int status = hello  ? hspmd_auth_handshake(auth, s, hello, getuid(), GREETING_S, NULL, err)
	             : auth ? hspmd_fail_memory(err, "saying hello")
	                    : -1;
	json_decref(hello);
	hspmd_auth_destroy(auth);
	return status;
}

static void on_ready(uv_poll_t *poll, int status, int events);
static void obey_all(struct agent *a);

static void watch(struct agent *a)
{
	int events = UV_READABLE | (hspmd_stream_has_unsent(a->stream) ? UV_WRITABLE : 0);
	a->polling = !uv_poll_start(&a->poll, events, on_ready);
}

/* In order; takes the list. */
static void send_list(struct agent *a, json_t *list)
{
	for (size_t i = 0; i < json_array_size(list); i++)
		agent_send(a, json_incref(json_array_get(list, i)));
	json_decref(list);
}

/* One of the controller's addresses. */
static struct hspmd_stream *call_one(struct agent *a, const char *address, struct hspmd_error *err)
{
	json_t *only = json_pack("[s]", address);
	int fd = only ? hspmd_connect_any(only, GREETING_S, err) : hspmd_fail_memory(err, "calling the controller");
	struct hspmd_stream *s = fd < 0 ? NULL : hspmd_stream_create(fd, HSPMD_WIRE_MAX, UNSENT_MAX, err);
	json_decref(only);
	if (s && greet(a, s, err)) {
		hspmd_stream_destroy(s);
		s = NULL;
	}
	return s;
}

/* Try each address once: one that answers may be another's, who does not prove himself. */
static int call(struct agent *a, struct hspmd_error *err)
{
	char *list = strdup(a->options->controllers), *save = NULL;
	if (!list)
		return hspmd_fail_memory(err, "calling the controller");
	hspmd_fail(err, "no address of the controller was given");
	for (char *at = strtok_r(list, ",", &save); at && !a->stream; at = strtok_r(NULL, ",", &save))
		a->stream = call_one(a, at, err);
	free(list);
	if (!a->stream)
		return -1;
	if (uv_poll_init(&a->loop, &a->poll, hspmd_stream_fd(a->stream)))
		return hspmd_fail(err, "cannot watch the connection to the controller");
	a->poll.data = a;
	watch(a);
	json_t *steps = a->steps, *unsent = a->unsent;
	a->steps = a->unsent = NULL;
	send_list(a, steps);
	send_list(a, unsent);
	obey_all(a); /* what came together with the welcome: no event tells of it */
	return 0;
}

static void on_poll_closed(uv_handle_t *handle)
{
	struct agent *a = handle->data;
	hspmd_stream_destroy(a->stream);
	a->stream = NULL;
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

static void lose_controller(struct agent *a, const char *why)
{
	if (!a->polling)
		return;
	a->polling = false;
	a->lost_at = hspmd_now();
	uv_poll_stop(&a->poll);
	uv_close((uv_handle_t *)&a->poll, on_poll_closed);
	if (a->quitting)
		return;
	hspmd_warn("the controller is gone (%s)%s", why, a->told_to_leave ? "; ending" : "; keeping the workers and calling again");
	if (a->told_to_leave)
		start_quitting(a, 1);
}

static void keep(json_t **list, json_t *message, size_t most)
{
	if (!*list)
		*list = json_array();
	if (json_array_size(*list) >= most)
		json_array_remove(*list, 0);
	if (!*list || json_array_append(*list, message))
		hspmd_error_log("out of memory: a message to the controller is lost");
}

/* A controller that comes back wants to know which steps there were: also those that the one before was told of and did not live to write
 * down. */
static void remember(struct agent *a, json_t *message)
{
	const char *type = json_string_value(json_object_get(message, "type"));
	if (!a->polling)
		keep(&a->unsent, message, KEPT_MESSAGES);
	else if (type && !strcmp(type, "step"))
		keep(&a->steps, message, KEPT_MESSAGES);
}

void agent_send(struct agent *a, json_t *message)
{
	struct hspmd_error err;
	if (message && !a->quitting)
		remember(a, message);
	if (message && a->polling) {
		if (hspmd_stream_send(a->stream, message, &err))
			lose_controller(a, err.text);
		else
			watch(a);
	}
	if (!message)
		hspmd_error_log("out of memory: a message to the controller is lost");
	json_decref(message);
}

static void obey(struct agent *a, json_t *m)
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
	else if (type && !strcmp(type, "quit"))
		start_quitting(a, 0);
}

static void obey_all(struct agent *a)
{
	for (json_t *m; a->polling && (m = hspmd_stream_next(a->stream)); json_decref(m))
		obey(a, m);
}

static void on_ready(uv_poll_t *poll, int status, int events)
{
	struct agent *a = poll->data;
	struct hspmd_error err = { "closed" };
	int open = status < 0 ? -1 : 1;
	if (open > 0 && (events & UV_READABLE))
		open = hspmd_stream_read(a->stream, &err);
	obey_all(a);
	if (open > 0 && a->polling && (events & UV_WRITABLE) && hspmd_stream_flush(a->stream, &err))
		open = -1;
	if (open <= 0)
		lose_controller(a, open ? err.text : "it closed the connection");
	else if (a->polling)
		watch(a);
}

/* ---- time and signals */

static bool workers_left(const struct agent *a)
{
	for (const struct agent_worker *w = a->workers; w; w = w->next)
		if (!w->exited)
			return true;
	return false;
}

void agent_worker_gone(struct agent *a)
{
	if (a->quitting && !workers_left(a))
		uv_stop(&a->loop); /* somebody waits for this node */
}

static void on_time(uv_timer_t *timer)
{
	struct agent *a = timer->data;
	struct hspmd_error err;
	if (a->quitting) {
		if (!workers_left(a))
			uv_stop(&a->loop);
		else if (hspmd_now() > a->quit_by)
			agent_end_workers(a, true);
		return;
	}
	if (a->stream || hspmd_now() < a->call_at)
		return;
	a->call_at = hspmd_now() + CALL_AGAIN_S;
	if (!call(a, &err)) {
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

static void ignore(uv_signal_t *handle, int number)
{
	(void)handle, (void)number; /* Ctrl-C goes to everyone at the terminal; the controller decides */
}

static void close_handle(uv_handle_t *handle, void *unused)
{
	(void)unused;
	if (!uv_is_closing(handle))
		uv_close(handle, NULL);
}

/* Without it copies are on disks alone. */
static void take_memory(struct agent *a)
{
	struct hspmd_error err;
	if (!a->options->memory)
		return;
	hspmd_shm_dir_sweep();
	a->memory = hspmd_shm_dir_lock(a->options->memory, a->node, getenv("SLURM_JOB_ID"), &err);
	if (a->memory < 0)
		hspmd_warn("%s", err.text);
}

/* What is in it is of use as long as somebody may come back to this node: not when the agent was told to quit, or gives up waiting. */
static void leave_memory(struct agent *a)
{
	if (a->memory < 0)
		return;
	hspmd_shm_dir_remove(a->options->memory, a->node);
	close(a->memory);
}

static int run(struct agent *a)
{
	struct hspmd_error err;
	if (look_around(a, &err) || uv_loop_init(&a->loop)) {
		hspmd_error_log("%s", err.text);
		return 1;
	}
	char name[96];
	snprintf(name, sizeof name, "hspmd agent %s", a->node);
	hspmd_log_name(name);
	uv_timer_init(&a->loop, &a->timer);
	uv_signal_init(&a->loop, &a->term);
	uv_signal_init(&a->loop, &a->interrupt);
	a->timer.data = a->term.data = a->interrupt.data = a;
	if (call(a, &err)) {
		hspmd_error_log("the controller cannot be reached: %s", err.text);
		a->status = 1;
	} else {
		take_memory(a);
		uv_signal_start(&a->term, on_term, SIGTERM);
		uv_signal_start(&a->interrupt, ignore, SIGINT);
		uv_timer_start(&a->timer, on_time, TICK_MS, TICK_MS);
		uv_run(&a->loop, UV_RUN_DEFAULT);
	}
	if (a->polling)
		uv_poll_stop(&a->poll);
	uv_walk(&a->loop, close_handle, NULL);
	uv_run(&a->loop, UV_RUN_DEFAULT);
	uv_loop_close(&a->loop);
	return a->status;
}

int hspmd_agent_main(const struct hspmd_agent_options *options)
{
	struct agent a = { .options = options, .memory = -1 };
	signal(SIGPIPE, SIG_IGN);
	setenv("UCX_LOG_LEVEL", "error", 0); /* in the workers UCX would warn of every message that a dead peer left behind */
	int status = run(&a);
	leave_memory(&a);
	hspmd_stream_destroy(a.stream);
	free(a.node);
	json_decref(a.part);
	json_decref(a.gathered);
	json_decref(a.unsent);
	json_decref(a.steps);
	json_decref(a.bindings);
	return status;
}
