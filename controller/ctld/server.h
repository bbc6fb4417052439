/* SPDX-License-Identifier: Apache-2.0 */
/* hspmdctld's port: connections, who speaks on them, and what bad ones cost: nothing but their own connection. */
#ifndef HSPMD_CONTROLLER_CTLD_SERVER_H
#define HSPMD_CONTROLLER_CTLD_SERVER_H

#include <jansson.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "common/auth.h"
#include "controller/ctld_client/address.h"

struct ctld_server;

/* Called on the loop. */
struct ctld_handlers {
	/* A controller has proved its user and names its job: 0, or -1 and why it is refused. */
	int (*hello)(void *context, uint32_t job, uid_t uid, struct hspmd_error *err);
	/* A message from it: 0, or -1 and why the connection is to be closed. */
	int (*message)(void *context, uint32_t job, json_t *message, struct hspmd_error *err);
	void (*gone)(void *context, uint32_t job);
	/* What a viewer, who has proved to be this user, gets for what he asks: new reference; NULL: the connection is to be closed. */
	json_t *(*query)(void *context, uid_t uid, json_t *message, struct hspmd_error *err);
	void *context;
};

struct ctld_counts {
	uint64_t accepted, refused;       /* connections since the start */
	int controllers, unauthenticated; /* now */
};

/* Listen on "ADDRESS:PORT" (an empty address: all; port 0: any, see ctld_server_port). Borrows loop, auth and handlers. */
struct ctld_server *ctld_server_open(uv_loop_t *loop, const char *listen, const struct hspmd_auth *auth,
                                     const struct ctld_handlers *handlers, struct hspmd_error *err);
int ctld_server_port(const struct ctld_server *s);
struct ctld_counts ctld_server_counts(const struct ctld_server *s);
/* To a job's controller; -1: it is not there. */
int ctld_server_send(struct ctld_server *s, uint32_t job, const json_t *message);
/* Close a job's connection. */
void ctld_server_drop(struct ctld_server *s, uint32_t job, const char *why);
/* Close all; the loop must run once more to be rid of the handles. */
void ctld_server_close(struct ctld_server *s);

#endif
