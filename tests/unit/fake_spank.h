/* SPDX-License-Identifier: Apache-2.0 */
/* What Slurm offers a plugin, for tests of spank/: options of sbatch, the job's environment, and its messages. The test program must export
 * its symbols (-export-dynamic), because the plugin looks up Slurm's table of options by name. */
#ifndef HSPMD_TESTS_FAKE_SPANK_H
#define HSPMD_TESTS_FAKE_SPANK_H

#include <slurm/spank.h>
#include <stdbool.h>

struct fake_spank_pair {
	char name[64], value[512];
};

struct fake_spank {
	spank_context_t context;
	struct spank_option options[8]; /* that the plugin has registered */
	int option_count;
	bool refuses_options, refuses_environment;
	struct fake_spank_pair asked[8];        /* sbatch's own options */
	struct fake_spank_pair set[8];          /* those that the plugin has set */
	struct fake_spank_pair control[16];     /* the job-control environment */
	struct fake_spank_pair environment[16]; /* of a task, on the node */
	char error[1024], info[1024];           /* the last messages */
};
extern struct fake_spank fake_spank;

/* Makes everything empty. */
void fake_spank_reset(void);
/* Adds a pair, or changes its value. */
void fake_spank_put(struct fake_spank_pair *pairs, const char *name, const char *value);
/* Returns the value, or NULL. */
const char *fake_spank_get(const struct fake_spank_pair *pairs, const char *name);

#endif
