/* SPDX-License-Identifier: Apache-2.0 */
/* slurmstepd: give the job HSPMD_* from what the submission left in the job-control environment, where the user's own did not travel
 * (sbatch --export=NONE). What the environment has already stands. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "spank/plugin.h"

void hspmd_spank_export_env(spank_t spank)
{
	char from[64], value[PATH_MAX];
	for (const char *const *name = hspmd_spank_env_names; *name; name++) {
		snprintf(from, sizeof from, "SLURM_SPANK_%s", *name);
		if (spank_getenv(spank, from, value, sizeof value) == ESPANK_SUCCESS)
			(void)spank_setenv(spank, *name, value, 0); /* "exists" is fine, and nothing here may fail the node */
	}
}
