/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/ctld/poll_interval.h"

#include <math.h>

#define SLOWER 1.5
/* The interval does not grow for so long after a change: one change leads to others, and slurmctld saves its state, which makes the next
 * one known, at most every 5 s. */
#define CALM_S 6.0
#define FAILED_S 2.0 /* after the first failure, twice as long after each further one */
#define LONG_S 1.0   /* a poll that takes longer means that slurmctld is busy, or that libslurm waits because rl_enable limits this user */
#define REST 5       /* then no poll for so many times its duration */

void ctld_poll_interval_start(struct ctld_poll_interval *p, double min_s, double max_s)
{
	*p = (struct ctld_poll_interval){ .min_s = min_s, .max_s = max_s, .interval_s = min_s, .changed_s = -INFINITY };
}

void ctld_poll_interval_done(struct ctld_poll_interval *p, double began_s, double now_s, enum ctld_poll_result what)
{
	double took = now_s - began_s;
	if (what == CTLD_POLL_FAILED) {
		p->interval_s = p->failing ? fmin(p->interval_s * 2, p->max_s) : FAILED_S;
		p->backoff_until_s = now_s + p->interval_s;
	} else {
		if (what == CTLD_POLL_CHANGED)
			p->changed_s = now_s;
		bool calm = what == CTLD_POLL_UNCHANGED && !p->failing && now_s - p->changed_s >= CALM_S;
		p->interval_s = calm ? fmin(p->interval_s * SLOWER, p->max_s) : p->min_s;
		p->polled_s = now_s;
	}
	p->failing = what == CTLD_POLL_FAILED;
	if (took > LONG_S)
		p->backoff_until_s = fmax(p->backoff_until_s, now_s + fmin(REST * took, p->max_s));
	p->next_s = fmax(now_s + p->interval_s, p->backoff_until_s);
}

void ctld_poll_interval_soon(struct ctld_poll_interval *p, double now_s)
{
	if (!p->failing)
		p->interval_s = p->min_s;
	double at = fmax(fmax(p->polled_s + p->min_s, p->backoff_until_s), now_s);
	p->next_s = fmin(p->next_s, at);
}

void ctld_poll_interval_by(struct ctld_poll_interval *p, double when_s)
{
	p->next_s = fmin(p->next_s, fmax(when_s, p->backoff_until_s));
}
