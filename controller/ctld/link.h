/* SPDX-License-Identifier: Apache-2.0 */
/* A job controller's line to hspmdctld, for its event loop. It calls, proves itself, says its state, and hands over what is asked; when the
 * line breaks it calls again, after 1 s and then ever more seldom up to 30 s. A job without hspmdctld trains all the same. */
#ifndef HSPMD_CONTROLLER_CTLD_LINK_H
#define HSPMD_CONTROLLER_CTLD_LINK_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/auth.h"

struct ctld_link;

/* `where` is HSPMD_CTLD: "UID@HOST:PORT". Nothing is called yet. Borrows auth. NULL and err. */
struct ctld_link *ctld_link_create(const char *where, uint32_t job, const struct hspmd_auth *auth, struct hspmd_error *err);
void ctld_link_destroy(struct ctld_link *l);

/* What to watch: descriptor (-1: none now), whether for writing too, and when to call ctld_link_run() at the latest (hspmd_now()'s
 * seconds). All may differ after each call below. */
int ctld_link_fd(const struct ctld_link *l);
bool ctld_link_writes(const struct ctld_link *l);
double ctld_link_deadline(const struct ctld_link *l);
/* Read, write, call again: whatever is due. Does not block, but for the resolution of the host's name. */
void ctld_link_run(struct ctld_link *l);
bool ctld_link_up(const struct ctld_link *l);

/* The job's state (controller/ctld/protocol.h), kept and said now, after every call, and every 30 s. Takes a reference of its own; "type"
 * is set. */
void ctld_link_state(struct ctld_link *l, json_t *state);
/* The next ask: new reference, NULL: none. */
json_t *ctld_link_take(struct ctld_link *l);
/* How nodes are lost here, { losses_per_node_s, together }, where that was said since this was last asked: new reference, else NULL. */
json_t *ctld_link_risk(struct ctld_link *l);
void ctld_link_answer(struct ctld_link *l, int64_t id, bool ok, const char *text);
/* Why the line is down, for the log; "" when it is up. */
const char *ctld_link_trouble(const struct ctld_link *l);

#endif
