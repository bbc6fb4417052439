/* SPDX-License-Identifier: Apache-2.0 */
/* A job controller's connection to hspmdctld, driven by the caller's event loop. The client connects, proves its user, sends the job's
 * state, and keeps the requests that it receives. If the connection breaks it connects again, first after 1 s, then with delays that double
 * up to 30 s. A job without hspmdctld trains all the same. */
#ifndef HSPMD_CTLD_CLIENT_CLIENT_H
#define HSPMD_CTLD_CLIENT_CLIENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/auth.h"

struct ctld_client;

/* `where` is the value of HSPMD_CTLD: "UID@HOST:PORT". Does not connect yet. Borrows auth. NULL and err: `where` is malformed, or out of
 * memory. */
struct ctld_client *ctld_client_create(const char *where, uint32_t job, const struct hspmd_auth *auth, struct hspmd_error *err);
void ctld_client_destroy(struct ctld_client *l);

/* What the loop must watch: the descriptor (-1: none now), whether for writing as well, and the time at which to call ctld_client_process()
 * at the latest (seconds of hspmd_now()). All three may change with each call below. */
int ctld_client_fd(const struct ctld_client *l);
bool ctld_client_wants_write(const struct ctld_client *l);
double ctld_client_next_deadline(const struct ctld_client *l);
/* Reads, writes or connects, whichever is due. Does not block: a thread looks up the host's name, connects, and waits for munged. */
void ctld_client_process(struct ctld_client *l);
/* Returns true if both sides have proved their users. */
bool ctld_client_is_connected(const struct ctld_client *l);

/* Sets the job's state (`state` of protocol.h), which is sent when it has changed, after each connect, and every 30 s. Takes its own
 * reference, and sets the member "type". Its member `figures` is sent only to a hspmdctld that has asked for figures. */
void ctld_client_set_state(struct ctld_client *l, json_t *state);
/* Returns the oldest request (protocol.h) that was not returned before: new reference; NULL: none. */
json_t *ctld_client_next_request(struct ctld_client *l);
/* Returns the observed losses (`risk` of protocol.h) if any arrived since the last call: new reference; otherwise NULL. */
json_t *ctld_client_next_risk(struct ctld_client *l);
/* Answers the request `id`. Does nothing if the request came over an earlier connection. `text` may be NULL. */
void ctld_client_send_answer(struct ctld_client *l, int64_t id, bool ok, const char *text);
/* Why the connection is down, for the log; "" if it is up. */
const char *ctld_client_last_error(const struct ctld_client *l);

#endif
