/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's connection to the job controller: connecting, sending, receiving, and the messages that wait for a controller. What a message
 * or the loss of the controller means is decided by the callbacks of agent_internal.h. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/auth.h"
#include "common/clock.h"
#include "common/contact.h"
#include "common/log.h"
#include "runtime/agent/agent_internal.h"

#define GREETING_S 10.0
#define KEPT_MESSAGES 4096
#define UNSENT_MAX ((size_t)256 << 20)

static int authenticate(struct agent *a, struct hspmd_stream *s, struct hspmd_error *err)
{
	struct hspmd_auth *auth =
	        a->options->cookie ? hspmd_auth_cookie(a->options->cookie, err) : hspmd_auth_munge(a->options->munge_socket, err);
	json_t *hello = auth ? a->on->hello(a) : NULL;
	int status = hello  ? hspmd_auth_handshake(auth, s, hello, getuid(), GREETING_S, NULL, err)
	             : auth ? hspmd_fail_memory(err, "saying hello")
	                    : -1;
	json_decref(hello);
	hspmd_auth_destroy(auth);
	return status;
}

static void on_poll_closed(uv_handle_t *handle)
{
	struct agent *a = handle->data;
	hspmd_stream_destroy(a->stream);
	a->stream = NULL;
}

/* To be called when the connection is lost. No message is sent until agent_connect succeeds again. */
static void disconnect(struct agent *a, const char *why)
{
	if (!a->polling)
		return;
	a->polling = false;
	a->lost_at = hspmd_now();
	uv_poll_stop(&a->poll);
	uv_close((uv_handle_t *)&a->poll, on_poll_closed);
	a->on->disconnected(a, why);
}

static void on_ready(uv_poll_t *poll, int status, int events);

static void watch(struct agent *a)
{
	int events = UV_READABLE | (hspmd_stream_has_unsent(a->stream) ? UV_WRITABLE : 0);
	a->polling = !uv_poll_start(&a->poll, events, on_ready);
}

static void receive_all(struct agent *a)
{
	for (json_t *m; a->polling && (m = hspmd_stream_next(a->stream)); json_decref(m))
		a->on->message(a, m);
}

static void on_ready(uv_poll_t *poll, int status, int events)
{
	struct agent *a = poll->data;
	struct hspmd_error err = { "closed" };
	int open = status < 0 ? -1 : 1;
	if (open > 0 && (events & UV_READABLE))
		open = hspmd_stream_read(a->stream, &err);
	receive_all(a);
	if (open > 0 && a->polling && (events & UV_WRITABLE) && hspmd_stream_flush(a->stream, &err))
		open = -1;
	if (open <= 0)
		disconnect(a, open ? err.text : "it closed the connection");
	else if (a->polling)
		watch(a);
}

static void append_message(json_t **list, json_t *message, size_t most)
{
	if (!*list)
		*list = json_array();
	if (json_array_size(*list) >= most)
		json_array_remove(*list, 0);
	if (!*list || json_array_append(*list, message))
		hspmd_error_log("out of memory: a message to the controller is lost");
}

/* Keep messages that a restarted controller needs: those without a connection, and the latest steps, which the previous controller may
 * have received without writing them to its journal. */
static void remember(struct agent *a, json_t *message)
{
	const char *type = json_string_value(json_object_get(message, "type"));
	if (!a->polling)
		append_message(&a->unsent, message, KEPT_MESSAGES);
	else if (type && !strcmp(type, "step"))
		append_message(&a->steps, message, KEPT_MESSAGES);
}

void agent_send(struct agent *a, json_t *message)
{
	struct hspmd_error err;
	if (message && !a->quitting)
		remember(a, message);
	if (message && a->polling) {
		if (hspmd_stream_send(a->stream, message, &err))
			disconnect(a, err.text);
		else
			watch(a);
	}
	if (!message)
		hspmd_error_log("out of memory: a message to the controller is lost");
	json_decref(message);
}

/* Send the messages in order; steals the list. */
static void send_list(struct agent *a, json_t *list)
{
	for (size_t i = 0; i < json_array_size(list); i++)
		agent_send(a, json_incref(json_array_get(list, i)));
	json_decref(list);
}

/* Connect to one of the controller's addresses. Sets a->again if a later call may succeed. */
static struct hspmd_stream *connect_one(struct agent *a, const char *address, struct hspmd_error *err)
{
	json_t *only = json_pack("[s]", address);
	int fd = only ? hspmd_connect_any(only, -1, GREETING_S, err) : hspmd_fail_memory(err, "calling the controller");
	struct hspmd_stream *s = fd < 0 ? NULL : hspmd_stream_create(fd, HSPMD_WIRE_MAX, UNSENT_MAX, err);
	json_decref(only);
	int status = s ? authenticate(a, s, err) : 0;
	a->again |= status == HSPMD_AUTH_AGAIN;
	if (status) {
		hspmd_stream_destroy(s);
		s = NULL;
	}
	return s;
}

/* Each address is tried once: another process may answer on one, which then fails to authenticate. */
int agent_connect(struct agent *a, struct hspmd_error *err)
{
	char *list = strdup(a->options->controllers), *save = NULL;
	if (!list)
		return hspmd_fail_memory(err, "calling the controller");
	hspmd_fail(err, "no address of the controller");
	a->again = false;
	for (char *at = strtok_r(list, ",", &save); at && !a->stream; at = strtok_r(NULL, ",", &save))
		a->stream = connect_one(a, at, err);
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
	receive_all(a); /* messages that arrived together with the welcome cause no event */
	return 0;
}
