/* SPDX-License-Identifier: Apache-2.0 */
/* SPANK does not report to a plugin which partition, account or number of nodes a job requests. sbatch, salloc and srun export the table of
 * their options, and Slurm's library a function that reads it by name (for its command-line filters). Both are looked up at run time, and
 * no layout is assumed; with a Slurm that lacks them the options are not known. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "spank/plugin.h"

char *hspmd_spank_slurm_option(const char *name)
{
	void *table = dlsym(RTLD_DEFAULT, "opt");
	char *(*get)(void *, const char *) = NULL;
	*(void **)&get = dlsym(RTLD_DEFAULT, "slurm_option_get");
	if (!table || !get)
		return NULL;
	/* The text comes from Slurm's allocator, which puts a header before it, so free() is wrong: it is copied, and leaked in this
	 * short-lived command. */
	const char *text = get(table, name);
	/* The second: of an option that this command does not have, such as salloc's --array. */
	bool given = text && *text && strcmp(text, "unset") != 0 && strcmp(text, "invalid-context") != 0;
	return given ? strdup(text) : NULL;
}

bool hspmd_spank_slurm_set(const char *name, const char *value)
{
	void *table = dlsym(RTLD_DEFAULT, "opt");
	bool (*set)(void *, const char *, const char *, bool) = NULL;
	*(void **)&set = dlsym(RTLD_DEFAULT, "slurm_option_set");
	return table && set && set(table, name, value, false);
}
