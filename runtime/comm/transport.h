/* SPDX-License-Identifier: Apache-2.0 */
/* A transport moves bytes between the workers of one generation. One object a generation and worker: opened, connected, used, then closed
 * whole; never repaired (DESIGN). Ranks are 0 .. size-1 of the generation. Messages between a pair with equal tags arrive in order; tags
 * are the caller's.
 *
 * A send may need the matching receive to be posted before it finishes, and a message is received in full or is an error: both sides name
 * the same number of bytes. Every wait has a deadline and looks at the abort flag. One thread uses a transport at a time; any may wake
 * it. */
#ifndef HSPMD_COMM_TRANSPORT_H
#define HSPMD_COMM_TRANSPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

#define HSPMD_TRANSPORT_MAX_RANKS (1 << 20)
#define HSPMD_TAG_LIMIT (UINT64_C(1) << 44) /* tags are below this */

struct hspmd_transport;

/* One message under way; owned by the transport until it was reported done or failed. First member of every transport's own. */
struct hspmd_request {
	int peer;
	bool sending;
	size_t bytes;
	uint64_t tag;
};

struct hspmd_address {
	void *data;
	size_t size;
};

struct hspmd_transport_options {
	int rank, size;
	const atomic_int *abort; /* becomes non-zero when waiting is pointless; may be NULL */
	double timeout_s;        /* for each wait; > 0 */
	char (*names)[64];       /* size names of the members for messages ("n2:0"), or NULL; copied by open */
};

struct hspmd_transport_ops {
	const char *name; /* "ucx", "socket" (no library needed), "memory" (threads of one process, for tests) */
	int (*open)(const struct hspmd_transport_options *o, struct hspmd_transport **t, struct hspmd_error *err);
	int (*address)(struct hspmd_transport *t, struct hspmd_address *own, struct hspmd_error *err); /* caller frees own->data */
	/* addresses[r] of every member; copied as needed. Pairs connect on first use. Blobs come from peers: they are checked. */
	int (*connect)(struct hspmd_transport *t, const struct hspmd_address *addresses, struct hspmd_error *err);
	/* Start. The buffer stays the caller's and untouched until the request is done. Host memory. Never waits for the peer. */
	int (*send)(struct hspmd_transport *t, int to, uint64_t tag, const void *data, size_t bytes, struct hspmd_request **r,
	            struct hspmd_error *err);
	int (*receive)(struct hspmd_transport *t, int from, uint64_t tag, void *data, size_t bytes, struct hspmd_request **r,
	               struct hspmd_error *err);
	/* Make progress without waiting. */
	void (*progress)(struct hspmd_transport *t);
	/* Sleep until progress may be possible, at most `seconds`. May return early. */
	void (*block)(struct hspmd_transport *t, double seconds);
	/* From any thread: the block under way, or else the next one, returns now. */
	void (*wake)(struct hspmd_transport *t);
	/* 1 done (request freed), 0 not yet, -1 failed (request freed). */
	int (*test)(struct hspmd_transport *t, struct hspmd_request *r, struct hspmd_error *err);
	/* Throw everything away, pending messages too; peers may be dead. What was sent and reported done still arrives, unless abort is
	 * set or a peer failed. NULL is fine. */
	void (*close)(struct hspmd_transport *t);
};

/* First member of a malloc'd block that an abandoned request still reads or writes. */
struct hspmd_deferred_free {
	struct hspmd_deferred_free *next;
};

/* First members of every transport. */
struct hspmd_transport {
	const struct hspmd_transport_ops *ops;
	struct hspmd_transport_options options;
	struct hspmd_deferred_free *deferred;
	int wake_fd; /* readable when somebody wants block to return; for transports that sleep on descriptors */
};

/* By name; NULL name: the best that is built in. NULL and err (lists what there is). */
const struct hspmd_transport_ops *hspmd_transport_find(const char *name, struct hspmd_error *err);

/* Wait for requests (NULL entries are skipped, finished ones set to NULL). 0; or -1: failed, deadline ("waited 30 s for 4 MB from n2:0"),
 * or aborted. On -1 the requests left are abandoned: their buffers stay in use until close(). The deadline starts anew when one of them
 * finishes. */
int hspmd_transport_wait(struct hspmd_transport *t, struct hspmd_request **requests, int count, struct hspmd_error *err);

/* Everybody's `bytes` at own into all[rank * bytes], on every member of `ranks` (count of them, ascending or not, the same list everywhere;
 * NULL: all ranks; `all` is then in the list's order). Logarithmic number of rounds (Bruck et al. 1997). */
int hspmd_transport_all_gather(struct hspmd_transport *t, const int *ranks, int count, uint64_t tag, const void *own, size_t bytes,
                               void *all, struct hspmd_error *err);

/* Sum `count` doubles of all members in rank order, same bits for everyone; a member gets the result only when all took part (DESIGN law
 * 3). */
int hspmd_transport_all_reduce_f64(struct hspmd_transport *t, uint64_t tag, double *values, int count, struct hspmd_error *err);

/* Free this block when the transport is closed: for buffers of abandoned requests. */
void hspmd_transport_free_on_close(struct hspmd_transport *t, struct hspmd_deferred_free *deferred);

/* ---- for transports */

/* Check and copy options into t (names too); free them again. */
int hspmd_transport_init(struct hspmd_transport *t, const struct hspmd_transport_ops *ops, const struct hspmd_transport_options *o,
                         struct hspmd_error *err);
void hspmd_transport_fini(struct hspmd_transport *t);       /* when no request is left */
void hspmd_transport_signal(struct hspmd_transport *t);     /* make wake_fd readable: a `wake` */
void hspmd_transport_clear_wake(struct hspmd_transport *t); /* no longer */
/* "n2:0", or "rank 3" where there are no names, into buf; returns buf. */
const char *hspmd_transport_peer(const struct hspmd_transport *t, int rank, char *buf, size_t size);
/* Is there such a peer and tag? Self counts. */
int hspmd_transport_check(const struct hspmd_transport *t, int peer, uint64_t tag, struct hspmd_error *err);
bool hspmd_transport_aborted(const struct hspmd_transport *t);

extern const struct hspmd_transport_ops hspmd_transport_memory, hspmd_transport_socket, hspmd_transport_ucx;

#endif
