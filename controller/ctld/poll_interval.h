/* SPDX-License-Identifier: Apache-2.0 */
/* How often Slurm is polled: soon after a change, ever less often while nothing changes, and never so often that slurmctld suffers. Pure:
 * the caller passes times, in seconds of one clock. */
#ifndef HSPMD_CTLD_POLL_INTERVAL_H
#define HSPMD_CTLD_POLL_INTERVAL_H

#include <stdbool.h>

enum ctld_poll_result { CTLD_POLL_FAILED, CTLD_POLL_UNCHANGED, CTLD_POLL_CHANGED };

struct ctld_poll_interval {
	double min_s, max_s; /* between two polls: while everything changes, while nothing does */
	double interval_s;
	double polled_s;        /* time of the last poll that succeeded */
	double changed_s;       /* time of the last poll that found a change */
	double next_s;          /* time at which the next poll is due */
	double backoff_until_s; /* no poll before this time, whatever happens */
	bool failing;           /* the last poll failed */
};

void ctld_poll_interval_start(struct ctld_poll_interval *p, double min_s, double max_s);
/* A poll has ended. Sets next_s. */
void ctld_poll_interval_done(struct ctld_poll_interval *p, double began_s, double now_s, enum ctld_poll_result what);
/* Something is to be decided at when_s, for which the view must be new: brings next_s forward to it, unless that is before
 * backoff_until_s. */
void ctld_poll_interval_by(struct ctld_poll_interval *p, double when_s);
/* A fact has changed: brings next_s as near as min_s and backoff_until_s allow. */
void ctld_poll_interval_soon(struct ctld_poll_interval *p, double now_s);

#endif
