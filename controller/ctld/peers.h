/* SPDX-License-Identifier: Apache-2.0 */
/* The elastic jobs whose controllers have connected, and how far their claims are accepted. Pure bookkeeping. */
#ifndef HSPMD_CONTROLLER_CTLD_PEERS_H
#define HSPMD_CONTROLLER_CTLD_PEERS_H

#include <jansson.h>

#include "controller/ctld/snapshot.h"
#include "policies/curve.h"

#define CTLD_SEEN_MAX 64
/* So long a rate on a number of nodes counts. The newest rate always counts: otherwise a job that says nothing would not be bounded. */
#define CTLD_SEEN_S 3600.0

/* Claims that are not accepted: a rate on more nodes, a larger min_nodes, a longer pause, a rate far above the other jobs'. */
enum ctld_claim { CTLD_CLAIM_NONE, CTLD_CLAIM_CURVE, CTLD_CLAIM_MIN_NODES, CTLD_CLAIM_PAUSE, CTLD_CLAIM_SCALE };

/* What a job says of itself for the metrics (`figures` of protocol.h). Nothing is decided by it. */
struct ctld_figures {
	bool known;
	int64_t step, generation, tokens, resizes, steps_lost;
	int devices;
	double loss, step_s, checkpoint_s; /* loss NaN: not told; checkpoint_s: wall clock, 0: none */
	double paused_s, trained_device_s, paused_device_s, lost_device_s;
};

/* What hspmdctld itself has observed of a job. It bounds the controller's claims. */
struct ctld_peer_history {
	struct hspmd_curve_sample seen[CTLD_SEEN_MAX]; /* rates while the controller's number of nodes agreed with Slurm's */
	double seen_s[CTLD_SEEN_MAX];                  /* wall clock of each */
	int seen_count;
	int min_nodes_bound;   /* upper bound of min_nodes: the least it has claimed, or has trained on; INT_MAX: none yet */
	double max_pause_s;    /* longest time that it took to carry out a request: no pause is longer */
	enum ctld_claim claim; /* a claim of a kind that was not logged before; cleared by ctld_peers_claim_logged() */
	char claim_text[200];
	unsigned claims_logged; /* one bit per kind */
	int line_count;         /* connects and disconnects logged since line_s */
	double line_s;          /* wall clock */
	bool confirmed;         /* Slurm knows the job as this user's */
	struct ctld_figures figures;
	bool figures_asked;  /* on this connection */
	double risk_sent[2]; /* last sent to it: losses per node and second, fraction lost together; [0] is -1: none yet */
	int64_t request_id;  /* of the request that is not answered yet; 0: none */
	double requested_s;  /* wall clock of that request */
	char request_text[32];
	bool request_is_grow;
	char last_reply[200];           /* the last answer, for people */
	char why[256];                  /* why no request is sent to it now */
	char dry_request[300];          /* dry run: the request that was logged instead of being sent; "": none */
	double last_s;                  /* wall clock of the last answer; NAN: none */
	int declined, declined_shrinks; /* requests to grow, and to shrink, declined in a row */
};

struct ctld_peers {
	int count;
	size_t peer_capacity, history_capacity;
	struct ctld_peer *peers;             /* contiguous, because ctld_snapshot_build() takes an array */
	struct ctld_peer_history *histories; /* same index as peers */
};

/* Returns the index of a job, or -1. */
int ctld_peers_find(const struct ctld_peers *p, uint32_t job);
/* A controller has proved that it speaks for this job and user. Returns its index; a known job keeps its history. -1: out of memory. */
int ctld_peers_hello(struct ctld_peers *p, uint32_t job, uid_t uid);
/* Removes a peer. The last one moves to its index. */
void ctld_peers_drop(struct ctld_peers *p, int at);
void ctld_peers_clear(struct ctld_peers *p);

/* Takes a controller's `state`. `held`: nodes that the job holds by Slurm's account (ctld_nodes_held()), 0: not known; a rate becomes a
 * sample only if the controller names the same number. `size`: ctld_reference_nodes(), by the relative speeds of the previous state.
 * now_s: wall clock.
 *
 * Bounds: min_nodes is accepted up to the number of nodes held at the first state, since a job runs on no fewer nodes than it needs; later
 * states can only lower it, otherwise a job that was grown would keep all nodes by claiming to need them. pause_s is accepted up to the
 * longest time that a request took, or one minute. The curve is bounded by the samples (policies/curve.h), the newest for each number of
 * nodes. A sample older than CTLD_SEEN_S is forgotten, so that rates of a bad hour do not keep a job from trying again.
 *
 * Returns 1 if something changed that decisions depend on, otherwise 0; -1 and err: malformed or out of memory, the peer is unchanged. */
int ctld_peers_state(struct ctld_peers *p, int at, json_t *message, int held, double size, double now_s, struct hspmd_error *err);

/* Cross-checks the claimed rates. Only a job knows its own throughput, but a rate per node of more than 1000 times the median of all jobs
 * is not accepted: sets overclaim_factor of each peer. */
void ctld_peers_compare(struct ctld_peers *p);
/* The claim in the peer's history was logged. Claims of its kind are not noted again. */
void ctld_peers_claim_logged(struct ctld_peers *p, int at);

/* A request was sent. */
void ctld_peers_request_sent(struct ctld_peers *p, int at, int64_t id, bool grow, int nodes, double now_s);
/* The request `id` was carried out (ok), or declined or timed out (text says why). A job that declines to grow gets no such request for 15
 * s, twice as long each time in a row, at most one hour; one that declines to shrink for 2 s, at most one minute, so that other jobs are
 * requested meanwhile. Returns 0, or -1 if no request `id` is pending. */
int ctld_peers_answered(struct ctld_peers *p, int at, int64_t id, bool ok, const char *text, double now_s);

#endif
