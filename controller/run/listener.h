/* SPDX-License-Identifier: Apache-2.0 */
/* The controller's port. A client must authenticate itself (common/auth.h) within a deadline, or is refused. */
#ifndef HSPMD_RUN_LISTENER_H
#define HSPMD_RUN_LISTENER_H

#include <jansson.h>
#include <stdbool.h>
#include <uv.h>

#include "common/auth.h"
#include "common/error.h"

struct run_listener;
struct run_connection; /* one authenticated connection */

struct run_listener_callbacks {
	/* User `who` sent `hello`. Fills *welcome (new reference), or returns -1 and err to refuse the connection. */
	int (*hello)(void *context, struct run_connection *peer, json_t *hello, uid_t who, json_t **welcome, struct hspmd_error *err);
	/* The welcome was sent: from now on messages may be sent to the peer. */
	void (*accepted)(void *context, struct run_connection *peer, json_t *hello);
	void (*message)(void *context, struct run_connection *peer, json_t *message);
	/* The connection is gone. Not called for one that run_connection_close() ended. */
	void (*closed)(void *context, struct run_connection *peer, const char *why);
};

/* Listens on `port` (0: any), on the loopback interface only if `loopback`. auth is borrowed. NULL and err: it cannot. */
struct run_listener *run_listener_open(uv_loop_t *loop, int port, bool loopback, const struct hspmd_auth *auth, const char *job_id,
                                       const struct run_listener_callbacks *events, void *context, struct hspmd_error *err);
/* Closes all connections; the memory is freed after the loop has run once more. */
void run_listener_close(struct run_listener *p);
/* "host:port" of this machine's addresses, those nearest to the cluster's network first. */
json_t *run_listener_addresses(const struct run_listener *p);

int run_connection_send(struct run_connection *peer, const json_t *message, struct hspmd_error *err);
/* Closes the connection when all queued messages have been sent, or after a few seconds. */
void run_connection_drain(struct run_connection *peer);
void run_connection_close(struct run_connection *peer);
void run_connection_set_data(struct run_connection *peer, void *data);
void *run_connection_data(const struct run_connection *peer);

#endif
