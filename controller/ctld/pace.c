/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/ctld/pace.h"

#include <math.h>

#define SLOWER 1.5
#define CALM_S 6.0   /* after news: slurmctld saves its state, by which we hear of changes, every 5 s at most, and one change brings others */
#define FAILED_S 2.0 /* after the first failure, twice as long after each further one */
#define LONG_S 1.0   /* a look that takes longer: slurmctld is busy, or Slurm's library waits because rl_enable limits us */
#define REST 5       /* then it is left in peace for so many times as long */

void ctld_pace_start(struct ctld_pace *p, double least_s, double most_s)
{
	*p = (struct ctld_pace){ .least_s = least_s, .most_s = most_s, .interval_s = least_s, .news_s = -INFINITY };
}

void ctld_pace_looked(struct ctld_pace *p, double began_s, double now_s, enum ctld_look what)
{
	double took = now_s - began_s;
	if (what == CTLD_LOOK_FAILED) {
		p->interval_s = p->failing ? fmin(p->interval_s * 2, p->most_s) : FAILED_S;
		p->rest_till_s = now_s + p->interval_s;
	} else {
		if (what == CTLD_LOOK_NEWS)
			p->news_s = now_s;
		bool calm = what == CTLD_LOOK_SAME && !p->failing && now_s - p->news_s >= CALM_S;
		p->interval_s = calm ? fmin(p->interval_s * SLOWER, p->most_s) : p->least_s;
		p->looked_s = now_s;
	}
	p->failing = what == CTLD_LOOK_FAILED;
	if (took > LONG_S)
		p->rest_till_s = fmax(p->rest_till_s, now_s + fmin(REST * took, p->most_s));
	p->next_s = fmax(now_s + p->interval_s, p->rest_till_s);
}

void ctld_pace_soon(struct ctld_pace *p, double now_s)
{
	if (!p->failing)
		p->interval_s = p->least_s;
	double at = fmax(fmax(p->looked_s + p->least_s, p->rest_till_s), now_s);
	p->next_s = fmin(p->next_s, at);
}
