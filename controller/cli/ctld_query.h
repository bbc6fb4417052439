/* SPDX-License-Identifier: Apache-2.0 */
/* Asks hspmdctld: `hspmd cluster`, and a job that starts. */
#ifndef HSPMD_CLI_CTLD_QUERY_H
#define HSPMD_CLI_CTLD_QUERY_H

#include <jansson.h>

#include "common/error.h"

/* `where` is "[UID@]HOST[:PORT]"; without UID hspmdctld must run as "slurm", or root where there is no such user. `munge`: munged's socket,
 * NULL: the usual one. `ask` is a viewer's (controller/ctld_client/protocol.h), taken over; NULL is told as out of memory. New reference;
 * NULL and err, at the latest after three times timeout_s. */
json_t *hspmd_ctld_query(const char *where, const char *munge, json_t *request, double timeout_s, struct hspmd_error *err);
/* The same for a quote, by what Slurm says after this was called: asked again till hspmdctld has looked, for timeout_s at most; then by
 * what it last saw. */
json_t *hspmd_ctld_query_quote(const char *where, const char *munge, json_t *request, double timeout_s, struct hspmd_error *err);

#endif
