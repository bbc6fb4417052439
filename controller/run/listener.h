/* SPDX-License-Identifier: Apache-2.0 */
/* The controller's port: who connects proves who he is (common/auth.h) within a deadline, or is refused. */
#ifndef HSPMD_RUN_LISTENER_H
#define HSPMD_RUN_LISTENER_H

#include <jansson.h>
#include <stdbool.h>
#include <uv.h>

#include "common/auth.h"
#include "common/error.h"

struct run_listener;
struct run_connection; /* one connection that has proved itself */

struct run_listener_callbacks {
	/* `hello` was said by user `who`. Fill *welcome (new reference), or return -1 with err to refuse. *tag is kept with the peer. */
	int (*hello)(void *context, struct run_connection *peer, json_t *hello, uid_t who, json_t **welcome, struct hspmd_error *err);
	/* The welcome is on its way: now messages may be sent. */
	void (*accepted)(void *context, struct run_connection *peer, json_t *hello);
	void (*message)(void *context, struct run_connection *peer, json_t *message);
	/* The connection is gone (never said of one that run_connection_close() ended). */
	void (*closed)(void *context, struct run_connection *peer, const char *why);
};

/* Listen: port 0 is any. `loopback`: on this machine alone. auth is borrowed. */
struct run_listener *run_listener_open(uv_loop_t *loop, int port, bool loopback, const struct hspmd_auth *auth, const char *job_id,
                                       const struct run_listener_callbacks *events, void *context, struct hspmd_error *err);
/* Closes all connections; the memory goes when the loop has run once more. */
void run_listener_close(struct run_listener *p);
/* "host:port" of this machine's addresses, nearest to the cluster's network first. */
json_t *run_listener_addresses(const struct run_listener *p);

int run_connection_send(struct run_connection *peer, const json_t *message, struct hspmd_error *err);
/* Close once all that was sent has gone out, but after a few seconds in any case. */
void run_connection_drain(struct run_connection *peer);
void run_connection_close(struct run_connection *peer);
void run_connection_set_data(struct run_connection *peer, void *data);
void *run_connection_data(const struct run_connection *peer);

#endif
