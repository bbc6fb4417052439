/* SPDX-License-Identifier: Apache-2.0 */
/* slurmstepd: sets the job's HSPMD_* variables from the job-control environment that the submission filled, in case the user's environment
 * was not exported (sbatch --export=NONE). Variables that exist already are kept. */
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
			(void)spank_setenv(spank, *name, value,
			                   0); /* an error that it exists is fine, and no error here may drain the node */
	}
}
