/* SPDX-License-Identifier: Apache-2.0 */
/* SPANK does not tell a plugin what partition, account or number of nodes a job asks for. sbatch, salloc and srun export the table of their
 * options and Slurm's own library a function that reads it by name (its command-line filters use it); both are looked up at run time, no
 * layout is assumed, and a Slurm that has them not leaves the answer "not known". */
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
	/* The text is from Slurm's allocator, which keeps a header before it: copied, and left to the end of this short command. */
	const char *text = get(table, name);
	return text && *text && strcmp(text, "unset") != 0 ? strdup(text) : NULL;
}

bool hspmd_spank_slurm_set(const char *name, const char *value)
{
	void *table = dlsym(RTLD_DEFAULT, "opt");
	bool (*set)(void *, const char *, const char *, bool) = NULL;
	*(void **)&set = dlsym(RTLD_DEFAULT, "slurm_option_set");
	return table && set && set(table, name, value, false);
}
