/* SPDX-License-Identifier: Apache-2.0 */
/* A transport moves bytes between the workers of one generation. There is one object per generation and worker: opened, connected, used,
 * then closed as a whole; never repaired (doc/design.md). Ranks are 0 .. size-1 of the generation. Messages between a pair with equal
 * tags arrive in order; the caller chooses the tags.
 *
 * A send may not finish before the matching receive is posted. A message is received in full or is an error: both sides pass the same
 * number of bytes. Every wait has a deadline and checks the abort flag. Only one thread may use a transport at a time; any thread may
 * wake it. */
#ifndef HSPMD_COMM_TRANSPORT_H
#define HSPMD_COMM_TRANSPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

#define HSPMD_TRANSPORT_MAX_RANKS (1 << 20)
#define HSPMD_TAG_LIMIT (UINT64_C(1) << 44) /* tags must be smaller */

struct hspmd_transport;

/* A message in transit; owned by the transport until it is reported done or failed. First member of every transport's own request. */
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
	const atomic_int *abort; /* non-zero: waits fail at once; may be NULL */
	double timeout_s;        /* for each wait; > 0 */
	char (*names)[64];       /* `size` names of the members for error messages ("n2:0"), or NULL; copied by open */
};

struct hspmd_transport_ops {
	const char *name; /* "ucx", "socket" (no library needed), "memory" (threads of one process, for tests) */
	bool sleeps_at_once; /* a wait does not spin before it sleeps: for more threads than the machine has cores */
	int (*open)(const struct hspmd_transport_options *o, struct hspmd_transport **t, struct hspmd_error *err);
	int (*address)(struct hspmd_transport *t, struct hspmd_address *own, struct hspmd_error *err); /* caller frees own->data */
	/* addresses[r] of every member; copied as needed. Pairs connect when first used. Addresses come from peers and are checked. Size
	 * 0: not known yet. Then messages to this member fail, and connect is called again with all addresses; those that were
	 * known stay as they were. */
	int (*connect)(struct hspmd_transport *t, const struct hspmd_address *addresses, struct hspmd_error *err);
	/* Start a message, from or to host memory. The caller owns the buffer and must not touch it until the request is done. Never
	 * waits for the peer. */
	int (*send)(struct hspmd_transport *t, int to, uint64_t tag, const void *data, size_t bytes, struct hspmd_request **r,
	            struct hspmd_error *err);
	int (*receive)(struct hspmd_transport *t, int from, uint64_t tag, void *data, size_t bytes, struct hspmd_request **r,
	               struct hspmd_error *err);
	/* Make progress without blocking. */
	void (*progress)(struct hspmd_transport *t);
	/* Block until progress may be possible, for at most `seconds`. May return early. */
	void (*block)(struct hspmd_transport *t, double seconds);
	/* From any thread: the current call of block, or else the next one, returns at once. */
	void (*wake)(struct hspmd_transport *t);
	/* 1 done (request freed), 0 in transit, -1 and err: failed (request freed). */
	int (*test)(struct hspmd_transport *t, struct hspmd_request *r, struct hspmd_error *err);
	/* Free everything, including pending requests; peers may be dead. Messages that were reported as sent still arrive, unless abort
	 * is set or a peer failed. NULL is fine. */
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
	int wake_fd; /* readable if another thread has called wake; for transports that sleep on descriptors */
};

/* The transport of this name; NULL: the best that is built in. NULL and err (lists the names) if there is none. */
const struct hspmd_transport_ops *hspmd_transport_find(const char *name, struct hspmd_error *err);

/* Wait for requests (NULL entries are skipped, finished ones are set to NULL). 0; or -1 and err: one failed, the deadline passed
 * ("waited 30 s for 4 MB from n2:0"), or the abort flag is set. After -1 the remaining requests are abandoned: their buffers stay in use
 * until close(). The deadline starts anew whenever one of the requests finishes. */
int hspmd_transport_wait(struct hspmd_transport *t, struct hspmd_request **requests, int count, struct hspmd_error *err);

/* All-gather: every member's `bytes` at own go to all[rank * bytes] on every member of `ranks` (count of them, in any order, the same
 * list on all members; `all` is then in the order of the list; NULL: all ranks). Takes a logarithmic number of rounds (Bruck et al.
 * 1997). */
int hspmd_transport_all_gather(struct hspmd_transport *t, const int *ranks, int count, uint64_t tag, const void *own, size_t bytes,
                               void *all, struct hspmd_error *err);

/* All-reduce: sum `count` doubles of all members in rank order, with the same bits for all; a member gets the result only if all took
 * part (doc/design.md, law 3). */
int hspmd_transport_all_reduce_f64(struct hspmd_transport *t, uint64_t tag, double *values, int count, struct hspmd_error *err);

/* Free this block when the transport is closed. For buffers of abandoned requests. */
void hspmd_transport_free_on_close(struct hspmd_transport *t, struct hspmd_deferred_free *deferred);

/* ---- for implementations of transports */

/* init: check the options and copy them (and the names) into t. fini: free them. */
int hspmd_transport_init(struct hspmd_transport *t, const struct hspmd_transport_ops *ops, const struct hspmd_transport_options *o,
                         struct hspmd_error *err);
void hspmd_transport_fini(struct hspmd_transport *t);       /* when no request is left */
void hspmd_transport_signal(struct hspmd_transport *t);     /* make wake_fd readable: implements `wake` */
void hspmd_transport_clear_wake(struct hspmd_transport *t); /* make wake_fd unreadable again */
/* "n2:0", or "rank 3" if the members have no names, into buf; returns buf. */
const char *hspmd_transport_peer(const struct hspmd_transport *t, int rank, char *buf, size_t size);
/* Fails if there is no such peer or tag. The own rank is a valid peer. */
int hspmd_transport_check(const struct hspmd_transport *t, int peer, uint64_t tag, struct hspmd_error *err);
bool hspmd_transport_aborted(const struct hspmd_transport *t);
/* Fails because the address of this member is not known. */
int hspmd_transport_fail_unknown(const struct hspmd_transport *t, int rank, struct hspmd_error *err);

extern const struct hspmd_transport_ops hspmd_transport_memory, hspmd_transport_socket, hspmd_transport_ucx;

#endif
