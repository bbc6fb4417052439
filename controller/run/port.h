/* SPDX-License-Identifier: Apache-2.0 */
/* The controller's port: who connects proves who he is (common/auth.h) within a deadline, or is refused. */
#ifndef HSPMD_CONTROLLER_RUN_PORT_H
#define HSPMD_CONTROLLER_RUN_PORT_H

#include <jansson.h>
#include <stdbool.h>
#include <uv.h>

#include "common/auth.h"
#include "common/error.h"

struct run_port;
struct run_peer; /* one connection that has proved itself */

struct run_port_events {
	/* `hello` was said by user `who`. Fill *welcome (new reference), or return -1 with err to refuse. *tag is kept with the peer. */
	int (*hello)(void *context, struct run_peer *peer, json_t *hello, uid_t who, json_t **welcome, struct hspmd_error *err);
	/* The welcome is on its way: now messages may be sent. */
	void (*known)(void *context, struct run_peer *peer, json_t *hello);
	void (*message)(void *context, struct run_peer *peer, json_t *message);
	/* The connection is gone (never said of one that run_peer_close() ended). */
	void (*gone)(void *context, struct run_peer *peer, const char *why);
};

/* Listen: port 0 is any. `loopback`: on this machine alone. auth is borrowed. */
struct run_port *run_port_open(uv_loop_t *loop, int port, bool loopback, const struct hspmd_auth *auth, const char *job_id,
			       const struct run_port_events *events, void *context, struct hspmd_error *err);
/* Closes all connections; the memory goes when the loop has run once more. */
void run_port_close(struct run_port *p);
/* "host:port" of this machine's addresses, nearest to the cluster's network first. */
json_t *run_port_addresses(const struct run_port *p);

int run_peer_send(struct run_peer *peer, const json_t *message, struct hspmd_error *err);
/* Close once all that was sent has gone out, but after a few seconds in any case. */
void run_peer_finish(struct run_peer *peer);
void run_peer_close(struct run_peer *peer);
void run_peer_tag(struct run_peer *peer, void *tag);
void *run_peer_get_tag(const struct run_peer *peer);

#endif
