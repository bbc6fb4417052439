/* SPDX-License-Identifier: Apache-2.0 */
/* A job controller's line to hspmdctld, for its event loop. It calls, proves itself, says its state, and hands over what is asked; when the
 * line breaks it calls again, after 1 s and then ever more seldom up to 30 s. A job without hspmdctld trains all the same. */
#ifndef HSPMD_CTLD_CLIENT_CLIENT_H
#define HSPMD_CTLD_CLIENT_CLIENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/auth.h"

struct ctld_client;

/* `where` is HSPMD_CTLD: "UID@HOST:PORT". Nothing is called yet. Borrows auth. NULL and err. */
struct ctld_client *ctld_client_create(const char *where, uint32_t job, const struct hspmd_auth *auth, struct hspmd_error *err);
void ctld_client_destroy(struct ctld_client *l);

/* What to watch: descriptor (-1: none now), whether for writing too, and when to call ctld_client_process() at the latest (hspmd_now()'s
 * seconds). All may differ after each call below. */
int ctld_client_fd(const struct ctld_client *l);
bool ctld_client_wants_write(const struct ctld_client *l);
double ctld_client_next_deadline(const struct ctld_client *l);
/* Read, write, call again: whatever is due. Does not block, but for the resolution of the host's name. */
void ctld_client_process(struct ctld_client *l);
bool ctld_client_is_connected(const struct ctld_client *l);

/* The job's state (controller/ctld_client/protocol.h), kept and said now, after every call, and every 30 s. Takes a reference of its own;
 * "type" is set. */
void ctld_client_set_state(struct ctld_client *l, json_t *state);
/* The next request: new reference, NULL: none. */
json_t *ctld_client_next_request(struct ctld_client *l);
/* How nodes are lost here, { losses_per_node_s, correlated }, where that was said since this was last asked: new reference, else NULL. */
json_t *ctld_client_next_risk(struct ctld_client *l);
void ctld_client_send_answer(struct ctld_client *l, int64_t id, bool ok, const char *text);
/* Why the line is down, for the log; "" when it is up. */
const char *ctld_client_last_error(const struct ctld_client *l);

#endif
