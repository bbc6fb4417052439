/* SPDX-License-Identifier: Apache-2.0 */
/* A transport moves bytes between the workers of one generation. One object a generation and worker: opened, connected, used, then aborted or closed whole; never
 * repaired (DESIGN). Ranks are 0 .. size-1 of the generation. Messages between a pair with equal tags arrive in order; tags are the caller's.
 *
 * Every wait has a deadline and looks at the abort flag. One thread uses a transport at a time. */
#ifndef HSPMD_COMM_TRANSPORT_H
#define HSPMD_COMM_TRANSPORT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

struct hspmd_transport;
struct hspmd_request; /* one message under way; owned by the transport until waited for */

struct hspmd_address {
	void *data;
	size_t size;
};

struct hspmd_transport_options {
	int rank, size;
	const atomic_int *abort;          /* becomes non-zero when waiting is pointless; may be NULL */
	double timeout_s;                 /* for each wait; > 0 */
	char (*names)[64];                /* size names of the members for messages ("n2:0"), or NULL; copied */
};

struct hspmd_transport_ops {
	const char *name; /* "ucx", "socket" (no library needed), "memory" (threads of one process, for tests) */
	int (*open)(const struct hspmd_transport_options *o, struct hspmd_transport **t, struct hspmd_error *err);
	int (*address)(struct hspmd_transport *t, struct hspmd_address *own, struct hspmd_error *err); /* caller frees own->data */
	/* addresses[r] of every member; returns when the pairs can talk (or will on first use). */
	int (*connect)(struct hspmd_transport *t, const struct hspmd_address *addresses, struct hspmd_error *err);
	/* Start. The buffer stays the caller's and untouched until the wait. Host memory. */
	int (*send)(struct hspmd_transport *t, int to, uint64_t tag, const void *data, size_t bytes, struct hspmd_request **r, struct hspmd_error *err);
	int (*receive)(struct hspmd_transport *t, int from, uint64_t tag, void *data, size_t bytes, struct hspmd_request **r, struct hspmd_error *err);
	/* Make progress without waiting. */
	void (*progress)(struct hspmd_transport *t);
	/* 1 done (request freed), 0 not yet, -1 failed (request freed). */
	int (*test)(struct hspmd_transport *t, struct hspmd_request *r, struct hspmd_error *err);
	/* Throw everything away at once, pending messages too; peers may be dead. Also the normal close after all waits. NULL is fine. */
	void (*close)(struct hspmd_transport *t);
};

/* First members of every transport. */
struct hspmd_transport {
	const struct hspmd_transport_ops *ops;
	struct hspmd_transport_options options;
};

/* By name; NULL name: the best that is built in. NULL and err (lists what there is). */
const struct hspmd_transport_ops *hspmd_transport_find(const char *name, struct hspmd_error *err);

/* Wait for requests (NULL entries are skipped, finished ones set to NULL). 0; or -1: failed, deadline ("waited 30 s for 4 MB from n2:0"), or aborted. On -1 the requests left are
 * abandoned to close(). */
int hspmd_transport_wait(struct hspmd_transport *t, struct hspmd_request **requests, int count, struct hspmd_error *err);

/* Sum `count` doubles of all members in rank order, same bits for everyone; all get the result only if all took part (so finishing means
 * everyone contributed: DESIGN law 3). */
int hspmd_transport_sum(struct hspmd_transport *t, uint64_t tag, double *values, int count, struct hspmd_error *err);

#endif
