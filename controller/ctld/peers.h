/* SPDX-License-Identifier: Apache-2.0 */
/* The elastic jobs whose controllers have greeted. Pure bookkeeping. */
#ifndef HSPMD_CONTROLLER_CTLD_PEERS_H
#define HSPMD_CONTROLLER_CTLD_PEERS_H

#include <jansson.h>

#include "controller/ctld/snapshot.h"
#include "policies/curve.h"

#define CTLD_SEEN_MAX 64

/* What a controller says that is not believed: a rate on more nodes, more nodes that it cannot do without, a longer pause, a rate beside
 * the others'. */
enum ctld_claim { CTLD_CLAIM_NONE, CTLD_CLAIM_CURVE, CTLD_CLAIM_MIN_NODES, CTLD_CLAIM_PAUSE, CTLD_CLAIM_SCALE };

/* What hspmdctld itself has seen of a job, which bounds what the job's controller claims. */
struct ctld_peer_history {
	struct hspmd_curve_sample seen[CTLD_SEEN_MAX];
	int seen_count;
	int min_nodes_bound;   /* min_nodes at the most: what it has said before, and what it has been seen to run on */
	double max_pause_s;    /* it took to carry out what was asked: a pause is no longer */
	enum ctld_claim claim; /* of a kind that was not told before: to be told, and then ctld_peers_claim_told */
	char claim_text[200];
	unsigned claims_told; /* a bit a kind */
	int line_count;       /* greetings and ends told since line_s */
	double line_s;
	bool confirmed;      /* Slurm knows the job as this user's */
	double risk_told[2]; /* as last told to it: losses of a node per second, and together; -1: not yet */
	int64_t request_id;  /* not answered yet; 0: none */
	double asked_s;
	char request_text[32];
	bool request_is_grow;
	char last_reply[200]; /* what was last answered, for people */
	char why[256];        /* why nothing is asked of it now */
	double last_s;
	int declined, declined_shrinks; /* in a row: to grow, to give */
};

struct ctld_peers {
	int count;
	size_t peer_capacity, history_capacity;
	struct ctld_peer *peers;             /* contiguous: ctld_snapshot_build takes them */
	struct ctld_peer_history *histories; /* beside */
};

/* Index of a job; -1: none. */
int ctld_peers_find(const struct ctld_peers *p, uint32_t job);
/* A controller has proved that it speaks for this job and user: its index (known jobs keep their records). -1: out of memory. */
int ctld_peers_hello(struct ctld_peers *p, uint32_t job, uid_t uid);
void ctld_peers_drop(struct ctld_peers *p, int at); /* the last takes its place */
void ctld_peers_clear(struct ctld_peers *p);

/* Take a `state` in. -1 and err: ill-formed, nothing is changed. 1: something changed that decisions depend on. `held` is how many nodes it
 * has by Slurm's word, 0: not known: a rate is taken as seen only where both agree. `size` is what these are (ctld_reference_nodes), by
 * what it said last. A job runs on no fewer nodes than it needs, so what it first says of min_nodes is believed up to what it holds, and it
 * can only be lowered: else one that was grown would keep all by needing all. A pause is believed up to the longest time that it took to do
 * what was asked, or a minute. */
int ctld_peers_state(struct ctld_peers *p, int at, json_t *message, int held, double size, struct hspmd_error *err);

/* Hold the jobs' rates against one another: nobody knows what a job makes but the job itself, but a node that makes a thousand times what
 * the middle one of all jobs makes of one is not believed to make more than that (peer.beyond). */
void ctld_peers_compare(struct ctld_peers *p);
void ctld_peers_claim_told(struct ctld_peers *p, int at);

/* A request was sent; an answer came (or its time is over): ok, or declined with a text. A job that declines to grow is not asked to for 15
 * s, twice as long each time in a row, an hour at most; one that declines to give for 2 s, at most a minute, so that others are asked
 * meanwhile. */
void ctld_peers_request_sent(struct ctld_peers *p, int at, int64_t id, bool grow, int nodes, double now_s);
/* 0, or -1: it was not asked this. */
int ctld_peers_answered(struct ctld_peers *p, int at, int64_t id, bool ok, const char *text, double now_s);

#endif
