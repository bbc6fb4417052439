/* SPDX-License-Identifier: Apache-2.0 */
/* How often Slurm is looked at: soon after something has changed, ever less often while nothing does, and never sooner than slurmctld can
 * bear. Pure: times are given, in seconds of one clock. */
#ifndef HSPMD_CTLD_POLL_INTERVAL_H
#define HSPMD_CTLD_POLL_INTERVAL_H

#include <stdbool.h>

enum ctld_poll_result { CTLD_POLL_FAILED, CTLD_POLL_UNCHANGED, CTLD_POLL_CHANGED };

struct ctld_poll_interval {
	double min_s, max_s; /* between two polls: when all changes, when nothing does */
	double interval_s;
	double polled_s;        /* when a poll last succeeded */
	double changed_s;       /* and when one last brought something new */
	double next_s;          /* the next one is due */
	double backoff_until_s; /* slurmctld is not asked before, whatever happens */
	bool failing;
};

void ctld_poll_interval_start(struct ctld_poll_interval *p, double min_s, double max_s);
/* A poll is over. */
void ctld_poll_interval_done(struct ctld_poll_interval *p, double began_s, double now_s, enum ctld_poll_result what);
/* Something has happened: poll as soon as is decent. */
void ctld_poll_interval_soon(struct ctld_poll_interval *p, double now_s);

#endif
