/* SPDX-License-Identifier: Apache-2.0 */
/* hspmdctld's listening socket and its connections: who is at the other end, and limits. A client that breaks the protocol loses its own
 * connection and costs others nothing. */
#ifndef HSPMD_CONTROLLER_CTLD_SERVER_H
#define HSPMD_CONTROLLER_CTLD_SERVER_H

#include <jansson.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "common/auth.h"
#include "common/error.h"

struct ctld_server;

/* Called on the loop. */
struct ctld_handlers {
	/* A controller has proved its user and named its job. Returns 0, or -1 and err to refuse it. */
	int (*hello)(void *context, uint32_t job, uid_t uid, struct hspmd_error *err);
	/* A controller's message. Returns 0, or -1 and err to close the connection. */
	int (*message)(void *context, uint32_t job, json_t *message, struct hspmd_error *err);
	/* A controller's connection is closed. Not called if the controller has connected again meanwhile, nor by ctld_server_close(). */
	void (*gone)(void *context, uint32_t job);
	/* A viewer's message; uid is proved. Returns the reply (new reference), or NULL and err to close the connection. */
	json_t *(*query)(void *context, uid_t uid, json_t *message, struct hspmd_error *err);
	void *context;
};

struct ctld_counts {
	uint64_t accepted, refused;       /* connections since the start */
	int controllers, unauthenticated; /* connections now */
};

/* Listens on "ADDRESS:PORT" (an empty address: all; port 0: any free one, see ctld_server_port()). Borrows loop, auth and handlers. NULL
 * and err. */
struct ctld_server *ctld_server_open(uv_loop_t *loop, const char *listen, const struct hspmd_auth *auth,
                                     const struct ctld_handlers *handlers, struct hspmd_error *err);
/* Returns the port number, or -1. */
int ctld_server_port(const struct ctld_server *s);
struct ctld_counts ctld_server_counts(const struct ctld_server *s);
/* Sends a message to a job's controller. Does not block. Returns -1 if the controller is not connected. */
int ctld_server_send(struct ctld_server *s, uint32_t job, const json_t *message);
/* Refuses a job's controller: sends it `why` and closes its connection. */
void ctld_server_drop(struct ctld_server *s, uint32_t job, const char *why);
/* Closes all connections. The memory is freed when the loop has run once more. NULL: nothing. */
void ctld_server_close(struct ctld_server *s);

#endif
