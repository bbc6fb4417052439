/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/log.h"
#include "common/wire.h"
#include "runtime/agent/agent_internal.h"

#define UNSENT_MAX ((size_t)256 << 20) /* a worker with more unsent data is stuck */

static struct agent_worker *find(struct agent *a, const char *device)
{
	struct agent_worker *w = a->workers;
	while (w && (strcmp(w->device, device) || w->exited || w->killed))
		w = w->next;
	return w;
}

static void send_exited(struct agent *a, const char *device, int64_t serial, int64_t status, int signal, const char *text)
{
	agent_send(a, json_pack("{ss,ss,sI,sI,si,ss}", "type", "exited", "device", device, "serial", (json_int_t)serial, "status",
	                        (json_int_t)status, "signal", signal, "text", text));
}

/* ---- ends */

static void on_closed(uv_handle_t *handle)
{
	struct agent_worker *w = handle->data;
	if (--w->closing)
		return;
	struct agent_worker **link = &w->agent->workers;
	while (*link != w)
		link = &(*link)->next;
	*link = w->next;
	hspmd_stream_destroy(w->stream);
	free(w->device);
	free(w);
}

static void stop_polling(struct agent_worker *w)
{
	if (w->polling)
		uv_poll_stop(&w->poll);
	w->polling = false;
}

/* Forward all messages of the worker to the controller. False: the connection is closed or broken. */
static bool drain(struct agent_worker *w)
{
	struct hspmd_error err = { "" };
	int status = hspmd_stream_read(w->stream, &err);
	for (json_t *m; (m = hspmd_stream_next(w->stream));) {
		if (json_object_set_new(m, "from", json_string(w->device)))
			hspmd_error_log("out of memory: a message of %s is lost", w->device);
		agent_send(w->agent, m);
	}
	if (status < 0)
		hspmd_warn("worker %s: %s", w->device, err.text);
	return status > 0;
}

static void on_exit_of_worker(uv_process_t *process, int64_t status, int signal)
{
	struct agent_worker *w = process->data;
	char text[96];
	if (w->stream)
		drain(w); /* its last messages are sent before `exited` */
	w->exited = true;
	if (signal)
		snprintf(text, sizeof text, "ended by signal %d (%s)", signal, strsignal(signal));
	else
		snprintf(text, sizeof text, "exit status %d", (int)status);
	if (!w->agent->quitting)
		hspmd_info("worker %s: %s", w->device, text);
	send_exited(w->agent, w->device, w->serial, status, signal, text);
	stop_polling(w);
	uv_close((uv_handle_t *)&w->process, on_closed);
	uv_close((uv_handle_t *)&w->poll, on_closed);
	w->agent->on->worker_exited(w->agent);
}

/* ---- messages */

static void watch(struct agent_worker *w);

static void on_ready(uv_poll_t *poll, int status, int events)
{
	struct agent_worker *w = poll->data;
	struct hspmd_error err;
	bool open = status >= 0;
	if (open && (events & UV_READABLE))
		open = drain(w);
	if (open && (events & UV_WRITABLE) && hspmd_stream_flush(w->stream, &err))
		open = false;
	if (open)
		watch(w);
	else
		stop_polling(w); /* on_exit_of_worker reports the end of the process */
}

static void watch(struct agent_worker *w)
{
	int events = UV_READABLE | (hspmd_stream_has_unsent(w->stream) ? UV_WRITABLE : 0);
	w->polling = !uv_poll_start(&w->poll, events, on_ready);
}

static bool is_for(const json_t *to, const char *device)
{
	if (json_is_string(to))
		return !strcmp(json_string_value(to), "*") || !strcmp(json_string_value(to), device);
	for (size_t i = 0; i < json_array_size(to); i++)
		if (json_is_string(json_array_get(to, i)) && !strcmp(json_string_value(json_array_get(to, i)), device))
			return true;
	return false;
}

void agent_forward(struct agent *a, json_t *message)
{
	json_t *to = json_object_get(message, "to");
	struct hspmd_error err;
	char *frame;
	size_t size;
	if (hspmd_wire_encode(message, &frame, &size, &err)) {
		hspmd_error_log("a message cannot be forwarded: %s", err.text);
		return;
	}
	for (struct agent_worker *w = a->workers; w; w = w->next) {
		if (w->exited || w->killed || !is_for(to, w->device))
			continue;
		if (hspmd_stream_send_frame(w->stream, frame, size, &err)) {
			hspmd_warn("worker %s: %s", w->device, err.text);
			uv_process_kill(&w->process, SIGKILL);
		} else if (w->polling) {
			watch(w);
		}
	}
	free(frame);
}

/* ---- starts */

static json_t *binding_of(const struct agent *a, const char *device)
{
	const char *colon = strrchr(device, ':');
	return colon ? json_array_get(a->bindings, (size_t)strtoul(colon + 1, NULL, 10)) : NULL;
}

static int start_process(struct agent_worker *w, int end, struct hspmd_error *err)
{
	const char *cpus = json_string_value(json_object_get(binding_of(w->agent, w->device), "cpus"));
	char *args[] = { "hspmd", "worker", "--cpus", (char *)cpus, NULL };
	if (!cpus)
		args[2] = NULL;
	uv_stdio_container_t stdio[4] = { [0] = { .flags = UV_IGNORE } };
	for (int i = 1; i < 3; i++)
		stdio[i] = (uv_stdio_container_t){ .flags = UV_INHERIT_FD, .data.fd = i };
	stdio[3] = (uv_stdio_container_t){ .flags = UV_INHERIT_FD, .data.fd = end };
	/* This very program, also after an upgrade has put another one in its place. */
	uv_process_options_t o = { .file = "/proc/self/exe", .args = args, .stdio = stdio, .stdio_count = 4, .exit_cb = on_exit_of_worker };
	w->process.data = w;
	int failed = uv_spawn(&w->agent->loop, &w->process, &o);
	return failed ? hspmd_fail(err, "the worker of %s cannot be started: %s", w->device, uv_strerror(failed)) : 0;
}

static int start(struct agent *a, const char *device, int64_t serial, struct hspmd_error *err)
{
	int ends[2];
	if (find(a, device))
		return hspmd_fail(err, "%s has a worker already", device);
	struct agent_worker *w = calloc(1, sizeof *w);
	if (!w || !(w->device = strdup(device))) {
		free(w);
		return hspmd_fail_memory(err, "starting a worker");
	}
	w->agent = a;
	w->serial = serial;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) {
		hspmd_fail_errno(err, "socketpair");
		goto fail;
	}
	w->stream = hspmd_stream_create(ends[0], HSPMD_WIRE_MAX, UNSENT_MAX, err);
	int failed = !w->stream || start_process(w, ends[1], err);
	close(ends[1]);
	if (failed)
		goto fail;
	w->poll.data = w;
	w->closing = 2;
	w->next = a->workers;
	a->workers = w;
	if (uv_poll_init(&a->loop, &w->poll,
	                 hspmd_stream_fd(w->stream))) { /* cannot fail for a socket; without it the worker would receive nothing */
		uv_process_kill(&w->process, SIGKILL);
		return 0;
	}
	watch(w);
	return 0;
fail:
	hspmd_stream_destroy(w->stream);
	free(w->device);
	free(w);
	return -1;
}

void agent_spawn(struct agent *a, json_t *message)
{
	const char *device = json_string_value(json_object_get(message, "device"));
	int64_t serial = json_integer_value(json_object_get(message, "serial"));
	struct hspmd_error err;
	if (!device || !binding_of(a, device))
		hspmd_fail(&err, "spawn: %s is no device of node %s", device ? device : "?", a->node);
	else if (!start(a, device, serial, &err))
		return;
	hspmd_warn("%s", err.text);
	send_exited(a, device ? device : "?", serial, 1, 0, err.text);
}

void agent_kill(struct agent *a, json_t *message)
{
	const char *device = json_string_value(json_object_get(message, "device"));
	struct agent_worker *w = device ? find(a, device) : NULL;
	if (w && w->serial == json_integer_value(json_object_get(message, "serial"))) {
		w->killed = true;
		uv_process_kill(&w->process, SIGKILL);
	}
}

void agent_end_workers(struct agent *a, bool force)
{
	json_t *quit = force ? NULL : json_pack("{ss,ss}", "type", "quit", "to", "*");
	if (quit)
		agent_forward(a, quit);
	json_decref(quit);
	for (struct agent_worker *w = a->workers; force && w; w = w->next)
		if (!w->exited)
			uv_process_kill(&w->process, SIGKILL);
}

json_t *agent_list_workers(const struct agent *a)
{
	json_t *list = json_array();
	for (const struct agent_worker *w = a->workers; list && w; w = w->next)
		if (!w->exited && !w->killed)
			json_array_append_new(
			        list, json_pack("{ss,sI,si}", "device", w->device, "serial", (json_int_t)w->serial, "pid", w->process.pid));
	return list;
}
