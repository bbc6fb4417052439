/* SPDX-License-Identifier: Apache-2.0 */
/* What a user who is about to submit or start a job must know of the cluster to be held to the site's limits. Pure. */
#ifndef HSPMD_CONTROLLER_CTLD_QUOTE_H
#define HSPMD_CONTROLLER_CTLD_QUOTE_H

#include <jansson.h>

#include "controller/ctld/snapshot.h"

/* A viewer's `quote` (controller/ctld_client/protocol.h). */
struct ctld_quote_request {
	uint32_t job;                            /* the job that starts; 0: one that is about to be submitted */
	const char *partition, *features, *gres; /* in Slurm's syntax; NULL: any */
	int nodes;                               /* the most nodes that the job may come to hold */
	json_t *names;                           /* names of the nodes it holds; NULL: not known. Borrowed */
};

struct ctld_quote {
	int jobs;              /* elastic jobs of the user that count before this one, without this one */
	double price_per_hour; /* of its nodes; if they are not known, of the cheapest nodes that it could get, which is a lower bound */
};

/* Reads a message. What `request` points to lives as long as the message. Returns 0, or -1 and err if the message is malformed. */
int ctld_quote_read(struct ctld_quote_request *request, json_t *message, struct hspmd_error *err);

/* Before a job that is about to be submitted count all elastic jobs of its user, running or waiting; waiting ones are recognised by the
 * comment that the plugin sets (HSPMD_JOB_COMMENT). Before a job that starts count those that run and are older. v: NULL before the first
 * poll; the quote then knows of peers alone, and of no price. Returns 0, or -1 and err: out of memory. */
int ctld_quote(struct ctld_quote *q, const struct hspmd_slurm_view *v, const struct ctld_peer *peers, int peer_count, uid_t uid,
               const struct ctld_quote_request *request, struct hspmd_error *err);

#endif
