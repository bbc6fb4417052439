/* SPDX-License-Identifier: Apache-2.0 */
/* Small invented snapshots for tests of the policy engine. */
#ifndef HSPMD_UNIT_SNAPSHOT_MAKER_H
#define HSPMD_UNIT_SNAPSHOT_MAKER_H

#include "policies/decide.h"

#define MAKER_MAX 64
#define MAKER_CURVE 32

struct maker {
	struct hspmd_snapshot snapshot;
	const char *types[4];
	struct hspmd_snapshot_class classes[8];
	struct hspmd_snapshot_node nodes[MAKER_MAX];
	struct hspmd_snapshot_pending pending[8];
	struct hspmd_snapshot_elastic elastic[8];
	unsigned char pending_usable[8][8], elastic_usable[8][8];
	double curves[8][MAKER_CURVE];
	double relative_speed[8][4];
};

/* One device type "t0", no nodes, no jobs, now = 10,000 s. */
void maker_start(struct maker *m);
int maker_class(struct maker *m, int type, int devices);
/* Adds n nodes of a class: idle for `idle_s`, or held by a job, or busy (holder -2). Returns the index of the first. */
int maker_nodes(struct maker *m, int class, int n, int holder, double idle_s);
/* Adds an elastic job that may use all classes, on 1..MAKER_CURVE nodes, with the curve rate * n^power. Policy: grows into idle nodes at
 * once, shrinks for pending jobs of higher priority, no cooldowns, min_gain 0. Returns its index. */
int maker_elastic(struct maker *m, double rate, double power);
/* Adds a pending job that may use all classes. */
int maker_pending(struct maker *m, int nodes, double priority);
/* Runs the engine; fails the test if that fails. */
void maker_decide(const struct maker *m, struct hspmd_decision *d);
/* Returns the number of nodes of the job's action of this kind; 0: no such action. */
int maker_moved(const struct hspmd_decision *d, enum hspmd_resize_kind kind, int job);
/* Decides; returns how many nodes job 0 gets. Fails the test if it gets none and the reason does not contain `why` (NULL: any). */
int maker_grown(const struct maker *m, const char *why);
/* Decides; returns how many nodes all jobs give back. */
int maker_given(const struct maker *m);

/* The same sequence on every machine. */
double maker_random(uint64_t *state); /* [0, 1) */

#endif
