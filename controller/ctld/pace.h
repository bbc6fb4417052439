/* SPDX-License-Identifier: Apache-2.0 */
/* How often Slurm is looked at: soon after something has changed, ever less often while nothing does, and never sooner than slurmctld can bear. Pure:
 * times are given, in seconds of one clock. */
#ifndef HSPMD_CONTROLLER_CTLD_PACE_H
#define HSPMD_CONTROLLER_CTLD_PACE_H

#include <stdbool.h>

enum ctld_look { CTLD_LOOK_FAILED, CTLD_LOOK_SAME, CTLD_LOOK_NEWS };

struct ctld_pace {
	double least_s, most_s; /* between two looks: when all changes, when nothing does */
	double interval_s;
	double looked_s;        /* when a look last succeeded */
	double news_s;          /* and when one last brought something new */
	double next_s;          /* the next one is due */
	double rest_till_s;     /* slurmctld is not asked before, whatever happens */
	bool failing;
};

void ctld_pace_start(struct ctld_pace *p, double least_s, double most_s);
/* A look is over. */
void ctld_pace_looked(struct ctld_pace *p, double began_s, double now_s, enum ctld_look what);
/* Something has happened: look as soon as is decent. */
void ctld_pace_soon(struct ctld_pace *p, double now_s);

#endif
