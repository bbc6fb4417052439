/* SPDX-License-Identifier: Apache-2.0 */
/* Queries to hspmdctld, from `hspmd cluster` and from a starting job. */
#ifndef HSPMD_CLI_CTLD_QUERY_H
#define HSPMD_CLI_CTLD_QUERY_H

#include <jansson.h>

#include "common/error.h"

/* `where` is "[UID@]HOST[:PORT]"; without UID hspmdctld must run as "slurm", or as root if there is no such user. `munge`: munged's socket;
 * NULL: the usual one. `request` is a viewer's message (controller/ctld_client/protocol.h); this takes the reference, and reports NULL as
 * out of memory. Returns a new reference, or NULL and err; blocks for at most three times timeout_s. */
json_t *hspmd_ctld_query(const char *where, const char *munge, json_t *request, double timeout_s, struct hspmd_error *err);
/* The same for a quote that is based on Slurm's state after this call: repeats the request until hspmdctld has polled Slurm again, for at
 * most timeout_s; after that, the quote is based on the last poll. */
json_t *hspmd_ctld_query_quote(const char *where, const char *munge, json_t *request, double timeout_s, struct hspmd_error *err);

#endif
