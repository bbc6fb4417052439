/* SPDX-License-Identifier: Apache-2.0 */
/* The elastic jobs whose controllers have greeted. Pure bookkeeping. */
#ifndef HSPMD_CONTROLLER_CTLD_PEERS_H
#define HSPMD_CONTROLLER_CTLD_PEERS_H

#include <jansson.h>

#include "controller/ctld/build.h"
#include "policies/curve.h"

#define CTLD_SEEN_MAX 64

/* What hspmdctld itself has seen of a job, which bounds what the job's controller claims. */
struct ctld_record {
	struct hspmd_curve_seen seen[CTLD_SEEN_MAX];
	int seen_count;
	struct hspmd_curve_seen claim; /* where its last word went furthest beyond what was measured; nodes 0: nowhere by much */
	bool claim_told;
	double risk_told[2];     /* as last told to it: losses of a node a second, and together; -1: not yet */
	int64_t ask_id;          /* not answered yet; 0: none */
	double asked_s;
	char asked_what[32];
	char last[200];          /* what was last answered, for people */
	char why[256];           /* why nothing is asked of it now */
	double last_s;
	int declined;            /* in a row */
};

struct ctld_peers {
	int count;
	size_t peer_room, record_room;
	struct ctld_peer *peers;     /* contiguous: ctld_build takes them */
	struct ctld_record *records; /* beside */
};

/* Index of a job; -1: none. */
int ctld_peers_find(const struct ctld_peers *p, uint32_t job);
/* A controller has proved that it speaks for this job and user: its index (known jobs keep their records). -1: out of memory. */
int ctld_peers_greet(struct ctld_peers *p, uint32_t job, uid_t uid);
void ctld_peers_drop(struct ctld_peers *p, int at); /* the last takes its place */
void ctld_peers_clear(struct ctld_peers *p);

/* Take a `state` in. -1 and err: ill-formed, nothing is changed. 1: something changed that decisions depend on. `held` is how many nodes it
 * has by Slurm's word, 0: not known: a rate is taken as seen only where both agree. `size` is what these are (ctld_size), by what it said last. */
int ctld_peers_state(struct ctld_peers *p, int at, json_t *message, int held, double size, struct hspmd_error *err);

/* An ask was sent; an answer came (or its time is over): ok, or declined with a text. A job that declines is left alone for 15 s, twice as
 * long each time in a row, an hour at most. */
void ctld_peers_asked(struct ctld_peers *p, int at, int64_t id, const char *what, double now_s);
/* 0, or -1: it was not asked this. */
int ctld_peers_answered(struct ctld_peers *p, int at, int64_t id, bool ok, const char *text, double now_s);

#endif
