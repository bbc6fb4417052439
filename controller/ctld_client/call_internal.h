/* SPDX-License-Identifier: Apache-2.0 */
/* One call of a job controller to hspmdctld, in a thread of its own: looking up a name, connecting and MUNGE may take long, and must not
 * hold up the caller's event loop. */
#ifndef HSPMD_CTLD_CLIENT_CALL_INTERNAL_H
#define HSPMD_CTLD_CLIENT_CALL_INTERNAL_H

#include <jansson.h>
#include <stdbool.h>

#include "common/auth.h"
#include "common/stream.h"

struct ctld_call;

/* Calls "HOST" or "HOST:PORT", which user `owner` must hold, with this hello. Copies all that it needs. NULL and err: not started. */
struct ctld_call *ctld_call_start(const char *where, uid_t owner, const struct hspmd_auth *auth, const json_t *hello,
                                  struct hspmd_error *err);
/* A descriptor that becomes readable when the call is done. */
int ctld_call_fd(const struct ctld_call *c);
bool ctld_call_is_done(const struct ctld_call *c);
/* Of a call that is done: the authenticated connection, which the caller then owns; NULL and err: why there is none. */
struct hspmd_stream *ctld_call_take(struct ctld_call *c, struct hspmd_error *err);
/* Does not wait for a call that is not done: its thread then frees it. NULL: nothing. */
void ctld_call_release(struct ctld_call *c);

#endif
