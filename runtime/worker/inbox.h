/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that reads the control connection, so that a stop or an abort is received while a step runs. */
#ifndef HSPMD_WORKER_INBOX_H
#define HSPMD_WORKER_INBOX_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "common/error.h"

struct hspmd_inbox;

/* Called in the reading thread for every message before it is queued, for messages that cannot wait. (Not for `ping`, which that thread
 * answers itself.) */
typedef void hspmd_inbox_hook(void *context, json_t *message);

struct hspmd_inbox *hspmd_inbox_open(int fd, hspmd_inbox_hook *hook, void *context, struct hspmd_error *err);
/* Next message (new reference). wait: block until one arrives. NULL: none, or the connection is lost (hspmd_inbox_lost). */
json_t *hspmd_inbox_next(struct hspmd_inbox *in, bool wait);
/* The same, but blocks until this time (of hspmd_now) at most; NULL: none arrived, or the connection is lost. */
json_t *hspmd_inbox_next_before(struct hspmd_inbox *in, double until);
/* Queue a message from this process itself (steals the reference). */
int hspmd_inbox_post(struct hspmd_inbox *in, json_t *message);
bool hspmd_inbox_lost(struct hspmd_inbox *in);
/* Send to the controller; from any thread; steals the reference (NULL: out of memory, which fails). -1: the connection is lost. */
int hspmd_inbox_send(struct hspmd_inbox *in, json_t *message);
void hspmd_inbox_close(struct hspmd_inbox *in);

#endif
