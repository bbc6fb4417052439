/* SPDX-License-Identifier: Apache-2.0 */
/* slurmstepd: give the job HSPMD_* from what the submission left in the job-control environment, where the user's own did not travel
 * (sbatch --export=NONE). What the environment has already stands. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "spank/plugin.h"

void hspmd_spank_mirror(spank_t spank)
{
	static const char *const names[] = { "HSPMD_JOB", "HSPMD_NODES", "HSPMD_POLICY", "HSPMD_CHECKPOINT" };
	char from[64], value[PATH_MAX];
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		snprintf(from, sizeof from, "SLURM_SPANK_%s", names[i]);
		if (spank_getenv(spank, from, value, sizeof value) == ESPANK_SUCCESS)
			(void)spank_setenv(spank, names[i], value, 0); /* "exists" is fine, and nothing here may fail the node */
	}
}
