/* SPDX-License-Identifier: Apache-2.0 */
/* Checking hellos, and making the welcomes for them, in other threads: munged may be slow or hang, and must not hold up the server's
 * loop. */
#ifndef HSPMD_CONTROLLER_SERVER_PROOF_INTERNAL_H
#define HSPMD_CONTROLLER_SERVER_PROOF_INTERNAL_H

#include <jansson.h>
#include <sys/queue.h>
#include <uv.h>

#include "common/auth.h"

/* One hello that is being checked. */
struct proof {
	STAILQ_ENTRY(proof) turn;
	struct proofs *all;
	void *context; /* NULL: nobody waits for it any more */
	uv_work_t work;
	char nonce[HSPMD_NONCE_HEX]; /* the challenge's */
	json_t *sealed;              /* the hello as it came */
	/* the result */
	int status;                       /* 0: proved; -1: not proved; -2: proved, but unwanted */
	json_t *hello, *welcome, *answer; /* contents of both, and the welcome as it is sent */
	uid_t who;
	struct hspmd_error err;
};

/* All of a server. */
struct proofs {
	uv_loop_t *loop;
	const struct hspmd_auth *auth; /* borrowed */
	json_t *welcome;               /* borrowed: what each welcome says */
	bool owner_only;
	void (*done)(void *context, struct proof *p); /* called on the loop; the proof is freed then */
	void (*idle)(struct proofs *all);             /* called on the loop when no thread works for it any more */
	STAILQ_HEAD(, proof) waiting;
	int working;
};

void proofs_init(struct proofs *all);
/* Queues the check of a hello; in the order of the calls. NULL: out of memory. */
struct proof *proof_start(struct proofs *all, const char *nonce, json_t *sealed, void *context);
/* `done` will not be called for it. */
void proof_abandon(struct proof *p);

#endif
