/* SPDX-License-Identifier: Apache-2.0 */
/* What somebody who is about to submit or start a job must know of the cluster to be held to the site's limits. Pure. */
#ifndef HSPMD_CONTROLLER_CTLD_QUOTE_H
#define HSPMD_CONTROLLER_CTLD_QUOTE_H

#include <jansson.h>

#include "controller/ctld/snapshot.h"

/* What is asked: a "quote" of protocol.h. */
struct ctld_quote_request {
	uint32_t job;                            /* that starts; 0: one that is about to be submitted */
	const char *partition, *features, *gres; /* as Slurm writes them; NULL: any */
	int nodes;                               /* how many it may come to hold */
	json_t *names;                           /* those it holds; NULL: not known. Borrowed */
};

struct ctld_quote {
	int jobs;              /* elastic jobs of the user that come before this one, itself not counted */
	double price_per_hour; /* of its nodes; where these are not known, of the cheapest that it could get: it will not cost less */
};

/* -1 and err: the message is ill-formed. What `ask` points to lives as long as the message does. */
int ctld_quote_read(struct ctld_quote_request *request, json_t *message, struct hspmd_error *err);

/* Before a job that is about to be submitted come all elastic jobs of its user, running or waiting (those that wait are known by the word
 * that the plugin leaves in their comment); before one that starts, those that run and are older. -1: out of memory. */
int ctld_quote(struct ctld_quote *q, const struct hspmd_slurm_view *v, const struct ctld_peer *peers, int peer_count, uid_t uid,
               const struct ctld_quote_request *request, struct hspmd_error *err);

#endif
